// Input that does not fit an MLA layer: an error that names the thing, what was expected and what was given, before any cache is touched.
#include <cstring>
#include <functional>

#include "bad_call.h"
#include "mla_model.h"

namespace strata {
namespace {

using test::BadCall;
using test::cache_bytes;
using test::expect_error;
using test::golden_model;
using test::LayerFixture;
using test::ModelDirectory;
using test::small_mla;

constexpr auto kLatent = CacheGroup::mla_latent;
constexpr auto kIndexer = CacheGroup::mla_indexer;
constexpr auto kInvalid = ErrorCode::invalid_argument;
GroupMetadata& group(Batch& b, CacheGroup g) { return b.groups[static_cast<size_t>(g)]; }

// A V3.2 layer, request 1 with 40 new tokens.
const BadCall kBadCalls[] = {
    {"hidden_dtype", kInvalid, {"hidden", "bf16", "f32"}, [](ForwardArgs& a, Batch&) { a.hidden.dtype = DType::f32; }},
    {"hidden_width", kInvalid, {"hidden", "256", "255"}, [](ForwardArgs& a, Batch&) { a.hidden.shape[1] = 255; }},
    {"hidden_strided", kInvalid, {"hidden", "stride 1", "2"}, [](ForwardArgs& a, Batch&) { a.hidden.stride[1] = 2; }},
    {"hidden_device",
     kInvalid,
     {"cuda:0", "cpu"},
     [](ForwardArgs& a, Batch&) {
       a.hidden.device = {DeviceKind::cuda, 0};
     }},
    {"batch_null",
     kInvalid,
     {"layer 0 (mla_sparse): forward: batch is required, is null", "dummy_run"},
     [](ForwardArgs& a, Batch&) { a.batch = nullptr; }},
    {"given_topk_of_a_later_position",
     kInvalid,
     {"layer 0 (mla_sparse): forward: topk_indices[5, 2], of request 0 (id 1), must be below the 6 keys that position 5 may select, is 30"},
     [](ForwardArgs& a, Batch&) {
       a.skip_topk = true;
       std::fill_n(a.topk_indices.ptr<int32_t>(), a.topk_indices.numel(), -1);
       a.topk_indices.row<int32_t>(5)[2] = 30;
     }},
    {"slot_beyond_the_cache",
     kInvalid,
     {"layer 0 (mla_sparse): forward: mla_latent slot_mapping[3], of request 0 (id 1), must be below ", "is 1099511627776"},
     [](ForwardArgs&, Batch& b) { *b[CacheGroup::mla_latent].slot_mapping.row<int64_t>(3) = int64_t{1} << 40; }},
    {"out_rows", kInvalid, {"out", "40", "39"}, [](ForwardArgs& a, Batch&) { a.out.shape[0] = 39; }},
    {"out_dtype", kInvalid, {"out", "bf16", "f16"}, [](ForwardArgs& a, Batch&) { a.out.dtype = DType::f16; }},
    {"rows_of_batch", kInvalid, {"hidden", "41", "40"}, [](ForwardArgs&, Batch& b) { b.num_tokens = 41; }},
    {"workspace_small",
     ErrorCode::workspace_too_small,
     {"workspace", "bytes", "1000"},
     [](ForwardArgs& a, Batch&) { a.workspace.bytes = 1000; }},
    {"workspace_one_short", ErrorCode::workspace_too_small, {"workspace"}, [](ForwardArgs& a, Batch&) { a.workspace.bytes -= 1; }},
    {"workspace_null", ErrorCode::workspace_too_small, {"workspace", "got 0"}, [](ForwardArgs& a, Batch&) { a.workspace.data = nullptr; }},
    {"workspace_unaligned",
     ErrorCode::invalid_argument,
     {"workspace must be aligned to 256 bytes"},
     [](ForwardArgs& a, Batch&) {
       a.workspace = {static_cast<char*>(a.workspace.data) + 64, a.workspace.bytes};
     }},
    {"latent_absent", kInvalid, {"mla_latent", "absent"}, [](ForwardArgs& a, Batch&) { a.caches[kLatent] = {}; }},
    {"indexer_absent", kInvalid, {"mla_indexer", "absent"}, [](ForwardArgs& a, Batch&) { a.caches[kIndexer] = {}; }},
    {"latent_format",
     kInvalid,
     {"mla_latent", "bf16", "fp8_tensor"},
     [](ForwardArgs& a, Batch&) { a.caches[kLatent].format = KvFormat::fp8_tensor; }},
    {"latent_rows", kInvalid, {"mla_latent", "576", "512"}, [](ForwardArgs& a, Batch&) { a.caches[kLatent].row_dim = 512; }},
    {"latent_stride",
     kInvalid,
     {"mla_latent", "page_stride", "73728", "100"},
     [](ForwardArgs& a, Batch&) { a.caches[kLatent].page_stride = 100; }},
    {"indexer_device",
     kInvalid,
     {"mla_indexer", "cpu", "cuda:1"},
     [](ForwardArgs& a, Batch&) {
       a.caches[kIndexer].device = {DeviceKind::cuda, 1};
     }},
    {"latent_page_size", kInvalid, {"mla_latent", "page_size 64", "32"}, [](ForwardArgs& a, Batch&) { a.caches[kLatent].page_size = 32; }},
    {"topk_absent", kInvalid, {"topk_indices", "absent"}, [](ForwardArgs& a, Batch&) { a.topk_indices = {}; }},
    {"topk_width", kInvalid, {"topk_indices", "32", "31"}, [](ForwardArgs& a, Batch&) { a.topk_indices.shape[1] = 31; }},
    {"topk_rows", kInvalid, {"topk_indices", "40", "39"}, [](ForwardArgs& a, Batch&) { a.topk_indices.shape[0] = 39; }},
    {"topk_dtype", kInvalid, {"topk_indices", "i32", "i64"}, [](ForwardArgs& a, Batch&) { a.topk_indices.dtype = DType::i64; }},
    {"batch_without_group", kInvalid, {"mla_indexer", "has not"}, [](ForwardArgs&, Batch& b) { group(b, kIndexer).present = false; }},
    {"batch_limits", kInvalid, {"max_model_len 640", "100000"}, [](ForwardArgs&, Batch& b) { b.limits.max_model_len = 100000; }},
    {"batch_host_lengths", kInvalid, {"host lengths", "1 requests"}, [](ForwardArgs&, Batch& b) { b.seq_lens_host.clear(); }},
    {"batch_without_lens", kInvalid, {"mla_lens", "absent"}, [](ForwardArgs&, Batch& b) { b.mla_lens = {}; }},
    {"llama_4_scaling_dtype",
     kInvalid,
     {"llama_4_scaling", "f32", "bf16"},
     [](ForwardArgs& a, Batch&) { a.llama_4_scaling = TensorView::contiguous(a.out.data, DType::bf16, {}, {40}); }},
    {"llama_4_scaling_rows",
     kInvalid,
     {"llama_4_scaling", "[40]", "f32[39]"},
     [](ForwardArgs& a, Batch&) { a.llama_4_scaling = TensorView::contiguous(a.out.data, DType::f32, {}, {39}); }},
    {"q_tap_shape",
     kInvalid,
     {"q_tap", "[40, 4, 192]"},
     [](ForwardArgs& a, Batch&) {
       a.q_tap = TensorView::contiguous(a.out.data, DType::bf16, {}, {40, 4, 191});
     }},
    {"attn_out_tap_shape",
     kInvalid,
     {"attn_out_tap", "[40, 4, 128]"},
     [](ForwardArgs& a, Batch&) {
       a.attn_out_tap = TensorView::contiguous(a.out.data, DType::bf16, {}, {40, 4, 192});
     }},
    // A batch whose contents contradict the caches: the op that would write looks at every slot first.
    {"slot_past_the_cache",
     kInvalid,
     {"slot_mapping[7]", "1000000"},
     [](ForwardArgs&, Batch& b) { group(b, kLatent).slot_mapping.ptr<int64_t>()[7] = 1000000; }},
    {"position_past_the_table", kInvalid, {"positions[39]", "640"}, [](ForwardArgs&, Batch& b) { b.positions.ptr<int64_t>()[39] = 640; }},
    {"slot_mapping_dtype",
     kInvalid,
     {"slot_mapping", "i64", "i32"},
     [](ForwardArgs&, Batch& b) { group(b, kLatent).slot_mapping.dtype = DType::i32; }},
};

class MlaLayerErrors : public testing::TestWithParam<size_t> {};

TEST_P(MlaLayerErrors, NamesTheProblemAndTouchesNothing) {
  LayerFixture fixture(0, {}, nullptr, "mla_v32");
  test::expect_refused(kBadCalls[GetParam()], fixture);
}

std::string bad_call_name(const testing::TestParamInfo<size_t>& test) { return kBadCalls[test.param].name; }
INSTANTIATE_TEST_SUITE_P(BadCalls, MlaLayerErrors, testing::Range(size_t{0}, std::size(kBadCalls)), bad_call_name);

// What a caller hands to the builder of a step: nothing of it reaches a layer.
TEST(MlaBatchErrors, BlockTablesAndLengths) {
  const auto device = open_device({});
  const std::vector<CacheGroupSpec> groups = cache_groups_of_layer(small_mla("mla_v32"), {}, 0);
  ASSERT_EQ(groups.size(), 2u);
  BatchBuilder builder(device, default_ops(), {.max_num_batched_tokens = 300, .max_num_seqs = 2, .max_model_len = 256}, groups, {8, 4}, 0);
  const auto refused = [&](const std::vector<std::string>& parts, int64_t seq_len, int64_t query_len, std::vector<int32_t> latent,
                           std::vector<int32_t> keys) {
    BatchRequest request{.seq_len = seq_len, .query_len = query_len};
    request.block_tables[kLatent] = latent;
    request.block_tables[kIndexer] = keys;
    expect_error(kInvalid, parts, [&] { static_cast<void>(builder.build({&request, 1})); });
  };
  refused({"seq_len", "70", "71"}, 70, 71, {0, 1}, {0, 1});
  refused({"query_len", "-1"}, 70, -1, {0, 1}, {0, 1});
  refused({"max_model_len = 256", "257"}, 257, 1, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 0});
  refused({"mla_latent", "2", "1"}, 70, 70, {0}, {0, 1});
  refused({"mla_indexer", "2", "1"}, 70, 70, {0, 1}, {0});
  refused({"mla_latent", "[0, 8)", "8"}, 70, 70, {0, 8}, {0, 1});
  refused({"mla_indexer", "[0, 4)", "-1"}, 70, 70, {0, 1}, {-1, 1});
}

TEST(MlaDummyRun, ZerosOutReservesTheWorkspaceAndTouchesNothing) {
  for (const std::string model : {"mla_v2_lite", "mla_v3", "mla_v32"}) {
    LayerFixture fixture(0, {}, nullptr, model);
    fixture.prefill(0, 100);
    EXPECT_GT(fixture.runner->layer(0).workspace_bytes(), 0);
    const std::vector<std::byte> before = cache_bytes(fixture.runner->pool());
    std::vector<std::byte> selected(static_cast<size_t>(fixture.runner->topk_indices().bytes()));
    if (!selected.empty()) std::memcpy(selected.data(), fixture.runner->topk_indices().data, selected.size());
    ForwardArgs args;
    args.dummy_run = true;
    args.hidden = fixture.hidden;
    args.out = fixture.out;
    args.topk_indices = fixture.runner->topk_indices();
    fixture.runner->layer(0).forward(args);
    EXPECT_EQ(before, cache_bytes(fixture.runner->pool()));
    for (int64_t i = 0; i < fixture.out.view().numel(); ++i) ASSERT_EQ(fixture.out.view().ptr<Bf16>()[i].bits, 0) << i;
    if (!selected.empty()) {
      EXPECT_EQ(std::memcmp(selected.data(), fixture.runner->topk_indices().data, selected.size()), 0);
    }
    args.hidden.shape[0] = args.out.shape[0] = 0;
    EXPECT_NO_THROW(fixture.runner->layer(0).forward(args));
  }
}

// A checkpoint with one tensor changed: `change` edits it, or returns false to drop it.
std::unique_ptr<ModelDirectory> spoilt(const std::string& from, const std::string& name,
                                       const std::function<bool(StoredTensor&, std::vector<std::byte>&)>& change) {
  auto directory = std::make_unique<ModelDirectory>();
  const SafetensorsFile file(std::filesystem::path(from) / "model.safetensors");
  std::vector<StoredTensor> tensors;
  std::vector<std::byte> data;
  bool found = false;
  for (StoredTensor t : file.tensors()) {
    if (t.name.ends_with(name)) {
      found = true;
      data.assign(t.data, t.data + t.bytes);
      if (!change(t, data)) continue;
      t.data = data.data();
      t.bytes = data.size();
    }
    tensors.push_back(t);
  }
  EXPECT_TRUE(found) << name;
  write_safetensors(directory->path() / "model.safetensors", tensors);
  std::filesystem::copy_file(std::filesystem::path(from) / "config.json", directory->path() / "config.json");
  return directory;
}

void expect_load_error(ErrorCode code, const std::string& directory, const std::vector<std::string>& parts) {
  expect_error(code, parts, [&] { LayerFixture fixture(directory, {0}); });
}

TEST(MlaLoadErrors, MissingAndMisshapenTensors) {
  const std::pair<const char*, std::vector<const char*>> models[] = {
      {"mla_v2_lite", {"q_proj.weight", "kv_a_proj_with_mqa.weight", "kv_a_layernorm.weight", "kv_b_proj.weight", "o_proj.weight"}},
      {"mla_v3", {"q_a_proj.weight", "q_a_layernorm.weight", "q_b_proj.weight"}},
      {"mla_v32",
       {"indexer.wq_b.weight", "indexer.wk.weight", "indexer.k_norm.weight", "indexer.k_norm.bias", "indexer.weights_proj.weight"}}};
  for (const auto& [model, names] : models) {
    for (const std::string name : names) {
      SCOPED_TRACE(std::string(model) + " " + name);
      expect_load_error(ErrorCode::invalid_file,
                        spoilt(golden_model(model), name, [](StoredTensor&, std::vector<std::byte>&) { return false; })->string(), {name});
      // One row less than there should be.
      const auto shorter = spoilt(golden_model(model), name, [](StoredTensor& t, std::vector<std::byte>& data) {
        data.resize(data.size() - data.size() / static_cast<size_t>(t.shape[0]));
        --t.shape[0];
        return true;
      });
      expect_load_error(ErrorCode::invalid_file, shorter->string(), {name, "shape: expected"});
    }
  }
}

TEST(MlaLoadErrors, DtypesThatAWeightCannotHave) {
  const auto integers = spoilt(golden_model("mla_v3"), "o_proj.weight", [](StoredTensor& t, std::vector<std::byte>&) {
    t.dtype = DType::i16;
    return true;
  });
  expect_load_error(ErrorCode::invalid_file, integers->string(), {"o_proj.weight", "dtype: expected", "I16"});
}

TEST(MlaLoadErrors, ScalesThatAreNotNumbers) {
  const auto model = test::synthesized(small_mla("mla_v32"), true);
  for (const std::string name : {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "indexer.wq_b", "indexer.wk"}) {
    const std::string scale = name + ".weight_scale_inv";
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      SCOPED_TRACE(scale);
      const auto directory = spoilt(model->string(), scale, [bad](StoredTensor& t, std::vector<std::byte>& data) {
        EXPECT_EQ(t.dtype, DType::f32);
        std::memcpy(data.data() + data.size() - 4, &bad, 4);
        return true;
      });
      expect_load_error(ErrorCode::invalid_file, directory->string(), {scale, std::isnan(bad) ? "nan" : "inf"});
    }
    const auto without = spoilt(model->string(), scale, [](StoredTensor&, std::vector<std::byte>&) { return false; });
    expect_load_error(ErrorCode::invalid_file, without->string(), {scale});
  }
}

