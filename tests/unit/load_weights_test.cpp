// WeightLoader: shards, FP8 scales in every shape, dequantisation, stacked matrices, and refusals.
#include "load_weights_fixture.h"

namespace strata::test {
namespace {

TEST_F(LoadWeights, VectorsAndTablesBecomeF32) {
  const std::vector<float> bf16 = add_bf16("q_norm.weight", {6}, 1);
  list_.add<float>(prefix + "attn_sink", DType::f32, {4}, {1, -2, kInf, 4});
  list_.add<Fp16>(prefix + "kv_norm.weight", DType::f16, {2}, {to_fp16(0.5f), to_fp16(-3.0f)});
  const std::vector<float> table = add_bf16("compressor.ape", {3, 5}, 2);
  const Tensor norm = loader().load_vector_f32("q_norm.weight", 6);
  EXPECT_EQ(norm.view().describe(), "f32[6] on cpu");
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(norm.view().ptr<float>()[i], bf16[i]);
  const Tensor sink = loader().load_vector_f32("attn_sink", 4, {1, 2});
  ASSERT_EQ(sink.view().numel(), 2);
  EXPECT_EQ(sink.view().ptr<float>()[0], -2.0f);
  EXPECT_EQ(sink.view().ptr<float>()[1], kInf);
  EXPECT_EQ(loader().load_vector_f32("kv_norm.weight", 2).view().ptr<float>()[1], -3.0f);
  const Tensor ape = loader().load_f32("compressor.ape", {3, 5}, {1, 2});
  EXPECT_EQ(ape.view().describe(), "f32[2, 5] on cpu");
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(ape.view().ptr<float>()[i], table[5 + i]);
}

TEST_F(LoadWeights, VectorsOfTheWrongKind) {
  add_bf16("q_norm.weight", {6}, 1);
  list_.add<uint8_t>(prefix + "kv_norm.weight", DType::e4m3, {2}, {0, 0});
  expect_parts(refusal([&] { loader().load_vector_f32("q_norm.weight", 7); }),
               {"tensor layers.0.attn.q_norm.weight", "shape", "expected [7]", "is [6]"});
  expect_parts(refusal([&] { loader().load_f32("q_norm.weight", {2, 3}); }), {"expected [2, 3]", "is [6]"});
  expect_parts(message_of(ErrorCode::invalid_argument,
                          [&] {
                            loader().load_f32("q_norm.weight", {1, 2, 3});
                          }),
               {"q_norm.weight", "expected 1 or 2 dimensions", "is 3"});
  expect_parts(refusal([&] { loader().load_vector_f32("kv_norm.weight", 2); }),
               {"kv_norm.weight", "dtype", "BF16 or F16 or F32", "is F8_E4M3"});
  expect_parts(refusal([&] { loader().load_vector_f32("attn_sink", 2); }),
               {"layers.0.attn.attn_sink", "missing", "model.layers.0.self_attn.attn_sink"});
  expect_parts(message_of(ErrorCode::invalid_argument,
                          [&] {
                            loader().load_vector_f32("q_norm.weight", 6, {4, 3});
                          }),
               {"[0, 6)", "[4, 7)"});
}

TEST_F(LoadWeights, Bf16MatrixAndItsShards) {
  const std::vector<float> values = add_bf16("wq_a.weight", {7, 9}, 3);
  for (const auto& [rows, columns] : std::vector<std::pair<Shard, Shard>>{{{}, {}}, {{2, 3}, {}}, {{}, {4, 5}}, {{1, 5}, {3, 2}}}) {
    const auto w = loader().load_linear("wq_a", {.n = 7, .k = 9, .rows = rows, .columns = columns});
    const int64_t n = rows.count < 0 ? 7 : rows.count, k = columns.count < 0 ? 9 : columns.count;
    EXPECT_EQ(w->weight.n, n);
    EXPECT_EQ(w->weight.k, k);
    EXPECT_EQ(w->weight.groups, 1);
    EXPECT_FALSE(w->weight.scale.present());
    EXPECT_EQ(w->allocated_bytes(), static_cast<size_t>(n * k * 2));
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < k; ++j) {
        EXPECT_EQ(value(w->weight, i, j), values[static_cast<size_t>((rows.begin + i) * 9 + columns.begin + j)]);
      }
    }
  }
}

