// A layer's workspace_bytes() is enough for every forward within its limits: whatever steps there are, wherever an engine's pages lie.
#include "layer_fixture.h"

namespace strata {
namespace {

using test::golden_model;
using test::LayerFixture;

runner::RunnerOptions options_of(BatchLimits limits, PrefillMode mode = PrefillMode::automatic) {
  runner::RunnerOptions options;
  options.layer.limits = limits;
  options.layer.prefill_mode = mode;
  options.total_positions = limits.max_num_seqs * limits.max_model_len;
  return options;
}

// Where a call has fewer queries than there are threads, threads share queries, which takes memory that a larger call does not need. A full
// step may end with such a call: its last chunk has what the others leave over.
TEST(Workspace, IsEnoughForFewQueriesBehindManyOnManyThreads) {
  Config config;
  config.cpu_threads = 64;
  for (const PrefillMode mode : {PrefillMode::automatic, PrefillMode::gathered}) {
    SCOPED_TRACE(static_cast<int>(mode));
    const BatchLimits limits{.max_num_batched_tokens = 128, .max_num_seqs = 8, .max_model_len = 256};
    const Checkpoint checkpoint(golden_model("v4_bf16"));
    runner::ModelRunner runner(checkpoint, {0}, open_device({}, config), default_ops(), default_layers(), options_of(limits, mode));
    const Tensor hidden(runner.device(), DType::bf16, {128, 256}), out(runner.device(), DType::bf16, {128, 256});
    runner.device()->fill(hidden.view().data, 0, hidden.allocated_bytes(), {});
    std::vector<runner::StepRequest> requests;
    for (int64_t id = 0; id < 8; ++id) {
      runner.add_request(id);
      runner.pretend_position(id, 128);
      requests.push_back({id, id == 0 ? 86 : 6});
    }
    ASSERT_EQ(runner.begin_step(requests).num_tokens, 128);
    EXPECT_NO_THROW(runner.run_layer(0, hidden, out));
  }
}

// The first implementation takes no workspace, the second a lot.
OpSet with_a_picky_decode(const std::function<bool(const PagedCache&)>& takes, int64_t bytes) {
  OpSet ops = default_ops();
  Implementation<SparseAttnDecodeParams> any = ops.sparse_attn_decode.implementations().back(), picky = any;
  any.name = "any";
  any.workspace_bytes = [bytes](const SparseAttnDecodeParams&, const Device&) { return static_cast<size_t>(bytes); };
  picky.name = "picky";
  picky.workspace_bytes = [](const SparseAttnDecodeParams&, const Device&) { return size_t{0}; };
  picky.supports = [takes](const SparseAttnDecodeParams& p, const Device&) {
    return takes(p.cache) ? Support::yes() : Support::no("needs another cache");
  };
  ops.sparse_attn_decode.prepend(any);
  ops.sparse_attn_decode.prepend(picky);
  return ops;
}

TEST(Workspace, IsEnoughForPagesAnywhere) {
  constexpr int64_t kBytes = int64_t{1} << 28;
  const auto stride = [](const PagedCache& cache) { return cache.page_stride % 16 == 0; };
  const auto size = [](const PagedCache& cache) { return cache.num_pages * (cache.page_stride / 16) <= int64_t{1} << 31; };
  for (const std::string model : {"v4_fp8", "mla_v32"}) {
    for (const std::function<bool(const PagedCache&)>& takes : {std::function<bool(const PagedCache&)>(stride), {size}}) {
      LayerFixture fixture(golden_model(model), {0}, {}, nullptr, with_a_picky_decode(takes, kBytes));
      EXPECT_GE(fixture.runner->layer(0).workspace_bytes(), static_cast<size_t>(kBytes)) << model;
    }
  }
}

// Requests without tokens count for an op that plans by them.
TEST(Workspace, IsEnoughForAsManyRequestsAsThereMayBe) {
  constexpr int64_t kBytes = int64_t{1} << 20;
  OpSet ops = default_ops();
  Implementation<DenseAttnDecodeParams> by_requests = ops.dense_attn_decode.implementations().back();
  by_requests.workspace_bytes = [](const DenseAttnDecodeParams& p, const Device&) {
    return static_cast<size_t>(p.seq_lens.shape[0] * kBytes);
  };
  ops.dense_attn_decode.prepend(by_requests);
  const Checkpoint checkpoint(golden_model("mla_v3"));
  const BatchLimits limits{.max_num_batched_tokens = 4, .max_num_seqs = 64, .max_model_len = 64};
  runner::ModelRunner runner(checkpoint, {0}, open_device({}), ops, default_layers(), options_of(limits));
  EXPECT_GE(runner.layer(0).workspace_bytes(), static_cast<size_t>(64 * kBytes));
}

}  // namespace
}  // namespace strata