TEST(MlaLoadErrors, VectorsThatAreNotNumbers) {
  for (const std::string name : {"q_a_layernorm.weight", "indexer.k_norm.bias"}) {
    const auto directory = spoilt(golden_model("mla_v32"), name, [](StoredTensor& t, std::vector<std::byte>& data) {
      const float f32 = std::numeric_limits<float>::quiet_NaN();
      const Bf16 bf16 = to_bf16(f32);
      const size_t size = data.size() / static_cast<size_t>(t.numel());
      std::memcpy(data.data() + data.size() - size, t.dtype == DType::f32 ? static_cast<const void*>(&f32) : &bf16, size);
      return true;
    });
    expect_load_error(ErrorCode::invalid_file, directory->string(), {name, "nan"});
  }
}

TEST(MlaConstruction, OptionsThatCannotBe) {
  const auto refused = [](ErrorCode code, const std::string& model, const std::function<void(LayerOptions&)>& change,
                          const std::vector<std::string>& parts) {
    LayerOptions options;
    change(options);
    expect_error(code, parts, [&] { LayerFixture fixture(0, options, nullptr, model); });
  };
  refused(ErrorCode::unsupported, "mla_v3", [](LayerOptions& o) { o.kv_format = KvFormat::fp8_ds_mla_v4; },
          {"kv_format", "bf16, fp8_tensor or fp8_ds_mla", "fp8_ds_mla_v4"});
  refused(ErrorCode::unsupported, "mla_v32", [](LayerOptions& o) { o.indexer_format = IndexerFormat::mxfp4; },
          {"indexer_format", "fp8 or none", "mxfp4"});
  refused(ErrorCode::unsupported, "mla_v32", [](LayerOptions& o) { o.mla_mode = MlaMode::mha; }, {"mla_mode", "automatic or mqa", "mha"});
  refused(kInvalid, "mla_v3", [](LayerOptions& o) { o.kv_scale_ue8m0 = true; }, {"kv_scale_ue8m0", "bf16", "true"});
  refused(kInvalid, "mla_v3", [](LayerOptions& o) { o.context_chunk_rows = -1; }, {"context_chunk_rows", "-1"});
}

TEST(MlaConstruction, RefusesMoreHeadsThanTheKernelsTakeAndTablesThatAreTooShort) {
  const auto model = test::synthesized(small_mla("mla_v2_lite", 256));
  const Checkpoint checkpoint(model->path());
  const auto device = open_device({});
  const OpSet ops = default_ops();
  LayerOptions options;
  options.limits = {.max_num_batched_tokens = 8, .max_num_seqs = 1, .max_model_len = 64};
  const auto make = [&](int64_t table_rows) {
    return default_layers().make({.checkpoint = checkpoint,
                                  .layer = 0,
                                  .device = device,
                                  .ops = ops,
                                  .options = options,
                                  .rope_tables = std::make_shared<RopeTables>(device, table_rows),
                                  .communicator = nullptr,
                                  .side_streams = nullptr});
  };
  expect_error(kInvalid, {"1 to 128 heads, has 256"}, [&] { make(64); });
  options.tp_size = 2;
  EXPECT_NO_THROW(make(64));
  expect_error(kInvalid, {"rope_tables", "max_model_len 64", "63"}, [&] { make(63); });
}

}  // namespace
}  // namespace strata