TEST_F(LoadWeights, WiderMatricesAreRoundedToBf16) {
  list_.add<float>(prefix + "a.weight", DType::f32, {1, 2}, {1.00390625f, 1.01171875f});
  list_.add<Fp16>(prefix + "b.weight", DType::f16, {1, 1}, {to_fp16(1.5f)});
  const auto a = loader().load_linear("a", {.n = 1, .k = 2});
  EXPECT_EQ(value(a->weight, 0, 0), 1.0f);
  EXPECT_EQ(value(a->weight, 0, 1), 1.015625f);
  EXPECT_EQ(value(loader().load_linear("b", {.n = 1, .k = 1})->weight, 0, 0), 1.5f);
}

TEST_F(LoadWeights, Fp8IsKeptOrDequantisedExactly) {
  const Matrix m(320, 384, 4);  // the last block of rows is partial
  add_fp8("wq_b", m);
  for (const WeightForm form : {WeightForm::fp8, WeightForm::dequantize}) {
    const auto w = loader().load_linear("wq_b", {.n = 320, .k = 384, .form = form, .activation = ActivationFormat::fp8_ue8m0});
    EXPECT_EQ(w->weight.weight.dtype, form == WeightForm::fp8 ? DType::e4m3 : DType::bf16);
    EXPECT_EQ(w->weight.scale.present(), form == WeightForm::fp8);
    if (w->weight.scale.present()) {
      EXPECT_EQ(w->weight.scale.describe(), "f32[3, 3] on cpu");
    }
    expect_part(w->weight, m, 0, 0);
  }
}

TEST_F(LoadWeights, Fp8ShardsKeepTheirScalesAtAnyCut) {
  const Matrix m(512, 512, 5);
  add_fp8("wq_b", m);
  struct Cut {
    Shard rows, columns;
    int64_t block_n, block_k;  // of the kept form
  };
  for (const Cut& cut : std::vector<Cut>{{{128, 256}, {}, 128, 128},
                                         {{}, {256, 128}, 128, 128},
                                         {{192, 192}, {}, 64, 128},  // an odd head of 192 rows: 1.5 blocks
                                         {{}, {96, 300}, 128, 32},
                                         {{192, 100}, {64, 64}, 64, 64}}) {
    for (const WeightForm form : {WeightForm::fp8, WeightForm::dequantize, WeightForm::automatic}) {
      const auto w = loader().load_linear("wq_b", {.n = 512, .k = 512, .rows = cut.rows, .columns = cut.columns, .form = form});
      if (form != WeightForm::dequantize) {
        EXPECT_EQ(w->weight.weight.dtype, DType::e4m3);
        EXPECT_EQ(w->weight.block_n, cut.block_n);
        EXPECT_EQ(w->weight.block_k, cut.block_k);
        EXPECT_EQ(w->weight.scale.shape[0], (w->weight.n + cut.block_n - 1) / cut.block_n);
      }
      expect_part(w->weight, m, cut.rows.begin, cut.columns.begin);
    }
  }
}

TEST_F(LoadWeights, CutThroughEveryBlockIsDequantised) {
  const Matrix m(256, 256, 6);
  add_fp8("wq_b", m);
  const auto w = loader().load_linear("wq_b", {.n = 256, .k = 256, .rows = {1, 100}, .columns = {3, 100}});
  EXPECT_EQ(w->weight.weight.dtype, DType::bf16);
  expect_part(w->weight, m, 1, 3);
}

