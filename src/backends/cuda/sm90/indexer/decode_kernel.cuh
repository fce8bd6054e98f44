// Logits of the lightning indexer on Hopper for few tokens of a request, fp8: memory-bound.
//
// Each warpgroup has a part of all tiles of all tokens, in order, and a ring of tiles in shared memory that the copy engine fills, a tile
// (8192 bytes of rows, 256 of scales) in two copies. One thread starts the copy of a later tile as soon as a slot has been read, also
// beyond the end of a token, so that the ring does not run empty between requests.
//
// Floor: 132 bytes a row at 4.3 TB/s: one tile in 450 cycles of an SM, in which the product takes 128 and the epilogue about 120
// issue slots. In flight: 3 x 6 x 8448 = 152 KB an SM.
#pragma once

#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/sm90/indexer/logits_common.cuh"
#include "backends/cuda/smxx/indexer/order_key.cuh"

namespace strata::cuda::sm90 {

inline constexpr int kSlotRowBytes = kTileRows * kIndexerDim;
inline constexpr int kSlotBytes = kSlotRowBytes + kTileRows * 4;

// Walks the tiles of a range, over the ends of tokens.
class TileCursor {
 public:
  __device__ TileCursor(const LogitsArgs& a, const WorkRange& range) : a_(a), range_(range) { enter_token(); }
  __device__ bool done() const { return tiles_.begin >= tiles_.end; }
  __device__ int64_t token() const { return tiles_.group; }
  __device__ int tile() const { return tiles_.begin; }
  __device__ void next() {
    if (++tiles_.begin >= tiles_.end) enter_token();
  }

 private:
  __device__ void enter_token() {
    do {
      if (!next_tiles<1>(a_, range_, tiles_)) tiles_ = {0, 0, 0};
    } while (done() && range_.left > 0);
  }
  const LogitsArgs& a_;
  WorkRange range_;
  Tiles tiles_;
};

// Starts the copies of a cursor's tiles, a page number ahead. One thread.
class TileLoader {
 public:
  __device__ TileLoader(const LogitsArgs& a, const WorkRange& range) : a_(a), cursor_(a, range) {}
  // Passes over tiles, and finds out where the next one is.
  __device__ void skip(int tiles) {
    for (int i = 0; i < tiles && !cursor_.done(); ++i) cursor_.next();
    look_up();
  }
  __device__ bool done() const { return cursor_.done(); }
  __device__ void load(uint32_t slot, uint32_t barrier) {
    const uint8_t* const page = a_.cache + int64_t{page_} * a_.page_stride;
    const int row = (cursor_.tile() - block_ * a_.page_tiles.value()) * kTileRows;
    ptx::mbarrier_arrive_expect_tx(barrier, kSlotBytes);
    if (a_.scales_offset == kSlotRowBytes) {  // a page of one tile: its scales are behind its rows
      ptx::bulk_load(slot, page, kSlotBytes, barrier, policy_);
    } else {
      ptx::bulk_load(slot, page + row * kIndexerDim, kSlotRowBytes, barrier, policy_);
      ptx::bulk_load(slot + kSlotRowBytes, page + a_.scales_offset + row * 4, kTileRows * 4, barrier, policy_);
    }
    skip(1);
  }

