// Dense decode attention as problems of the roles in mqa_engine. Items are up to 64 (query, head) pairs of one request, with a split of the
// rows that they see. Rows are found through the block table.
#pragma once

#include <type_traits>

#include "backends/cuda/dense_attn_decode/sm90/plan.cuh"
#include "backends/cuda/device/divisor.h"
#include "backends/cuda/mqa_engine/pipeline.cuh"
#include "backends/cuda/ptx/arithmetic.cuh"
#include "backends/cuda/ptx/bulk_copy.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"

namespace strata::cuda::dense_decode {

using sparse_prefill::kHeadTile, sparse_prefill::kValueDim;

static_assert(kHeadTile == kTilePairs);

// batch_invariant: a token's rows are cut into at most kInvariantSplits splits of at least kInvariantTiles tiles, whatever else is in the
// batch.
inline constexpr int kInvariantSplits = 16, kInvariantTiles = 6;

// Bypasses L1, which may hold values from before the preceding kernel.
__device__ __forceinline__ int32_t current(const int32_t* p) { return static_cast<int32_t>(ptx::ld_current_if(true, p, 0)); }

struct DenseArgs {
  static constexpr bool kSparse = false;  // neither sinks nor maxima
  int32_t max_queries, num_heads, num_tokens;
  int32_t max_rows;   // upper bound of a request's rows
  bool causal;        // false: every query sees what the last one does
  const uint16_t* q;  // bf16
  int64_t q_token_stride, q_head_stride;
  const uint8_t* cache;  // rows of bf16 or e4m3
  float value_scale;     // scale of e4m3 values
  // Distances of pages and of rows of a page, in units of 16 bytes.
  uint32_t page_units, row_units;
  Divisor page_size{1};
  uint32_t num_pages;
  const int32_t* block_table;
  int64_t table_stride;
  const int32_t* query_start_loc;
  const int32_t* seq_lens;
  float scale_log2;  // softmax_scale * log2(e), times the scale of e4m3 values
  uint16_t* out;     // bf16
  int64_t out_token_stride, out_head_stride;
  float* lse;  // null: not written
  int64_t lse_token_stride, lse_head_stride;
  // A split's sums as fp16, the factor of each half of the dimensions that gives its result, and its lse in base 2. A split without rows
  // has only lse = -inf.
  uint16_t* split_out;
  float2* split_factors;
  float* split_lse;
  bool rows_aligned, out_aligned;  // rows of q and of the cache, and of out, are 16-byte aligned

  __device__ __forceinline__ float& lse_of(int64_t token, int64_t head) const {
    return lse[token * lse_token_stride + head * lse_head_stride];
  }
  // The sequence of a request.
  __device__ __forceinline__ Sequence request(int32_t r) const {
    const int32_t first = current(query_start_loc), start = current(query_start_loc + r), end = current(query_start_loc + r + 1);
    return {.token = start - first, .queries = min(max(end - start, 0), max_queries), .rows = current(seq_lens + r)};
  }
  // Number of rows that a query of a request sees.
  __device__ __forceinline__ int32_t seen(const Sequence& s, int32_t query) const {
    return seen_if_causal(s, causal ? query : s.queries - 1);
  }
  __device__ __forceinline__ int32_t seen_if_causal(const Sequence& s, int32_t query) const {
    return min(max(s.rows - s.queries + query + 1, 0), max_rows);
  }
};

// Items are a split of the rows of 64 heads of one query token. Results are splits in the order [split, token, head], or whole where there
// is one split. Splits follow from the token's own rows.
struct InvariantArgs : DenseArgs {
  int32_t num_items, head_tiles, num_splits;  // items, fastest first: tile of heads, query of the request, split, request
};

// Items are splits of sequences; a CTA processes those of one work range (plan.cuh). A sequence is at most `gang` tiles of 64 pairs of a
// request, computed by as many CTAs, which read the same rows at the same time. Splits are in the order [slot, pair of the sequence].
struct WorkRangeArgs : DenseArgs {
  int32_t num_sequences, num_work_ranges, gang;
  int32_t split_pairs;  // pairs of a slot
  Divisor sequences_per_request{1}, heads{1};
  SplitSequence* split_sequences;  // [work range]
  const int32_t* schedule;         // null: no schedule
  bool in_clusters;                // neighbouring ranges are a cluster