TEST_F(LoadWeights, ScaleDtypesAndSpellings) {
  Matrix m(256, 128, 7);
  const auto add_scale = [&](const std::string& name, const std::string& scale, DType dtype, auto values) {
    list_.add(prefix + name + ".weight", DType::e4m3, {m.n, m.k}, m.codes);
    list_.add(prefix + name + "." + scale, dtype, {2, 1}, values);
  };
  std::vector<Bf16> bf16;
  for (const float s : m.scales) bf16.push_back(to_bf16(s));
  add_scale("a", "scale", DType::e8m0, m.e8m0());
  add_scale("b", "weight_scale_inv", DType::f32, m.scales);
  add_scale("c", "weight_scale", DType::bf16, bf16);
  std::vector<Fp16> f16;
  for (const float s : m.scales) f16.push_back(to_fp16(s));
  add_scale("d", "weight_scale", DType::f16, f16);
  add_scale("e", "weight_scale_inv", DType::u8, m.e8m0());  // F8_E8M0 as writers without that type store it
  add_scale("f", "weight_scale", DType::u8, m.e8m0());
  // scale_fmt is about activations: it changes no reading of weights.
  for (const bool ue8m0 : {false, true}) {
    config_.scale_ue8m0 = ue8m0;
    checkpoint_.reset();
    for (const char* name : {"a", "b", "c", "d", "e", "f"}) {
      const auto w = loader().load_linear(name, {.n = 256, .k = 128, .form = WeightForm::fp8});
      expect_part(w->weight, m, 0, 0);
      EXPECT_TRUE(w->weight.power_of_two_scales);
    }
  }
}

// Two tensors of scales for one matrix: which one counts is unknown.
TEST_F(LoadWeights, ScalesUnderTwoNames) {
  const Matrix m(256, 128, 7);
  add_fp8("wq_b", m);
  list_.add(prefix + "wq_b.weight_scale_inv", DType::f32, {2, 1}, m.scales);
  expect_parts(refusal([&] { loader().load_linear("wq_b", {.n = 256, .k = 128}); }),
               {"layers.0.attn.wq_b.scale", "expected under one name", "wq_b.weight_scale_inv is there too"});
}

TEST_F(LoadWeights, ScalesThatAreNoPowersOfTwo) {
  Matrix m(256, 256, 8);
  std::mt19937 random(9);
  for (float& s : m.scales) s = 0.001f + static_cast<float>(random() % 1000) * 1e-5f;
  m.scales[1] = 0.0f;  // a block of zeros
  list_.add(prefix + "wq_b.weight", DType::e4m3, {m.n, m.k}, m.codes);
  list_.add(prefix + "wq_b.weight_scale_inv", DType::f32, {2, 2}, m.scales);
  config_.scale_ue8m0 = true;  // of activations
  const auto codes = loader().load_linear("wq_b", {.n = 256, .k = 256, .form = WeightForm::fp8});
  expect_part(codes->weight, m, 0, 0);
  EXPECT_FALSE(codes->weight.power_of_two_scales);
  const auto w = loader().load_linear("wq_b", {.n = 256, .k = 256, .form = WeightForm::dequantize});
  for (int64_t i = 0; i < 256; ++i) {
    for (int64_t j = 0; j < 256; ++j) ASSERT_EQ(value(w->weight, i, j), to_float(to_bf16(m.value(i, j))));
  }
}

TEST_F(LoadWeights, GroupShapesOfOtherQuantisations) {
  struct Case {
    const char* name;
    int64_t block_n, block_k;
    std::vector<int64_t> shape;
  };
  // Official with a partial last block, the same as modelopt writes it, MX-like, per row in both spellings, per tensor in three.
  const std::vector<Case> cases{{"edge", 128, 128, {5, 2}}, {"edge4", 128, 128, {5, 1, 2, 1}}, {"mx", 1, 32, {576, 8}},
                                {"row", 1, 256, {576}},     {"row2", 1, 256, {576, 1}},        {"one", 576, 256, {1}},
                                {"one2", 576, 256, {1, 1}}, {"scalar", 576, 256, {}}};
  std::vector<Matrix> matrices;
  for (const Case& c : cases) {
    matrices.emplace_back(576, 256, 10, c.block_n, c.block_k);
    list_.add(prefix + c.name + ".weight", DType::e4m3, {576, 256}, matrices.back().codes);
    list_.add(prefix + c.name + ".weight_scale", DType::f32, c.shape, matrices.back().scales);
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(cases[i].name);
    for (const WeightForm form : {WeightForm::fp8, WeightForm::dequantize}) {
      expect_part(loader().load_linear(cases[i].name, {.n = 576, .k = 256, .form = form})->weight, matrices[i], 0, 0);
      expect_part(loader().load_linear(cases[i].name, {.n = 576, .k = 256, .rows = {100, 60}, .columns = {128, 128}, .form = form})->weight,
                  matrices[i], 100, 128);
    }
  }
}

