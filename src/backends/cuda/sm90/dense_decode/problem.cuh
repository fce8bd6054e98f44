// Dense decode attention as a problem of the roles in sm90/sparse_prefill: items are parts of the rows of 64 heads of one query token,
// found through the block table. A block never mixes query tokens, so that no row is read that its heads do not see.
#pragma once

#include "backends/cuda/common/divisor.h"
#include "backends/cuda/ptx/arithmetic.cuh"
#include "backends/cuda/ptx/bulk_copy.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/sm90/sparse_prefill/pipeline.cuh"

namespace strata::cuda::dense_decode {

inline constexpr int kRowDim = 576;
inline constexpr int kTileRows = 48;  // three whole tiles fit, with which a call of few rows starts faster than with 64 rows in parts

// batch_invariant: a token's rows are cut into at most so many parts, of at least so many tiles, whatever else is in the batch.
inline constexpr int kInvariantSplits = 16, kInvariantTiles = 6;

struct DenseArgs {
  static constexpr bool kSparse = false;  // neither sinks nor maxima
  // Item: the tile of heads fastest, then the request's query, the split, the request; where a cluster merges parts, the split before all.
  int32_t num_items, head_tiles, max_queries, num_splits;
  int32_t tiles_per_split;  // 0: cut for batch_invariant
  int32_t num_heads, num_tokens;
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
  // With several splits, [split, token, head]: what a part adds up to as fp16, what each half of the lanes is to be multiplied by to be its
  // result, and its lse in base 2. Only the latter is there for a part without rows: -inf.
  uint16_t* part_out;
  float2* part_factors;
  float* part_lse;
  bool rows_aligned, out_aligned;  // rows of q and of the cache, of out, start at multiples of 16 bytes

  __device__ __forceinline__ float& lse_of(int64_t token, int64_t head) const {
    return lse[token * lse_token_stride + head * lse_head_stride];
  }
};

// kOfCodes: rows are e4m3 codes. kMerges: the two parts of a token's rows are the items of a cluster's blocks, which merge them; otherwise
// a kernel of its own does.
template <bool kOfCodes, bool kMerges>
struct DenseProblem {
  static constexpr int kDim = kRowDim;
  using Shape = sparse_prefill::Shape<kDim, kTileRows>;
  using Args = DenseArgs;
  static constexpr bool kSharesRows = false;
  static constexpr bool kSplit = true, kInCluster = kMerges;
  static constexpr bool kMappedOut = false;
  static constexpr bool kStartsEarly = true, kLetsOthersBegin = false, kPartsFirst = false, kOnlyParts = false, kDeals = false;
  static constexpr bool kKeepsRows = false, kCodes = kOfCodes;
  static constexpr int kRows = Shape::kRows;
  static constexpr int kRowBytes = kDim * (kCodes ? 1 : 2);

  struct Item {
    int32_t request, split, first_head;
    int32_t token;      // -1: the request has no such query
    int32_t visible;    // rows of the token
    int32_t first_row;  // of the part
    int32_t tiles;      // 0: nothing to do
    __device__ __forceinline__ Item(const DenseArgs& a, int32_t item) {
      const auto take = [&](int32_t count) {
        const int32_t rest = item / count, taken = item - rest * count;
        item = rest;
        return taken;
      };
      if (kMerges) split = take(a.num_splits);
      first_head = take(a.head_tiles) * sparse_prefill::kHeadTile;
      const int32_t query = take(a.max_queries);
      if (!kMerges) split = take(a.num_splits);
      request = item;
      const int32_t begin = current(a.query_start_loc), start = current(a.query_start_loc + request),
                    queries = current(a.query_start_loc + request + 1) - start, rows = current(a.seq_lens + request);
      token = query < queries ? start - begin + query : -1;
      visible = min(max(rows - queries + query + 1, 0), a.max_rows);
      const int32_t all = (visible + kRows - 1) / kRows;
      const int32_t part =
          a.tiles_per_split > 0 ? a.tiles_per_split : max(kInvariantTiles, (all + kInvariantSplits - 1) / kInvariantSplits);
      first_row = split * part * kRows;
      tiles = min(all - split * part, part);
      // Without splits a token without rows has results too: those of a tile of no rows.
      tiles = token < 0 ? 0 : max(tiles, a.num_splits == 1 ? 1 : 0);
    }