  __device__ __forceinline__ int32_t request_of(int32_t s) const { return sequences_per_request.divide(s); }
  __device__ __forceinline__ int32_t first_pair(int32_t s) const {
    return (s - request_of(s) * sequences_per_request.value()) * gang * kHeadTile;
  }
  __device__ __forceinline__ Sequence sequence(int32_t s) const { return request(request_of(s)); }
  __device__ __forceinline__ int32_t seen_by_pair(const Sequence& q, int32_t pair) const { return seen(q, heads.divide(pair)); }
  // A sequence that sees no row has a tile too, and results.
  __device__ __forceinline__ int32_t tiles(const Sequence& q, int32_t s) const {
    const int32_t first = first_pair(s), pairs = q.queries * num_heads;
    if (first >= pairs) return 0;
    return max(ceil_div32(seen_by_pair(q, min(first + gang * kHeadTile, pairs) - 1), kTileRows), 1);
  }
};

// Rows of a request's pages, from the first row of an item on.
template <class Args>
class PageRows {
 public:
  __device__ __forceinline__ PageRows(const Args& args, int32_t request, int32_t first, int32_t seen)
      : a(args), table(args.block_table + request * args.table_stride), first_row(first), visible(seen) {}
  __device__ __forceinline__ int32_t look_up(bool valid, int32_t position) const {
    const int32_t row = first_row + position;
    return static_cast<int32_t>(ptx::ld_current_if(valid && row < visible, table + a.page_size.divide(row), 0xFFFFFFFFu));
  }
  __device__ __forceinline__ bool attended(int32_t entry, int32_t) const { return static_cast<uint32_t>(entry) < a.num_pages; }
  __device__ __forceinline__ uint32_t locate(int32_t entry, int32_t position) const {
    const int32_t row = first_row + position, in_page = row - a.page_size.divide(row) * a.page_size.value();
    return static_cast<uint32_t>(entry) * a.page_units + in_page * a.row_units;
  }
  __device__ __forceinline__ const uint16_t* address(uint32_t location) const {
    return reinterpret_cast<const uint16_t*>(a.cache + int64_t{location} * 16);
  }
  static __device__ __forceinline__ float factor(int32_t) { return 1.0f; }

 private:
  const Args& a;
  const int32_t* table;
  int32_t first_row, visible;
};

// What both problems have in common. kE4m3: rows are e4m3.
template <class DenseArgsOf, bool kE4m3>
struct DenseProblem {
  static constexpr int kDim = kRowDim;
  using Args = DenseArgsOf;
  static constexpr bool kSharesRows = false, kSplit = true, kMappedOut = false, kStartsEarly = true, kLaunchesDependentsAtStart = false,
                        kSplitsFirst = false, kOnlySplits = false, kDynamicSchedule = false, kKeepsRows = false, kQuantized = kE4m3;
  static constexpr int kRowBytes = kDim * (kQuantized ? 1 : 2);
  using PagesOf = PageRows<Args>;

  static __device__ __forceinline__ float sink(const Args&, int) { return -INFINITY; }
  static __device__ __forceinline__ float normalizer(float, float total, float) { return total == 0.0f ? 0.0f : ptx::rcp(total); }

 protected:
  // Prefetches the first rows of an item, and `count` rows of queries, to L2, by num_threads threads: otherwise a chain of three misses of
  // L2 and TLB. Before the wait for the preceding kernel, lengths and tables may still change, so their values are used for these hints
  // only.
  template <class QueryOf>
  static __device__ __forceinline__ void prefetch(int thread, int threads, const PagesOf& rows, int count, const QueryOf& query_of) {
    constexpr int kLine = 128, kEarlyRows = 2 * kTileRows;
    const auto prefetch_row = [](const void* row, auto bytes) {
#pragma unroll
      for (int i = 0; i < bytes; i += kLine) ptx::prefetch_l2(static_cast<const uint8_t*>(row) + i);
    };
#pragma unroll 1
    for (int i = thread; i < kEarlyRows + count; i += threads) {
      if (i >= kEarlyRows) {
        prefetch_row(query_of(i - kEarlyRows), std::integral_constant<int, 2 * kDim>{});
        continue;
      }
      const int32_t entry = rows.look_up(true, i);
      if (rows.attended(entry, i)) prefetch_row(rows.address(rows.locate(entry, i)), std::integral_constant<int, kRowBytes>{});
    }
  }
};

}  // namespace strata::cuda::dense_decode