// A scale for every 16 elements takes a quarter of what FP8 saves, and kernels want none of it.
TEST_F(LoadWeights, ScalesThatAreTooFineMakeBf16) {
  std::map<int64_t, Matrix> matrices;
  for (const int64_t columns : {16, 32}) {
    const Matrix& m = matrices.try_emplace(columns, 128, 256, 14, 1, columns).first->second;
    list_.add(prefix + "mx" + std::to_string(columns) + ".weight", DType::e4m3, {m.n, m.k}, m.codes);
    list_.add(prefix + "mx" + std::to_string(columns) + ".weight_scale", DType::f32, {m.n, m.k / columns}, m.scales);
  }
  for (const auto& [columns, m] : matrices) {
    const auto loaded = loader().load_linear("mx" + std::to_string(columns), {.n = m.n, .k = m.k});
    EXPECT_EQ(loaded->weight.weight.dtype, columns == 16 ? DType::bf16 : DType::e4m3) << columns;
    expect_part(loaded->weight, m, 0, 0);
  }
}

TEST_F(LoadWeights, BlockSizeOfTheConfigDecides) {
  // 192 rows and 2 rows of scales: blocks of 128 by default, of 96 when the config says so.
  const Matrix m(192, 128, 11, 96, 128);
  add_fp8("wq_b", m);
  config_.weight_block_size = {96, 128};
  expect_part(loader().load_linear("wq_b", {.n = 192, .k = 128, .form = WeightForm::fp8})->weight, m, 0, 0);
}

TEST_F(LoadWeights, ScalesThatCannotBe) {
  const Matrix m(128, 256, 12);
  const auto add_scale = [&](const std::string& name, StoredDType dtype, std::vector<int64_t> shape, auto values) {
    list_.add(prefix + name + ".weight", DType::e4m3, {m.n, m.k}, m.codes);
    list_.add(prefix + name + ".scale", dtype, std::move(shape), values);
  };
  add_scale("nan_byte", DType::e8m0, {1, 2}, std::vector<uint8_t>{127, 255});
  add_scale("nan", DType::f32, {1, 2}, std::vector<float>{1, kNaN});
  add_scale("inf", DType::f32, {1, 2}, std::vector<float>{kInf, 1});
  add_scale("negative", DType::f32, {1, 2}, std::vector<float>{1, -0.5f});
  add_scale("dtype", StoredDType::e5m2, {1, 2}, std::vector<uint8_t>(2));
  add_scale("packed", DType::i32, {128, 1}, std::vector<int32_t>(128, 0x7F7F7F7F));
  add_scale("nan_u8", DType::u8, {1, 2}, std::vector<uint8_t>{127, 255});
  add_scale("vector", DType::f32, {2}, std::vector<float>{1, 1});
  add_scale("rank4", DType::f32, {1, 2, 2, 1}, std::vector<float>{1, 1, 1, 1});
  add_scale("rows", DType::e8m0, {3, 2}, std::vector<uint8_t>(6, 127));
  add_scale("columns", DType::e8m0, {1, 3}, std::vector<uint8_t>(3, 127));
  add_scale("transposed", DType::f32, {2, 1}, std::vector<float>{1, 1});
  add_scale("half_blocks", DType::f32, {2, 4}, std::vector<float>(8, 1));
  add_scale("none", DType::f32, {0, 2}, std::vector<float>{});
  add_scale("rank", DType::f32, {1, 2, 1}, std::vector<float>{1, 1});
  list_.add(prefix + "missing.weight", DType::e4m3, {m.n, m.k}, m.codes);
  add_bf16("bf16.weight", {128, 256}, 13);
  list_.add(prefix + "bf16.scale", DType::e8m0, {1, 2}, std::vector<uint8_t>{127, 127});
  const auto message = [&](const char* name) { return refusal([&] { loader().load_linear(name, {.n = 128, .k = 256}); }); };
  expect_parts(message("nan_byte"), {"layers.0.attn.nan_byte.scale", "[0, 1]", "finite number >= 0", "is nan"});
  expect_parts(message("nan"), {"nan.scale", "[0, 1]", "is nan"});
  expect_parts(message("inf"), {"inf.scale", "[0, 0]", "is inf"});
  expect_parts(message("negative"), {"negative.scale", "[0, 1]", "is -0.5"});
  expect_parts(message("dtype"), {"dtype.scale", "F8_E8M0, U8 (of the same bytes), F32, BF16 or F16", "is F8_E5M2"});
  expect_parts(message("packed"), {"packed.scale", "is I32", "packed ue8m0"});
  expect_parts(message("nan_u8"), {"nan_u8.scale", "[0, 1]", "is nan"});
  expect_parts(message("vector"), {"vector.scale", "expected [1, 2]", "is [2]"});
  expect_parts(message("rank4"), {"rank4.scale", "expected [1, 2]", "is [1, 2, 2, 1]"});
  expect_parts(message("rows"), {"rows.scale", "expected [1, 2]", "128x128", "F8_E4M3[128, 256]", "is [3, 2]"});
  expect_parts(message("columns"), {"columns.scale", "expected [1, 2]", "is [1, 3]"});
  expect_parts(message("transposed"), {"transposed.scale", "expected [1, 2]", "is [2, 1]"});
  expect_parts(message("half_blocks"), {"half_blocks.scale", "expected [1, 2]", "is [2, 4]"});
  expect_parts(message("none"), {"none.scale", "expected [1, 2]", "is [0, 2]"});
  expect_parts(message("rank"), {"rank.scale", "expected [1, 2]", "is [1, 2, 1]"});
  expect_parts(message("missing"), {"missing.scale", "is missing", "weight_scale_inv"});
  expect_parts(message("bf16"), {"bf16.weight", "expected F8_E4M3", "bf16.scale", "is BF16"});
  // A rank does not stumble over a scale that it does not load.
  EXPECT_NO_THROW(loader().load_linear("nan", {.n = 128, .k = 256, .columns = {0, 128}}));
}

