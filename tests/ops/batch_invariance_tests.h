// Batch-invariant sparse attention: a request's results are the same bits run after run, and alone as in a batch. For an accelerator's test
// to instantiate.
#pragma once

#include <algorithm>
#include <string>

#include "device_fixture.h"
#include "testkit/harness/inputs.h"
#include "testkit/cases/attention_case.h"
#include "testkit/harness/paging.h"
#include "strata/op_set.h"

namespace strata {

struct DecodeShape {
  DeviceId device;
  int64_t heads, queries, topk, extra_topk;
  KvFormat format;
};
struct PrefillShape {
  DeviceId device;
  int64_t tokens, rows, heads, dim, width;  // tokens: a multiple of 4
};

template <class Params>
std::vector<TensorView> outputs_of(const Params& p) {
  return {p.out, p.lse, p.max_logits};
}

class InvarianceTest : public test::DeviceTest {
 protected:
  using DeviceTest::DeviceTest;

  // out, lse and maxima of a run that starts from poisoned outputs.
  template <class Params>
  std::vector<uint8_t> results(const Implementation<Params>& op, const Params& p) {
    for (const TensorView& view : outputs_of(p)) device_->fill(view.data, 0xFF, view.bytes(), {});
    const int64_t bytes = op.workspace_bytes(p, *device_);
    const Tensor workspace(device_, DType::u8, {bytes + 1});
    op.run(p, {.device = *device_, .workspace = {workspace.view().data, bytes}});
    std::vector<uint8_t> all;
    for (const TensorView& view : outputs_of(p)) {
      const std::vector<uint8_t> values = bytes_at(view.data, view.bytes());
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  static size_t differing(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
    if (a.size() != b.size()) return std::max(a.size(), b.size());
    size_t count = 0;
    for (size_t i = 0; i < a.size(); ++i) count += a[i] != b[i];
    return count;
  }

  // slice(first, count): the call for these entries of `num_entries` alone; each of `counts` at every multiple of it.
  template <class Params, class Slice>
  void check_alone(const Op<Params>& op, const Params& all, int64_t num_entries, const std::vector<int64_t>& counts, const Slice& slice) {
    int checked = 0;
    for (const auto& implementation : op.implementations()) {
      if (!implementation.supports(all, *device_)) continue;
      ++checked;
      SCOPED_TRACE(implementation.name);
      const std::vector<uint8_t> together = results(implementation, all);
      EXPECT_EQ(differing(together, results(implementation, all)), 0) << "run again";
      for (const int64_t count : counts) {
        for (int64_t first = 0; first + count <= num_entries; first += count) {
          const Params one = slice(first, count);
          std::vector<uint8_t> expected;
          size_t begin = 0;
          for (const TensorView& view : outputs_of(one)) {
            const size_t of_entry = view.bytes() / static_cast<size_t>(count);
            const auto from = together.begin() + static_cast<std::ptrdiff_t>(begin + static_cast<size_t>(first) * of_entry);
            expected.insert(expected.end(), from, from + static_cast<std::ptrdiff_t>(view.bytes()));
            begin += static_cast<size_t>(num_entries) * of_entry;
          }
          EXPECT_EQ(differing(expected, results(implementation, one)), 0) << count << " from " << first;
        }
      }
    }
    EXPECT_GT(checked, 0) << "no implementation of " << op.name() << " takes the call";
  }
};

class DecodeInvariance : public InvarianceTest, public testing::WithParamInterface<DecodeShape> {
 protected:
  DecodeInvariance() : InvarianceTest(GetParam().device) {}

  static constexpr int64_t kBatch = 9;

  void add_scope(testkit::Inputs& in, int64_t topk, PagedCache& cache, TensorView& indices, TensorView& length,
                 testkit::Lengths lengths = testkit::Lengths::random) const {
    constexpr int32_t kPageSize = 64, kHoles[] = {-1};
    const int64_t num_pages = topk / kPageSize + 3, num_slots = num_pages * kPageSize;
    const std::vector<int64_t> slots = testkit::distinct_slots(in.rng(), num_slots, num_slots);
    const bool v4 = GetParam().format == KvFormat::fp8_ds_mla_v4;
    cache = in.cache({.format = GetParam().format, .row_dim = v4 ? 512 : 576, .page_size = kPageSize, .num_pages = num_pages}, slots, 0.1);
    const auto made = testkit::make_indices(
        in.rng(), {.rows = kBatch * GetParam().queries, .rows_per_length = GetParam().queries, .width = topk, .lengths = lengths}, slots,
        slots, kHoles);
    indices = in.values(DType::i32, {kBatch, GetParam().queries, topk}, made.indices);
    length = in.i32(made.lengths);
  }
  SparseAttnDecodeParams make(testkit::Inputs& in) const {
    const DecodeShape& s = GetParam();
    SparseAttnDecodeParams p;
    add_scope(in, s.topk, p.cache, p.indices, p.topk_length);
    if (s.extra_topk > 0) add_scope(in, s.extra_topk, p.extra_cache, p.extra_indices, p.extra_topk_length);
    p.q = in.bf16({kBatch, s.queries, s.heads, p.cache.row_dim});
    p.attn_sink = testkit::make_sinks(in, testkit::Sinks::mixed, s.heads);
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
};

TEST_P(DecodeInvariance, SameBitsAloneAndAgain) {
  testkit::Inputs in(device_, {});
  const SparseAttnDecodeParams all = make(in);
  check_alone(default_ops().sparse_attn_decode, all, kBatch, {1},
              [&](int64_t first, int64_t count) { return requests(all, first, count); });
}

// The width of the indices may limit the number of splits, but must not change how they are combined.
TEST_P(DecodeInvariance, SameBitsInWiderIndices) {
  constexpr int64_t kWidth = 9000, kNarrow = 8192;
  testkit::Inputs in(device_, {});
  SparseAttnDecodeParams wide = make(in);
  wide.extra_cache = {}, wide.extra_indices = wide.extra_topk_length = {};
  add_scope(in, kWidth, wide.cache, wide.indices, wide.topk_length, testkit::Lengths::full);  // no entry is nonsense
  std::vector<int32_t> lengths(kBatch);
  for (int32_t& length : lengths) length = static_cast<int32_t>(in.rng().in(kNarrow / 2 + 4, kNarrow + 1));
  wide.topk_length = in.i32(lengths);
  SparseAttnDecodeParams narrow = wide;
  narrow.indices = wide.indices.columns(0, kNarrow);
  const auto op = default_ops().sparse_attn_decode;
  for (const auto& implementation : op.implementations()) {
    if (!implementation.supports(wide, *device_)) continue;
    EXPECT_EQ(differing(results(implementation, wide), results(implementation, narrow)), 0) << implementation.name;
  }
}

class PrefillInvariance : public InvarianceTest, public testing::WithParamInterface<PrefillShape> {
 protected:
  PrefillInvariance() : InvarianceTest(GetParam().device) {}
};

TEST_P(PrefillInvariance, SameBitsInChunksAndAgain) {
  const PrefillShape& s = GetParam();
  testkit::Inputs in(device_, {});
  const std::vector<int64_t> rows = testkit::distinct_slots(in.rng(), s.rows, s.rows);
  const int32_t holes[] = {-1};
  const auto made = testkit::make_indices(in.rng(), {.rows = s.tokens, .width = s.width}, rows, rows, holes);
  const SparseAttnPrefillParams all{.q = in.bf16({s.tokens, s.heads, s.dim}),
                                    .kv = in.bf16({s.rows, s.dim}),
                                    .indices = in.values(DType::i32, {s.tokens, s.width}, made.indices),
                                    .topk_length = in.i32(made.lengths),
                                    .attn_sink = testkit::make_sinks(in, testkit::Sinks::mixed, s.heads),
                                    .softmax_scale = 0.05f,
                                    .batch_invariant = true,
                                    .out = in.output(DType::bf16, {s.tokens, s.heads, 512}),
                                    .lse = in.output(DType::f32, {s.tokens, s.heads}),
                                    .max_logits = in.output(DType::f32, {s.tokens, s.heads})};
  check_alone(default_ops().sparse_attn_prefill, all, s.tokens, {1, s.tokens / 4, s.tokens / 2}, [&](int64_t first, int64_t count) {
    SparseAttnPrefillParams p = all;
    for (TensorView* view : {&p.q, &p.indices, &p.topk_length, &p.out, &p.lse, &p.max_logits}) *view = view->slice(first, count);
    return p;
  });
}

inline std::string decode_shape_name(const testing::TestParamInfo<DecodeShape>& test) {
  const DecodeShape& s = test.param;
  return "heads" + std::to_string(s.heads) + "_queries" + std::to_string(s.queries) + "_rows" + std::to_string(s.topk + s.extra_topk) +
         (s.format == KvFormat::fp8_ds_mla_v4 ? "_v4" : "_mla");
}
inline std::string prefill_shape_name(const testing::TestParamInfo<PrefillShape>& test) {
  return "dim" + std::to_string(test.param.dim) + "_width" + std::to_string(test.param.width);
}

}  // namespace strata
