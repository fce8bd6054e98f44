// WeightLoader: the selection of a form, FP8 or bf16, and packing.
#include "load_weights_fixture.h"

namespace strata::test {
namespace {

TEST_F(LoadWeights, AutomaticFormFollowsTheListOfImplementations) {
  const Matrix m(128, 128, 21);
  add_fp8("wq_b", m);
  const auto form = [&](const std::vector<Fake>& fakes) {
    ops_ = fake_ops(fakes);
    return loader().load_linear("wq_b", {.n = 128, .k = 128})->weight.weight.dtype;
  };
  const auto any = [](const LinearWeight&, int64_t) { return true; };
  const auto fp8 = [](const LinearWeight& w, int64_t) { return is_fp8(w); };
  const auto bf16 = [](const LinearWeight& w, int64_t) { return is_bf16(w); };
  EXPECT_EQ(form({{"reference", any}}), DType::e4m3) << "fewer bytes";
  EXPECT_EQ(form({{"fast", bf16}, {"reference", any}}), DType::bf16);
  EXPECT_EQ(form({{"fast", fp8}, {"reference", any}}), DType::e4m3);
  EXPECT_EQ(form({{"only", bf16}}), DType::bf16);
  // FP8 is fast for one token only: not selected when bf16 does well for both.
  EXPECT_EQ(form({{"gemv", [](const LinearWeight& w, int64_t t) { return is_fp8(w) && t == 1; }}, {"gemm", bf16}, {"reference", any}}),
            DType::bf16);
  // For up to 64 tokens and for whole tiles of many: what lies between must do, too.
  const auto few_or_tiles = [](const LinearWeight& w, int64_t t) { return is_fp8(w) && (t <= 64 || t % 256 == 0); };
  EXPECT_EQ(form({{"few, tiles", few_or_tiles}, {"gemm", bf16}}), DType::bf16);
}

TEST_F(LoadWeights, NoImplementationSaysWhyEveryOneRefused) {
  add_fp8("wq_b", Matrix(128, 128, 22));
  ops_ = fake_ops({{"picky", [](const LinearWeight&, int64_t) { return false; }}});
  expect_parts(message_of(ErrorCode::unsupported, [&] { loader().load_linear("wq_b", {.n = 128, .k = 128}); }),
               {"tensor layers.0.attn.wq_b.weight", "linear", "picky", "not mine"});
  ops_ = fake_ops({{"bf16 only", [](const LinearWeight& w, int64_t) { return is_bf16(w); }}});
  expect_parts(message_of(ErrorCode::unsupported, [&] { loader().load_linear("wq_b", {.n = 128, .k = 128, .form = WeightForm::fp8}); }),
               {"wq_b.weight", "bf16 only"});
}

TEST_F(LoadWeights, PackingReplacesTheRowMajorCopy) {
  const Matrix m(128, 256, 23);
  add_fp8("wq_b", m);
  ops_ = fake_ops({{"fast", [](const LinearWeight& w, int64_t) { return w.packing == "fast" || is_bf16(w); }},
                   {"reference", [](const LinearWeight& w, int64_t) { return w.weight.present(); }}});
  // A packing that takes both forms: negates the bytes of the matrix, and adds one scale when there are any.
  ops_.weight_packings.push_back({"fast", [](const LinearWeight& w, const Device&) { return w.weight.bytes() + 4; },
                                  [](const LinearWeight& w, Device&, void* dst) {
                                    auto* out = static_cast<uint8_t*>(dst);
                                    for (int64_t i = 0; i < w.weight.bytes(); ++i)
                                      out[i] = static_cast<uint8_t>(~w.weight.ptr<uint8_t>()[i]);
                                    const float scale = w.scale.present() ? w.scale.ptr<float>()[1] : -1.0f;
                                    std::memcpy(out + w.weight.bytes(), &scale, 4);
                                  }});
  const auto w = loader().load_linear("wq_b", {.n = 128, .k = 256});
  EXPECT_EQ(w->weight.packing, "fast");
  EXPECT_TRUE(w->weight.power_of_two_scales);
  EXPECT_FALSE(w->weight.weight.present());
  EXPECT_FALSE(w->weight.scale.present());
  EXPECT_EQ(w->storage.allocated_bytes() + w->scale_storage.allocated_bytes(), 0);
  EXPECT_EQ(w->allocated_bytes(), 128 * 256 + 4) << "of e4m3: smaller than of bf16";
  for (size_t i = 0; i < m.codes.size(); ++i) ASSERT_EQ(w->weight.packed.ptr<uint8_t>()[i], static_cast<uint8_t>(~m.codes[i]));
  float scale = 0;
  std::memcpy(&scale, w->weight.packed.ptr<uint8_t>() + m.codes.size(), 4);
  EXPECT_EQ(scale, m.scales[1]);
  EXPECT_EQ(loader().load_linear("wq_b", {.n = 128, .k = 256, .form = WeightForm::dequantize})->allocated_bytes(), 128 * 256 * 2 + 4);
  EXPECT_EQ(loader().load_linear("wq_b", {.n = 128, .k = 256, .pack = false})->weight.packing, "");
}

TEST_F(LoadWeights, PackingOfOneSizeIsFedWithBf16) {
  add_fp8("wq_b", Matrix(128, 128, 30));
  ops_ = fake_ops({{"fast", [](const LinearWeight& w, int64_t) { return w.weight.present() || w.packing == "fast"; }}});
  DType seen = DType::u8;
  ops_.weight_packings.push_back({"fast", [](const LinearWeight& w, const Device&) { return static_cast<size_t>(w.n * w.k); },
                                  [&](const LinearWeight& w, Device&, void*) { seen = w.weight.dtype; }});
  EXPECT_EQ(loader().load_linear("wq_b", {.n = 128, .k = 128})->weight.packing, "fast");
  EXPECT_EQ(seen, DType::bf16);
  loader().load_linear("wq_b", {.n = 128, .k = 128, .form = WeightForm::fp8});
  EXPECT_EQ(seen, DType::e4m3);
}

TEST_F(LoadWeights, PackingThatDoesNotHelpIsLeftOut) {
  const Matrix m(128, 128, 24);
  add_fp8("wq_b", m);
  const auto row_major = [](const LinearWeight& w, int64_t) { return w.weight.present(); };
  const auto packed = [](const LinearWeight& w, int64_t) { return w.packing == "slow"; };
  WeightPacking packing{"slow", [](const LinearWeight&, const Device&) { return size_t{16}; }, [](const LinearWeight&, Device&, void*) {}};
  ops_ = fake_ops({{"fast", row_major}, {"slow", packed}});
  ops_.weight_packings = {packing};
  EXPECT_EQ(loader().load_linear("wq_b", {.n = 128, .k = 128})->weight.packing, "");
  packing.packed_bytes = [](const LinearWeight&, const Device&) { return size_t{0}; };
  ops_ = fake_ops({{"slow", packed}, {"fast", row_major}});
  ops_.weight_packings = {packing};
  EXPECT_EQ(loader().load_linear("wq_b", {.n = 128, .k = 128})->weight.packing, "") << "does not take it";
  // Packed for one token only, the reference for more: worse than row-major for both.
  packing.packed_bytes = [](const LinearWeight&, const Device&) { return size_t{16}; };
  ops_ = fake_ops({{"slow", [](const LinearWeight& w, int64_t t) { return w.packing == "slow" && t == 1; }}, {"fast", row_major}});
  ops_.weight_packings = {packing};
  EXPECT_EQ(loader().load_linear("wq_b", {.n = 128, .k = 128})->weight.packing, "");
}

// Many tokens are the same implementation's in both forms, one token has a faster one that reads rows alone.
TEST_F(LoadWeights, AmongEqualsTheFormThatIsFastForFewTokens) {
  add_fp8("wq_b", Matrix(128, 128, 31));
  ops_ = fake_ops({{"few", [](const LinearWeight& w, int64_t t) { return is_bf16(w) && t <= 8; }},
                   {"any", [](const LinearWeight& w, int64_t) { return is_bf16(w) || w.packing == "any"; }}});
  ops_.weight_packings.push_back({"any", [](const LinearWeight& w, const Device&) { return static_cast<size_t>(w.n * w.k * 2); },
                                  [](const LinearWeight&, Device&, void*) {}});
  const auto w = loader().load_linear("wq_b", {.n = 128, .k = 128});
  EXPECT_EQ(w->weight.packing, "");
  EXPECT_EQ(w->weight.weight.dtype, DType::bf16);
}

// What is bf16 for want of another form, or because the layer wants it, is no copy of an FP8 form that might be kept.
TEST_F(LoadWeights, ACopyOfAnFp8MatrixSaysSo) {
  add_fp8("wq_b", Matrix(128, 128, 32));
  list_.add(prefix + "wkv.weight", DType::bf16, {128, 128}, std::vector<Bf16>(128 * 128));
  ops_ = fake_ops({{"bf16", [](const LinearWeight& w, int64_t) { return is_bf16(w); }}});
  EXPECT_TRUE(loader().load_linear("wq_b", {.n = 128, .k = 128})->weight.from_e4m3);
  EXPECT_FALSE(loader().load_linear("wq_b", {.n = 128, .k = 128, .form = WeightForm::dequantize})->weight.from_e4m3);
  EXPECT_FALSE(loader().load_linear("wq_b", {.n = 128, .k = 128, .rows = {1, 100}, .columns = {3, 100}})->weight.from_e4m3);
  EXPECT_FALSE(loader().load_linear("wkv", {.n = 128, .k = 128})->weight.from_e4m3);
}

// On every CPU: the e4m3 values as the file has them, in rows or packed by cpu/amx, whatever their scales and wherever the cut.
TEST_F(LoadWeights, Fp8StaysFp8OnCpus) {
  Matrix exact(256, 256, 33), rounded(256, 256, 34);
  for (size_t i = 0; i < rounded.scales.size(); ++i) rounded.scales[i] = 0.001f + 0.0003f * static_cast<float>(i);
  for (const auto& [name, m] : {std::pair{"a", &exact}, {"b", &rounded}}) {
    list_.add(prefix + name + ".weight", DType::e4m3, {m->n, m->k}, m->codes);
    list_.add(prefix + name + ".weight_scale_inv", DType::f32, {2, 2}, m->scales);
  }
  ops_ = default_ops();
  for (const auto& [name, m] : {std::pair{"a", &exact}, {"b", &rounded}}) {
    for (const int64_t groups : {0, 2}) {
      const auto w = loader().load_linear(name, {.n = 256, .k = 256, .groups = groups});
      EXPECT_TRUE(w->weight.packing.empty() || w->weight.packing == "cpu/amx") << w->weight.packing;
      EXPECT_LT(w->allocated_bytes(), size_t{256} * 256 * 5 / 4);
      if (!w->weight.packed.present()) expect_part(w->weight, *m, 0, 0);
    }
  }
  // A cut through every block: a bf16 copy of the first would be exact. The second keeps scales as fine as its values.
  const auto cut = loader().load_linear("b", {.n = 256, .k = 256, .rows = {1, 100}, .columns = {3, 100}});
  if (cut->weight.packed.present()) {
    EXPECT_EQ(cut->weight.packing, "cpu/amx");
  } else {
    EXPECT_EQ(cut->weight.weight.dtype, DType::e4m3);
    expect_part(cut->weight, rounded, 1, 3);
  }
}

}  // namespace
}  // namespace strata::test