// A quantiser that the loader does not know is named by what it has written next to the matrix, or instead of it.
TEST_F(LoadWeights, MatricesOfOtherQuantisers) {
  const std::vector<std::pair<const char*, const char*>> companions{{"qweight", "AWQ or GPTQ"},
                                                                    {"weight_packed", "compressed-tensors"},
                                                                    {"weight_scale_2", "NVFP4"},
                                                                    {"weight_global_scale", "NVFP4"},
                                                                    {"weight_zero_point", "zero points"},
                                                                    {"weight.absmax", "bitsandbytes"},
                                                                    {"SCB", "bitsandbytes"},
                                                                    {"W_q", "HQQ"},
                                                                    {"pre_quant_scale", "AWQ"},
                                                                    {"input_scale", "static scales"},
                                                                    {"activation_scale", "static scales"},
                                                                    {"input_global_scale", "static scales"}};
  const Matrix m(128, 256, 12);
  for (size_t i = 0; i < companions.size(); ++i) {
    const std::string name = "m" + std::to_string(i);
    if (i % 2 == 0) add_fp8(name, m);  // with a matrix that could be read, and without one
    list_.add<uint8_t>(prefix + name + "." + companions[i].first, DType::u8, {1}, {1});
  }
  for (size_t i = 0; i < companions.size(); ++i) {
    const std::string name = "m" + std::to_string(i);
    expect_parts(refusal([&] { loader().load_linear(name, {.n = 128, .k = 256}); }),
                 {"tensor layers.0.attn." + name + "." + companions[i].first, "F8_E4M3 with scales", companions[i].second});
  }
}

// config.json names a quantiser whose FP8 is another product: bf16 matrices are as good as any, FP8 ones are not read.
TEST_F(LoadWeights, MatricesNextToAnotherQuantisersExperts) {
  config_.fp8_weights = config_.scale_ue8m0 = false;
  config_.other_quant_method = "modelopt";
  add_bf16("wq_a.weight", {7, 9}, 3);
  add_fp8("wq_b", Matrix(128, 256, 12));
  EXPECT_NO_THROW(loader().load_linear("wq_a", {.n = 7, .k = 9}));
  expect_parts(refusal([&] { loader().load_linear("wq_b", {.n = 128, .k = 256}); }),
               {"layers.0.attn.wq_b.weight", "expected BF16", "modelopt", "is F8_E4M3"});
}