 private:
  __device__ void look_up() {
    if (cursor_.done()) return;
    if (cursor_.token() != token_) {
      token_ = cursor_.token();
      table_ = a_.block_table + a_.token_to_req[token_] * a_.table_stride;
    }
    block_ = a_.page_tiles.divide(cursor_.tile());
    page_ = __ldg(table_ + block_);
  }
  const LogitsArgs& a_;
  TileCursor cursor_;
  const uint64_t policy_ = ptx::evict_first_policy();
  int64_t token_ = -1;
  const int32_t* table_ = nullptr;
  int block_ = 0, page_ = 0;
};

// Into L2, while the kernel in front may still run: what the addresses of the first tiles depend on, one after the other. A hint; what is
// written until the kernels in front have ended is seen all the same.
__device__ __forceinline__ void prefetch_addresses(const LogitsArgs& a) {
  constexpr int kLine = 32;  // numbers
  const int64_t first = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kLine;
  if (first < a.num_tokens) {
    ptx::prefetch_l2(a.lengths + first);
    ptx::prefetch_l2(a.token_to_req + first);
  }
  if (first < a.table_entries) ptx::prefetch_l2(a.block_table + first);
}

// kMaxima: a.maxima gets the largest of each kMaximaRows logits, which are a warp's of a tile.
template <bool kMaxima>
__global__ void __launch_bounds__(128 * kDecodeWarpgroups, 1) indexer_logits_decode_kernel(const __grid_constant__ LogitsArgs a) {
  using Score = Scorer<64, 1>;
  extern __shared__ uint8_t dynamic[];
  __shared__ WorkSearch searches[kDecodeWarpgroups];
  __shared__ alignas(8) uint64_t barriers[kDecodeWarpgroups][kDecodeSlots];
  prefetch_addresses(a);

  const int warpgroup = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);  // the same in a warp, for the compiler too
  uint8_t* const shared = dynamic + (1024 - __cvta_generic_to_shared(dynamic) % 1024) % 1024;
  Score scorer(a, shared + warpgroup * Score::kQueryBytes);
  uint8_t* const slots = shared + kDecodeWarpgroups * Score::kQueryBytes + warpgroup * (kDecodeSlots * kSlotBytes);
  const auto slot_address = static_cast<uint32_t>(__cvta_generic_to_shared(slots));
  const auto barrier_address = static_cast<uint32_t>(__cvta_generic_to_shared(barriers[warpgroup]));
  const bool loads = threadIdx.x % 128 == 0;
  if (loads) {
    for (int i = 0; i < kDecodeSlots; ++i) ptx::mbarrier_init(barrier_address + 8 * i, 1);
    ptx::fence_mbarrier_init();
  }
  ptx::wait_for_previous_kernel();
  ptx::launch_dependents();
  // Addresses begin with a request: of few tokens all lie in one line, which comes beside the lengths.
  load_line(a.token_to_req);
  const WorkRange range = find_work<1>(a, searches[warpgroup], warpgroup, int64_t{blockIdx.x} * kDecodeWarpgroups + warpgroup,
                                       int64_t{gridDim.x} * kDecodeWarpgroups);
  if (range.left == 0) return;

  // A thread for each slot, so that the first page numbers are not waited for one after another.
  WorkRange to_load = range;
  if (threadIdx.x % 128 >= kDecodeSlots) to_load.left = 0;
  TileLoader loader(a, to_load);
  loader.skip(threadIdx.x % 128);
  if (!loader.done()) loader.load(slot_address + threadIdx.x % 128 * kSlotBytes, barrier_address + threadIdx.x % 128 * 8);
  if (loads) loader.skip(kDecodeSlots - 1);

  // Threads of a quad take their two 16-byte pieces of a row in an order that spreads a warp's reads over the banks.
  const int odd = scorer.lane / 4 % 2;
  const int upper = (threadIdx.x % 128 / 32 * 16 + scorer.lane / 4) * kIndexerDim + scorer.quad * 16;
  const int own_row = scorer.own_row();
  int64_t token = -1;
  float* out = nullptr;
  int rows = 0, rows_to_write = 0;
  int slot = 0;
  uint32_t parity = 0;
  for (TileCursor cursor(a, range); !cursor.done(); cursor.next()) {
    if (cursor.token() != token) {
      token = cursor.token();
      out = a.logits + token * a.logits_stride;
      rows = scored_rows(a, token);
      rows_to_write = scorer.writes() ? rows : 0;
      warpgroup_sync(warpgroup);  // the queries before have been used
      scorer.load_queries(token);
      ptx::fence_proxy_async();
      warpgroup_sync(warpgroup);
    }
    ptx::mbarrier_wait(barrier_address + 8 * slot, parity);
    const uint8_t* const tile = slots + slot * kSlotBytes;
    uint4 keys[2][2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint4 first = *reinterpret_cast<const uint4*>(tile + upper + r * 8 * kIndexerDim + 64 * odd);
      const uint4 second = *reinterpret_cast<const uint4*>(tile + upper + r * 8 * kIndexerDim + 64 * (1 - odd));
      keys[r][0] = odd != 0 ? second : first;
      keys[r][1] = odd != 0 ? first : second;
    }
    const float scale = *reinterpret_cast<const float*>(tile + kSlotRowBytes + own_row * 4);
    float sums[Score::kSums];
    scorer.multiply(sums, keys, 0);
    warpgroup_sync(warpgroup);  // the slot has been read
    if (loads && !loader.done()) loader.load(slot_address + slot * kSlotBytes, barrier_address + 8 * slot);
    ptx::wgmma_wait<0>();
    const float logit = scorer.weighted_sum(sums) * scale;
    const int row = cursor.tile() * kTileRows + own_row;
    if (row < rows_to_write) out[row] = logit;
    if constexpr (kMaxima) {
      const uint32_t largest = __reduce_max_sync(0xFFFFFFFFu, row < rows ? order_key(logit) : 0);
      if (scorer.lane == 0 && row < rows) a.maxima[token * a.maxima_stride + row / kMaximaRows] = logit_of(largest);
    }
    if (++slot == kDecodeSlots) {
      slot = 0;
      parity ^= 1;
    }
  }
}

}  // namespace strata::cuda::sm90
