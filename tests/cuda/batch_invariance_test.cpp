// Batch-invariant sparse decode: a request's results are the same bits run after run, and alone as in a batch.
#include <algorithm>
#include <string>

#include "cuda/cuda_fixture.h"
#include "inputs.h"
#include "ops/attention_case.h"
#include "ops/paging.h"
#include "strata/op_set.h"

namespace strata {
namespace {

struct Shape {
  int64_t heads, queries, topk, extra_topk;
  KvFormat format;
};

class BatchInvariance : public test::CudaTest, public testing::WithParamInterface<Shape> {
 protected:
  static constexpr int64_t kBatch = 9;

  void add_scope(cases::Inputs& in, int64_t topk, PagedCache& cache, TensorView& indices, TensorView& length) const {
    constexpr int32_t kPageSize = 64, kHoles[] = {-1};
    const int64_t num_pages = topk / kPageSize + 3, num_slots = num_pages * kPageSize;
    const std::vector<int64_t> slots = cases::distinct_slots(in.rng(), num_slots, num_slots);
    const bool v4 = GetParam().format == KvFormat::fp8_ds_mla_v4;
    cache = in.cache({.format = GetParam().format, .row_dim = v4 ? 512 : 576, .page_size = kPageSize, .num_pages = num_pages}, slots, 0.1);
    const auto made = cases::make_indices(
        in.rng(), {.rows = kBatch * GetParam().queries, .rows_per_length = GetParam().queries, .width = topk}, slots, slots, kHoles);
    indices = in.values(DType::i32, {kBatch, GetParam().queries, topk}, made.indices);
    length = in.i32(made.lengths);
  }
  SparseAttnDecodeParams make(cases::Inputs& in) const {
    const Shape& s = GetParam();
    SparseAttnDecodeParams p;
    add_scope(in, s.topk, p.cache, p.indices, p.topk_length);
    if (s.extra_topk > 0) add_scope(in, s.extra_topk, p.extra_cache, p.extra_indices, p.extra_topk_length);
    p.q = in.bf16({kBatch, s.queries, s.heads, p.cache.row_dim});
    p.attn_sink = cases::make_sinks(in, cases::Sinks::mixed, s.heads);
    p.softmax_scale = 0.05f;
    p.batch_invariant = true;
    p.out = in.output(DType::bf16, {kBatch, s.queries, s.heads, 512});
    p.lse = in.output(DType::f32, {kBatch, s.heads, s.queries});
    p.max_logits = in.output(DType::f32, {kBatch, s.heads, s.queries});
    return p;
  }
  static SparseAttnDecodeParams requests(SparseAttnDecodeParams p, int64_t first, int64_t count) {
    for (TensorView* view : {&p.q, &p.indices, &p.topk_length, &p.extra_indices, &p.extra_topk_length, &p.out, &p.lse, &p.max_logits}) {
      if (view->present()) *view = view->slice(first, count);
    }
    return p;
  }
  // out, lse and maxima of a run that starts from poisoned outputs.
  std::vector<uint8_t> results(const Implementation<SparseAttnDecodeParams>& op, const SparseAttnDecodeParams& p) {
    for (const TensorView* view : {&p.out, &p.lse, &p.max_logits}) device_->fill(view->data, 0xFF, view->bytes(), {});
    const size_t bytes = op.workspace_bytes(p, *device_);
    const Tensor workspace(device_, DType::u8, {static_cast<int64_t>(bytes) + 1});
    op.run(p, {.device = *device_, .workspace = {workspace.view().data, bytes}});
    std::vector<uint8_t> all;
    for (const TensorView* view : {&p.out, &p.lse, &p.max_logits}) {
      const std::vector<uint8_t> values = bytes_at(view->data, view->bytes());
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
};

size_t differing(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  if (a.size() != b.size()) return std::max(a.size(), b.size());
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += a[i] != b[i];
  return count;
}

TEST_P(BatchInvariance, SameBitsAloneAndAgain) {
  cases::Inputs in(device_, {});
  const SparseAttnDecodeParams all = make(in);
  const OpSet ops = default_ops();
  for (const auto& op : ops.sparse_attn_decode.implementations()) {
    if (!op.supports(all, *device_)) continue;
    SCOPED_TRACE(op.name);
    const std::vector<uint8_t> together = results(op, all);
    EXPECT_EQ(differing(together, results(op, all)), 0) << "run again";
    for (int64_t b = 0; b < kBatch; ++b) {
      const SparseAttnDecodeParams one = requests(all, b, 1);
      std::vector<uint8_t> expected;
      size_t begin = 0;
      for (const TensorView* view : {&one.out, &one.lse, &one.max_logits}) {
        const auto first = together.begin() + static_cast<std::ptrdiff_t>(begin + static_cast<size_t>(b) * view->bytes());
        expected.insert(expected.end(), first, first + static_cast<std::ptrdiff_t>(view->bytes()));
        begin += kBatch * view->bytes();
      }
      EXPECT_EQ(differing(expected, results(op, one)), 0) << "request " << b;
    }
  }
}

constexpr auto kV4 = KvFormat::fp8_ds_mla_v4;
INSTANTIATE_TEST_SUITE_P(Shapes, BatchInvariance,
                         testing::Values(Shape{8, 1, 128, 512, kV4}, Shape{24, 1, 128, 512, kV4}, Shape{64, 1, 128, 0, kV4},
                                         Shape{64, 1, 128, 512, kV4}, Shape{64, 3, 128, 4500, kV4}, Shape{128, 1, 128, 1024, kV4},
                                         Shape{128, 2, 2048, 0, KvFormat::fp8_ds_mla}, Shape{16, 1, 5000, 0, KvFormat::fp8_ds_mla}),
                         [](const auto& p) {
                           return "heads" + std::to_string(p.param.heads) + "_queries" + std::to_string(p.param.queries) + "_rows" +
                                  std::to_string(p.param.topk + p.param.extra_topk) + (p.param.format == kV4 ? "_v4" : "_mla");
                         });

}  // namespace
}  // namespace strata