TEST_F(LoadWeights, MatricesOfOtherDtypes) {
  const std::vector<std::pair<StoredDType, const char*>> dtypes{{StoredDType::i8, "8-bit integer"},
                                                                {StoredDType::u8, "packed 4-bit values"},
                                                                {StoredDType::e4m3fnuz, "half of F8_E4M3's"},
                                                                {StoredDType::e5m2, "F8_E5M2"}};
  for (const auto& [dtype, what] : dtypes) {
    list_.add(prefix + std::string(dtype.name()) + ".weight", dtype, {4, 6}, std::vector<uint8_t>(24));
    list_.add(prefix + std::string(dtype.name()) + ".weight_scale", DType::u8, {4, 1}, std::vector<uint8_t>(4));
  }
  list_.add(prefix + "packed.weight", DType::u8, {4, 3}, std::vector<uint8_t>(12));  // two values to a byte
  list_.add(prefix + "int4.weight", DType::i32, {4, 1}, std::vector<int32_t>(4));
  for (const auto& [dtype, what] : dtypes) {
    expect_parts(refusal([&, name = std::string(dtype.name())] { loader().load_linear(name, {.n = 4, .k = 6}); }),
                 {std::string(dtype.name()) + ".weight", "dtype: expected F8_E4M3 or BF16", "is " + std::string(dtype.name()), what});
  }
  expect_parts(refusal([&] { loader().load_linear("packed", {.n = 4, .k = 6}); }), {"packed.weight", "is U8", "NVFP4"});
  expect_parts(refusal([&] { loader().load_linear("int4", {.n = 4, .k = 6}); }), {"int4.weight", "is I32", "packed integer"});
}

// A matrix of more elements than 32 bits count, in a file with a hole: its last rows.
TEST_F(LoadWeights, ShardsBeyondFourGiB) {
  const int64_t n = 70'000, k = 65'536;
  const std::string weight = prefix + "wq_b.weight", scale = prefix + "wq_b.scale";
  const std::string header = "{\"" + scale + R"(":{"dtype":"F32","shape":[],"data_offsets":[0,4]},")" + weight +
                             R"(":{"dtype":"F8_E4M3","shape":[70000,65536],"data_offsets":[4,4587520004]}})";
  const auto path = dir_.write("model.safetensors", safetensors_bytes(header, 0));
  const auto begin = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, begin + 4 + static_cast<uint64_t>(n * k));
  std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
  const float half = 0.5f;
  out.seekp(static_cast<std::streamoff>(begin));
  out.write(reinterpret_cast<const char*>(&half), 4);
  out.seekp(-1, std::ios::end);
  out.put('\x38');  // 1
  out.close();
  dir_.write("config.json", config_.to_json());
  checkpoint_ = std::make_unique<Checkpoint>(dir_.path());
  for (const WeightForm form : {WeightForm::fp8, WeightForm::dequantize}) {
    const auto w = loader().load_linear("wq_b", {.n = n, .k = k, .rows = {n - 2, 2}, .columns = {k - 128, 128}, .form = form});
    EXPECT_EQ(value(w->weight, 1, 127), 0.5f);
    EXPECT_EQ(value(w->weight, 0, 127), 0.0f);
  }
}

