// Arguments that do not fit the layer: an error that names the thing, what was expected and what was given, before any cache is touched.
#include <cstring>
#include <random>

#include "bad_call.h"

namespace strata {
namespace {

using test::BadCall;
using test::cache_bytes;
using test::LayerFixture;

const BadCall kBadCalls[] = {
    {"batch_null",
     ErrorCode::invalid_argument,
     {"layer 1 (c4): forward: batch is required, is null", "dummy_run"},
     [](ForwardArgs& a, Batch&) { a.batch = nullptr; }},
    {"batch_in_a_dummy_run",
     ErrorCode::invalid_argument,
     {"layer 1 (c4): forward: batch must be null in a dummy run, is one of 40 tokens"},
     [](ForwardArgs& a, Batch&) { a.dummy_run = true; }},
    {"hidden_dtype", ErrorCode::invalid_argument, {"hidden", "bf16", "f32"}, [](ForwardArgs& a, Batch&) { a.hidden.dtype = DType::f32; }},
    {"hidden_width", ErrorCode::invalid_argument, {"hidden", "256", "255"}, [](ForwardArgs& a, Batch&) { a.hidden.shape[1] = 255; }},
    {"hidden_strided", ErrorCode::invalid_argument, {"hidden", "stride 1", "2"}, [](ForwardArgs& a, Batch&) { a.hidden.stride[1] = 2; }},
    {"hidden_device",
     ErrorCode::invalid_argument,
     {"cuda:0", "cpu"},
     [](ForwardArgs& a, Batch&) {
       a.hidden.device = {DeviceKind::cuda, 0};
     }},
    {"out_rows", ErrorCode::invalid_argument, {"out", "40", "39"}, [](ForwardArgs& a, Batch&) { a.out.shape[0] = 39; }},
    {"rows_of_batch", ErrorCode::invalid_argument, {"hidden", "41", "40"}, [](ForwardArgs&, Batch& b) { b.num_tokens = 41; }},
    {"workspace_small",
     ErrorCode::workspace_too_small,
     {"workspace", "bytes", "1000"},
     [](ForwardArgs& a, Batch&) { a.workspace.bytes = 1000; }},
    {"workspace_null", ErrorCode::workspace_too_small, {"workspace", "got 0"}, [](ForwardArgs& a, Batch&) { a.workspace.data = nullptr; }},
    {"workspace_unaligned",
     ErrorCode::invalid_argument,
     {"workspace must be aligned to 256 bytes"},
     [](ForwardArgs& a, Batch&) {
       a.workspace = {static_cast<char*>(a.workspace.data) + 64, a.workspace.bytes};
     }},
    {"cache_absent",
     ErrorCode::invalid_argument,
     {"c4_state", "absent"},
     [](ForwardArgs& a, Batch&) { a.caches[CacheGroup::c4_state] = {}; }},
    {"cache_format",
     ErrorCode::invalid_argument,
     {"window", "fp8_ds_mla_v4", "bf16"},
     [](ForwardArgs& a, Batch&) { a.caches[CacheGroup::window].format = KvFormat::bf16; }},
    {"cache_stride",
     ErrorCode::invalid_argument,
     {"c4_compressed", "page_stride", "37376", "100"},
     [](ForwardArgs& a, Batch&) { a.caches[CacheGroup::c4_compressed].page_stride = 100; }},
    {"cache_device",
     ErrorCode::invalid_argument,
     {"c4_indexer", "cpu", "cuda:1"},
     [](ForwardArgs& a, Batch&) {
       a.caches[CacheGroup::c4_indexer].device = {DeviceKind::cuda, 1};
     }},
    {"cache_page_size",
     ErrorCode::invalid_argument,
     {"window", "page_size 64", "32"},
     [](ForwardArgs& a, Batch&) { a.caches[CacheGroup::window].page_size = 32; }},
    {"cache_of_fewer_pages",
     ErrorCode::invalid_argument,
     {"c4_compressed must have the batch's", "has 1"},
     [](ForwardArgs& a, Batch&) { a.caches[CacheGroup::c4_compressed].num_pages = 1; }},
    {"cache_pages_overflow",
     ErrorCode::invalid_argument,
     {"c4_state", "num_pages", "63 bits"},
     [](ForwardArgs& a, Batch&) { a.caches[CacheGroup::c4_state].num_pages = INT64_MAX; }},
    {"batch_of_another_window",
     ErrorCode::invalid_argument,
     {"swa_indices", "[40, 128]", "[40, 64]"},
     [](ForwardArgs&, Batch& b) { b.swa_indices = b.swa_indices.columns(0, 64); }},
    {"hidden_unaligned",
     ErrorCode::invalid_argument,
     {"hidden", "multiple of 2 bytes"},
     [](ForwardArgs& a, Batch&) { a.hidden.data = static_cast<char*>(a.hidden.data) + 1; }},
    {"topk_absent", ErrorCode::invalid_argument, {"topk_indices", "absent"}, [](ForwardArgs& a, Batch&) { a.topk_indices = {}; }},
    {"topk_width", ErrorCode::invalid_argument, {"topk_indices", "32", "31"}, [](ForwardArgs& a, Batch&) { a.topk_indices.shape[1] = 31; }},
    {"topk_rows", ErrorCode::invalid_argument, {"topk_indices", "40", "39"}, [](ForwardArgs& a, Batch&) { a.topk_indices.shape[0] = 39; }},
    {"batch_without_group",
     ErrorCode::invalid_argument,
     {"c4_indexer_state", "has not"},
     [](ForwardArgs&, Batch& b) { b.groups[static_cast<size_t>(CacheGroup::c4_indexer_state)].present = false; }},
    {"scaling_of_mla",
     ErrorCode::invalid_argument,
     {"llama_4_scaling must be absent for V4 layers", "f32[40]"},
     [](ForwardArgs& a, Batch&) { a.llama_4_scaling = TensorView::contiguous(a.out.data, DType::f32, {}, {40}); }},
    {"out_overlaps_hidden",
     ErrorCode::invalid_argument,
     {"out must be hidden itself or not overlap it"},
     [](ForwardArgs& a, Batch&) { a.out.data = static_cast<char*>(a.hidden.data) + a.hidden.bytes() / 2; }},
    {"batch_limits",
     ErrorCode::invalid_argument,
     {"max_model_len 640", "100000"},
     [](ForwardArgs&, Batch& b) { b.limits.max_model_len = 100000; }},
    {"more_tokens_than_the_limits",
     ErrorCode::invalid_argument,
     {"hidden", "max_num_batched_tokens", "1000000"},
     [](ForwardArgs& a, Batch&) { a.hidden.shape[0] = a.out.shape[0] = 1000000; }},
    {"more_requests_than_the_limits",
     ErrorCode::invalid_argument,
     {"the batch", "max_num_seqs", "1000"},
     [](ForwardArgs&, Batch& b) { b.num_requests = 1000; }},
    {"more_decode_tokens_than_the_limits",
     ErrorCode::invalid_argument,
     {"num_speculative_tokens", "decode tokens", "1000"},
     [](ForwardArgs&, Batch& b) { b.num_decode_tokens = 1000; }},
    {"given_topk_of_a_later_position",
     ErrorCode::invalid_argument,
     {"layer 1 (c4): forward: topk_indices[5, 2], of request 0 (id 1), must be below the 1 keys that position 5 may select, is 30"},
     [](ForwardArgs& a, Batch&) {
       a.skip_topk = true;
       std::fill_n(a.topk_indices.ptr<int32_t>(), a.topk_indices.numel(), -1);
       a.topk_indices.row<int32_t>(5)[2] = 30;
     }},
    {"slot_beyond_the_cache",
     ErrorCode::invalid_argument,
     {"layer 1 (c4): forward: window slot_mapping[3], of request 0 (id 1), must be below ", "is 1099511627776"},
     [](ForwardArgs&, Batch& b) { *b[CacheGroup::window].slot_mapping.row<int64_t>(3) = int64_t{1} << 40; }},
    {"tap_shape",
     ErrorCode::invalid_argument,
     {"q_tap"},
     [](ForwardArgs& a, Batch&) {
       a.q_tap = TensorView::contiguous(a.out.data, DType::bf16, {}, {40, 3, 512});
     }},
};

class V4LayerErrors : public testing::TestWithParam<size_t> {};

TEST_P(V4LayerErrors, NamesTheProblemAndTouchesNothing) {
  LayerFixture fixture(1);
  test::expect_refused(kBadCalls[GetParam()], fixture);
}

std::string bad_call_name(const testing::TestParamInfo<size_t>& test) { return kBadCalls[test.param].name; }
INSTANTIATE_TEST_SUITE_P(BadCalls, V4LayerErrors, testing::Range(size_t{0}, std::size(kBadCalls)), bad_call_name);

// The scale of per-tensor caches is the caller's: one that was forgotten or is no number is found before the compressor writes its keys.
TEST(V4LayerErrors, ScalesOfPerTensorCaches) {
  LayerOptions options;
  options.kv_format = KvFormat::fp8_tensor;
  for (const float scale : {0.0f, -1.0f, NAN, INFINITY}) {
    LayerFixture fixture(1, options);
    fixture.runner->add_request(0);
    const runner::StepRequest step[] = {{0, 40}};
    const Batch& batch = fixture.runner->begin_step(step);
    const Tensor workspace(fixture.device, DType::u8, {static_cast<int64_t>(fixture.runner->layer(0).workspace_bytes())});
    ForwardArgs args;
    args.batch = &batch;
    args.caches = fixture.runner->pool().layer(0);
    args.caches[CacheGroup::window].scale = scale;
    args.hidden = fixture.hidden.view().slice(0, 40);
    args.out = fixture.out.view().slice(0, 40);
    args.topk_indices = fixture.runner->topk_indices();
    args.workspace = workspace_of(workspace);
    const std::vector<std::byte> before = cache_bytes(fixture.runner->pool());
    EXPECT_THROW(fixture.runner->layer(0).forward(args), Error) << scale;
    EXPECT_EQ(before, cache_bytes(fixture.runner->pool())) << "a refused call wrote to a cache";
  }
}

TEST(V4DummyRun, ZerosOutAndTouchesNothing) {
  for (int64_t layer : {0, 1, 2}) {
    LayerFixture fixture(layer);
    fixture.prefill(0, 100);
    const std::vector<std::byte> before = cache_bytes(fixture.runner->pool());
    ForwardArgs args;
    args.dummy_run = true;
    args.hidden = fixture.hidden;
    args.out = fixture.out;
    fixture.runner->layer(0).forward(args);
    EXPECT_EQ(before, cache_bytes(fixture.runner->pool()));
    for (int64_t i = 0; i < fixture.out.view().numel(); ++i) ASSERT_EQ(fixture.out.view().ptr<Bf16>()[i].bits, 0) << i;
  }
}

TEST(V4EmptyStep, NoTokensIsFine) {
  for (int64_t layer : {0, 1, 2}) {
    LayerFixture fixture(layer);
    fixture.runner->add_request(0);
    const runner::StepRequest step[] = {{0, 0}};
    fixture.runner->begin_step(step);
    EXPECT_NO_THROW(fixture.runner->run_layer(0, fixture.hidden.view().slice(0, 0), fixture.out.view().slice(0, 0)));
  }
}

// The output with a used workspace and used caches equals the one with fresh ones: nothing is read before it is written. (Workspace and
// caches full of NaN: V4Properties.PoisonedUnusedRowsChangeNothing.)
TEST(V4Workspace, ContentsDoNotMatter) {
  for (int64_t layer : {0, 1, 2}) {
    LayerFixture a(layer), b(layer);
    const std::vector<float> first = a.prefill(0, 300);
    a.runner->remove_request(0);
    EXPECT_EQ(a.prefill(1, 300), first) << "a used workspace changed the result of layer " << layer;
    EXPECT_EQ(b.prefill(0, 300), first);
  }
}

// A layer that is handed its selection still writes its indexer keys: the next step may select for itself.
TEST(V4SkipTopk, StillWritesIndexerKeys) {
  LayerFixture chosen(1), given(1);
  const std::vector<float> want = chosen.prefill(0, 300);
  given.runner->add_request(0);
  const runner::StepRequest step[] = {{0, 300}};
  given.runner->begin_step(step);
  const TensorView& from = chosen.runner->topk_indices();
  given.device->copy(given.runner->topk_indices().data, from.data, from.bytes(), {});
  ForwardArgs extras;
  extras.skip_topk = true;
  given.runner->run_layer(0, given.hidden.view().slice(0, 300), given.out.view().slice(0, 300), extras);
  for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(to_float(given.out.view().ptr<Bf16>()[i]), want[i]) << i;
  const PagedCache& a = chosen.runner->pool().layer(0)[CacheGroup::c4_indexer];
  const PagedCache& b = given.runner->pool().layer(0)[CacheGroup::c4_indexer];
  for (int64_t slot = 0; slot < 300 / 4; ++slot) {
    ASSERT_EQ(std::memcmp(static_cast<const std::byte*>(a.data) + a.data_offset(slot),
                          static_cast<const std::byte*>(b.data) + b.data_offset(slot), 128),
              0)
        << "entry " << slot;
  }
}

TEST(V4Construction, RefusesMoreHeadsThanTheKernelsTake) {
  ModelConfig config = ModelConfig::load(test::golden_model("v4_fp8"));
  config.num_attention_heads = 256;
  const test::ModelDirectory directory;
  synthesize_checkpoint(config, {.num_layers = 1, .seed = 3}, directory.path());
  const Checkpoint checkpoint(directory.path());
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
  try {
    make(64);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("1 to 128 heads, has 256"), std::string::npos) << error.what();
  }
  options.tp_size = 2;
  EXPECT_NO_THROW(make(64));
  try {
    make(63);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("max_model_len 64 rows, have 63"), std::string::npos) << error.what();
  }
}

TEST(V4Communicator, ReducesOnceAfterTheOutputProjection) {
  struct Counting final : Communicator {
    int rank() const override { return 0; }
    int size() const override { return 1; }
    void all_reduce_sum(const TensorView& tensor, Device&, Stream) override {
      ++calls;
      rows = tensor.shape[0];
      for (int64_t i = 0; i < tensor.numel(); ++i) tensor.ptr<Bf16>()[i] = to_bf16(2 * to_float(tensor.ptr<Bf16>()[i]));
    }
    int calls = 0;
    int64_t rows = 0;
  };
  const auto communicator = std::make_shared<Counting>();
  LayerFixture doubled(2, {}, communicator), plain(2);
  const std::vector<float> twice = doubled.prefill(0, 130), once = plain.prefill(0, 130);
  EXPECT_EQ(communicator->calls, 1);
  EXPECT_EQ(communicator->rows, 130);
  for (size_t i = 0; i < once.size(); ++i) ASSERT_EQ(twice[i], 2 * once[i]) << i;
}

}  // namespace
}  // namespace strata