   private:
    // Past L1, which may have what was there before the kernel in front.
    static __device__ __forceinline__ int32_t current(const int32_t* p) { return static_cast<int32_t>(ptx::ld_current_if(true, p, 0)); }
  };

  static __device__ __forceinline__ int64_t part_index(const DenseArgs& a, const Item& item, int head) {
    return (int64_t{item.split} * a.num_tokens + item.token) * a.num_heads + head;
  }

  // An item without tiles, by the logits role.
  static __device__ __forceinline__ void mark_empty(const DenseArgs& a, const Item& item) {
    const int head = item.first_head + threadIdx.x % kWarpgroup;
    if (item.token >= 0 && head < min(item.first_head + sparse_prefill::kHeadTile, a.num_heads))
      a.part_lse[part_index(a, item, head)] = -INFINITY;
  }

  static __device__ __forceinline__ float sink(const DenseArgs&, int) { return -INFINITY; }
  static __device__ __forceinline__ float normalizer(float, float total, float) { return total == 0.0f ? 0.0f : ptx::rcp(total); }
  // Where a cluster merges parts, their lse is the merge's, out of shared memory.
  static __device__ __forceinline__ void store_sums(const DenseArgs& a, const Item& item, int head, float maximum, float total) {
    if constexpr (kMerges) return;
    const bool empty = total == 0.0f;
    const float lse = maximum + __log2f(total);
    if (a.num_splits > 1) {
      a.part_lse[part_index(a, item, head)] = empty ? -INFINITY : lse;
    } else if (a.lse != nullptr) {
      a.lse_of(item.token, head) = empty ? INFINITY : lse * kLn2;
    }
  }

  // Where a cluster merges parts.
  static __device__ __forceinline__ int32_t first_head(const DenseArgs& a, uint32_t item) {
    return static_cast<int32_t>(item) / a.num_splits % a.head_tiles * sparse_prefill::kHeadTile;
  }

  static __device__ __forceinline__ uint16_t* out(const DenseArgs& a, int32_t token, int head) {
    return a.out + token * a.out_token_stride + head * a.out_head_stride;
  }
  static __device__ __forceinline__ uint16_t* part(const DenseArgs& a, const Item& item, int head) {
    return a.part_out + part_index(a, item, head) * sparse_prefill::kValueDim;
  }
  static __device__ __forceinline__ float& part_factor(const DenseArgs& a, const Item& item, int head, int half) {
    return reinterpret_cast<float*>(a.part_factors + part_index(a, item, head))[half];
  }

  class Rows {
   public:
    __device__ __forceinline__ Rows(const DenseArgs& args, const Item& item)
        : a(args), table(args.block_table + item.request * args.table_stride), first_row(item.first_row), visible(item.visible) {}
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
    const DenseArgs& a;
    const int32_t* table;
    int32_t first_row, visible;
  };

  // What the block reads first to L2, a chain of three misses of L2 and TLB otherwise. Before the wait for the kernel in front lengths and
  // tables may still change, so nothing but these hints follows from what they hold by now.
  static __device__ __forceinline__ void bring_near(const DenseArgs& a) {
    constexpr int kLine = 64, kLines = kDim / kLine, kRowLines = (kRowBytes + 127) / 128, kEarlyTiles = 2;  // bf16 of 128 bytes
    const Item item(a, blockIdx.x);
    if (item.tiles == 0 || static_cast<uint32_t>(item.token) >= static_cast<uint32_t>(a.num_tokens)) return;
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const uint16_t* q = a.q + item.token * a.q_token_stride + item.first_head * a.q_head_stride;
    const int heads = min(sparse_prefill::kHeadTile, a.num_heads - item.first_head);
    for (int i = thread; i < heads * kLines; i += threads) ptx::prefetch_l2(q + i / kLines * a.q_head_stride + i % kLines * kLine);
    const Rows rows(a, item);
    for (int i = thread; i < kEarlyTiles * kRows * kRowLines; i += threads) {
      const int position = i / kRowLines;
      const int32_t entry = rows.look_up(true, position);
      if (rows.attended(entry, position)) ptx::prefetch_l2(rows.address(rows.locate(entry, position)) + i % kRowLines * kLine);
    }
  }
};

}  // namespace strata::cuda::dense_decode