TEST_F(LoadWeights, MatricesThatCannotBe) {
  add_bf16("wq_a.weight", {4, 6}, 14);
  list_.add(prefix + "codes.weight", DType::i8, {4, 6}, std::vector<int8_t>(24));
  expect_parts(refusal([&] { loader().load_linear("wq_a", {.n = 6, .k = 4}); }),
               {"layers.0.attn.wq_a.weight", "shape", "[6, 4]", "[4, 6]"});
  expect_parts(refusal([&] { loader().load_linear("codes", {.n = 4, .k = 6}); }), {"codes.weight", "dtype", "F8_E4M3 or BF16", "is I8"});
  expect_parts(refusal([&] { loader().load_linear("wq_b", {.n = 4, .k = 6}); }), {"layers.0.attn.wq_b.weight", "missing"});
  expect_parts(message_of(ErrorCode::invalid_argument,
                          [&] {
                            loader().load_linear("wq_a", {.n = 4, .k = 6, .rows = {3, 2}});
                          }),
               {"wq_a.weight: rows", "[0, 4)", "[3, 5)"});
  expect_parts(message_of(ErrorCode::invalid_argument,
                          [&] {
                            loader().load_linear("wq_a", {.n = 4, .k = 6, .columns = {6, -1}});
                          }),
               {"wq_a.weight: columns", "[0, 6)"});
  expect_parts(message_of(ErrorCode::invalid_argument, [&] { loader().load_linear("wq_a", {.n = 4, .k = 6, .groups = 3}); }),
               {"groups", "4 rows", "is 3"});
  expect_parts(message_of(ErrorCode::invalid_argument, [&] { loader().load_fused_linear({}, {.k = 6}); }), {"at least one part"});
}

TEST_F(LoadWeights, GroupsAreAmongTheRowsOfTheShard) {
  const Matrix m(512, 128, 15);
  add_fp8("wo_a", m);
  const auto w = loader().load_linear("wo_a", {.n = 512, .k = 128, .rows = {256, 256}, .groups = 2});
  EXPECT_EQ(w->weight.groups, 2);
  EXPECT_EQ(w->weight.n, 128);
  EXPECT_EQ(w->weight.weight.shape[0], 256);
  expect_part(w->weight, m, 256, 0);
  EXPECT_EQ(loader().load_linear("wo_a", {.n = 512, .k = 128, .rows = {0, 128}, .groups = 1})->weight.groups, 1);
}

TEST_F(LoadWeights, StackedMatrices) {
  const Matrix a(256, 256, 16), b(576, 256, 17), odd(64, 256, 18);
  add_fp8("wq_a", a);
  add_fp8("wkv", b);
  add_fp8("odd", odd);
  const auto w = loader().load_fused_linear({{"wq_a", 256}, {"wkv", 576}}, {.k = 256, .form = WeightForm::fp8});
  EXPECT_EQ(w->weight.n, 832);
  EXPECT_EQ(w->weight.block_n, 128);
  expect_part(w->weight, a, 0, 0);
  expect_part(w->weight, b, 0, 0, 256);
  // A matrix of 64 rows before another: blocks of 64 keep every scale.
  const auto cut = loader().load_fused_linear({{"odd", 64}, {"wq_a", 256, {128, 128}}, {"wkv", 576}}, {.k = 256, .columns = {128, 128}});
  EXPECT_EQ(cut->weight.n, 64 + 128 + 576);
  EXPECT_EQ(cut->weight.block_n, 64);
  EXPECT_EQ(cut->weight.weight.dtype, DType::e4m3);
  expect_part(cut->weight, odd, 0, 128);
  expect_part(cut->weight, a, 128, 128, 64);
  expect_part(cut->weight, b, 0, 128, 192);
}

TEST_F(LoadWeights, StackOfFp8AndBf16IsBf16) {
  const Matrix a(128, 256, 19);
  add_fp8("indexer.wk", a);
  const std::vector<float> values = add_bf16("indexer.weights_proj.weight", {8, 256}, 20);
  const auto w = loader().load_fused_linear({{"indexer.wk", 128}, {"indexer.weights_proj", 8}}, {.k = 256, .form = WeightForm::fp8});
  EXPECT_EQ(w->weight.weight.dtype, DType::bf16);
  expect_part(w->weight, a, 0, 0);
  for (int64_t j = 0; j < 256; ++j) EXPECT_EQ(value(w->weight, 135, j), values[static_cast<size_t>(7 * 256 + j)]);
  expect_parts(refusal([&] {
                 loader().load_fused_linear({{"indexer.wk", 128}, {"indexer.weights_proj", 9}}, {.k = 256});
               }),
               {"indexer.weights_proj.weight", "[9, 256]", "[8, 256]"});
}

