// Dense decode attention as problems of the roles in mqa_engine: items are (query, head) pairs of one request, 64 at most, and
// a part of the rows that they see, which are found through the block table.
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

// batch_invariant: a token's rows are cut into at most so many parts, of at least so many tiles, whatever else is in the batch.
inline constexpr int kInvariantSplits = 16, kInvariantTiles = 6;

// Past L1, which may have what was there before the kernel in front.
__device__ __forceinline__ int32_t current(const int32_t* p) { return static_cast<int32_t>(ptx::ld_current_if(true, p, 0)); }

struct DenseArgs {
  static constexpr bool kSparse = false;  // neither sinks nor maxima
  int32_t max_queries, num_heads, num_tokens;
  int32_t max_rows;   // of a request
  const uint16_t* q;  // bf16
  int64_t q_token_stride, q_head_stride;
  const uint8_t* cache;  // rows of bf16, or of e4m3 codes
  float value_scale;     // of codes
  uint32_t page_units;   // 16 bytes each, between pages
  Divisor page_size{1};
  uint32_t num_pages;
  const int32_t* block_table;
  int64_t table_stride;
  const int32_t* query_start_loc;
  const int32_t* seq_lens;
  float scale_log2;  // softmax_scale * log2(e), times the scale of codes
  uint16_t* out;     // bf16
  int64_t out_token_stride, out_head_stride;
  float* lse;  // null: not wanted
  int64_t lse_token_stride, lse_head_stride;
  // What a part adds up to as fp16, what each half of the lanes is to be multiplied by to be its result, and its lse in base 2. Only the
  // latter is there for a part without rows: -inf.
  uint16_t* part_out;
  float2* part_factors;
  float* part_lse;
  bool rows_aligned, out_aligned;  // rows of q and of the cache, of out, start at multiples of 16 bytes

  __device__ __forceinline__ float& lse_of(int64_t token, int64_t head) const {
    return lse[token * lse_token_stride + head * lse_head_stride];
  }
  // Of a request.
  __device__ __forceinline__ Sequence request(int32_t r) const {
    const int32_t first = current(query_start_loc), start = current(query_start_loc + r), end = current(query_start_loc + r + 1);
    return {.token = start - first, .queries = min(max(end - start, 0), max_queries), .rows = current(seq_lens + r)};
  }
  // Rows that a query of a request sees.
  __device__ __forceinline__ int32_t seen(const Sequence& s, int32_t query) const {
    return min(max(s.rows - s.queries + query + 1, 0), max_rows);
  }
};

// Items are a split of the rows of 64 heads of one query token, and results are parts in the order [split, token, head], or whole where
// there is one split. Splits follow from the token's own rows.
struct InvariantArgs : DenseArgs {
  int32_t num_items, head_tiles, num_splits;  // item: the tile of heads fastest, then the request's query, the split, the request
};

// Items are pieces of sequences; a block does those of one span (plan.cuh). A sequence is `gang` tiles of 64 pairs of a request at most,
// by as many blocks, which read the same rows at a time. Parts are in the order [slot, pair of the sequence].
struct SpanArgs : DenseArgs {
  int32_t num_sequences, num_spans, gang;
  int32_t part_rows;  // pairs of a slot
  Divisor sequences_per_request{1}, heads{1};
  Parted* parted;           // [span]
  const int32_t* schedule;  // null: there is none
  bool in_clusters;         // neighbouring spans are a cluster

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
    return max(pieces_of(seen_by_pair(q, min(first + gang * kHeadTile, pairs) - 1), kTileRows), 1);
  }
};

// Rows of a request's pages, from the first row of an item on.
template <class Args, int kRowBytes>
class PageRows {
 public:
  __device__ __forceinline__ PageRows(const Args& args, int32_t request, int32_t first, int32_t seen)
      : a(args), table(args.block_table + request * args.table_stride), first_row(first), visible(seen) {}
  __device__ __forceinline__ int32_t look_up(bool wanted, int32_t position) const {
    const int32_t row = first_row + position;
    return static_cast<int32_t>(ptx::ld_current_if(wanted && row < visible, table + a.page_size.divide(row), 0xFFFFFFFFu));
  }
  __device__ __forceinline__ bool attended(int32_t entry, int32_t) const { return static_cast<uint32_t>(entry) < a.num_pages; }
  __device__ __forceinline__ uint32_t locate(int32_t entry, int32_t position) const {
    const int32_t row = first_row + position, in_page = row - a.page_size.divide(row) * a.page_size.value();
    return static_cast<uint32_t>(entry) * a.page_units + in_page * (kRowBytes / 16);
  }
  __device__ __forceinline__ const uint16_t* address(uint32_t place) const {
    return reinterpret_cast<const uint16_t*>(a.cache + int64_t{place} * 16);
  }
  static __device__ __forceinline__ float factor(int32_t) { return 1.0f; }

 private:
  const Args& a;
  const int32_t* table;
  int32_t first_row, visible;
};

// What both problems have in common. kOfCodes: rows are e4m3 codes.
template <class DenseArgsOf, bool kOfCodes>
struct DenseProblem {
  static constexpr int kDim = kRowDim;
  using Args = DenseArgsOf;
  static constexpr bool kSharesRows = false, kSplit = true, kMappedOut = false, kStartsEarly = true, kLetsOthersBegin = false,
                        kPartsFirst = false, kOnlyParts = false, kDeals = false, kKeepsRows = false, kCodes = kOfCodes;
  static constexpr int kRowBytes = kDim * (kCodes ? 1 : 2);
  using PagesOf = PageRows<Args, kRowBytes>;

  static __device__ __forceinline__ float sink(const Args&, int) { return -INFINITY; }
  static __device__ __forceinline__ float normalizer(float, float total, float) { return total == 0.0f ? 0.0f : ptx::rcp(total); }

 protected:
  // Asks for the first rows of an item, and `count` rows of queries, to come to L2, by so many threads: a chain of three misses of L2 and
  // TLB otherwise. Before the wait for the kernel in front lengths and tables may still change, so nothing but these hints follows from
  // what they hold by now.
  template <class QueryOf>
  static __device__ __forceinline__ void bring_near(int thread, int threads, const PagesOf& rows, int count, const QueryOf& query_of) {
    constexpr int kLine = 128, kEarlyRows = 2 * kTileRows;
    const auto ask = [](const void* row, auto bytes) {
#pragma unroll
      for (int i = 0; i < bytes; i += kLine) ptx::prefetch_l2(static_cast<const uint8_t*>(row) + i);
    };
#pragma unroll 1
    for (int i = thread; i < kEarlyRows + count; i += threads) {
      if (i >= kEarlyRows) {
        ask(query_of(i - kEarlyRows), std::integral_constant<int, 2 * kDim>{});
        continue;
      }
      const int32_t entry = rows.look_up(true, i);
      if (rows.attended(entry, i)) ask(rows.address(rows.locate(entry, i)), std::integral_constant<int, kRowBytes>{});
    }
  }
};

}  // namespace strata::cuda::dense_decode