TEST_F(LoadWeights, TransposedPartsAreStackedInBf16) {
  const Matrix m(320, 256, 31);  // the last block of rows is partial
  add_fp8("kv_b_proj", m);
  for (const auto& device : {open_device({}), std::shared_ptr<Device>(std::make_shared<OtherDevice>())}) {
    device_ = device;
    // Two heads of 160 rows: of each, the transpose of its first 96.
    const auto w = loader().load_fused_linear({{"kv_b_proj", 320, {0, 96}, true}, {"kv_b_proj", 320, {160, 96}, true}},
                                              {.k = 256, .groups = 2, .form = WeightForm::fp8});
    EXPECT_EQ(w->weight.weight.dtype, DType::bf16);
    EXPECT_EQ(w->weight.n, 256);
    EXPECT_EQ(w->weight.k, 96);
    for (int64_t head = 0; head < 2; ++head) {
      for (int64_t i = 0; i < 256; ++i) {
        for (int64_t j = 0; j < 96; ++j) ASSERT_EQ(value(w->weight, head * 256 + i, j), m.value(head * 160 + j, i));
      }
    }
  }
}

TEST_F(LoadWeights, OtherDevicesAreFilledThroughCopies) {
  const Matrix m(320, 256, 25);
  add_fp8("wq_b", m);
  const std::vector<float> norm = add_bf16("q_norm.weight", {300}, 26);
  auto other = std::make_shared<OtherDevice>();
  device_ = other;
  const auto kept = loader().load_linear("wq_b", {.n = 320, .k = 256, .rows = {64, 256}, .form = WeightForm::fp8});
  EXPECT_EQ(kept->weight.weight.describe(), "e4m3[256, 256] on opencl:0");
  EXPECT_EQ(other->copies, 2);
  expect_part(kept->weight, m, 64, 0);
  expect_part(loader().load_linear("wq_b", {.n = 320, .k = 256, .form = WeightForm::dequantize})->weight, m, 0, 0);
  const Tensor vector = loader().load_vector_f32("q_norm.weight", 300);
  for (size_t i = 0; i < norm.size(); ++i) EXPECT_EQ(vector.view().ptr<float>()[i], norm[i]);
}

TEST_F(LoadWeights, LargeMatrixComesInPieces) {
  // 72 MiB of bf16: more than one buffer, and the second begins within a block of scales.
  const int64_t n = 36 * 1024 + 7, k = 1024;
  Matrix m(n, k, 27);
  add_fp8("wq_b", m);
  auto other = std::make_shared<OtherDevice>();
  device_ = other;
  const auto w = loader().load_linear("wq_b", {.n = n, .k = k, .rows = {7, n - 7}, .form = WeightForm::dequantize});
  EXPECT_EQ(other->copies, 2);
  expect_part(w->weight, m, 7, 0);
}

TEST_F(LoadWeights, LoadedMatricesWorkInTheOp) {
  const Matrix m(256, 384, 28);
  add_fp8("wq_b", m);
  ops_ = default_ops();
  std::vector<Bf16> x(384), y(256);
  std::mt19937 random(29);
  for (Bf16& v : x) v = to_bf16(static_cast<float>(random() % 2001) * 0.001f - 1.0f);
  for (const WeightForm form : {WeightForm::automatic, WeightForm::fp8, WeightForm::dequantize}) {
    for (const bool pack : {true, false}) {
      const auto w = loader().load_linear("wq_b", {.n = 256, .k = 384, .form = form, .pack = pack});
      const LinearParams params{.x = TensorView::contiguous(x.data(), DType::bf16, {}, {1, 384}),
                                .weight = &w->weight,
                                .y = TensorView::contiguous(y.data(), DType::bf16, {}, {1, 256})};
      const Tensor workspace(device_, DType::u8, {ops_.linear.workspace_bytes(params, *device_)});
      ops_.linear(params, {*device_, {}, workspace_of(workspace)});
      for (int64_t i = 0; i < 256; ++i) {
        double sum = 0, size = 0;
        for (int64_t j = 0; j < 384; ++j) {
          const double term = double{m.value(i, j)} * to_float(x[static_cast<size_t>(j)]);
          sum += term;
          size += std::abs(term);
        }
        ASSERT_NEAR(to_float(y[static_cast<size_t>(i)]), sum, std::abs(sum) / 128 + size * 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace strata::test
