// Logits of the lightning indexer on Hopper for few tokens of a request, fp8: memory-bound.
//
// Each warpgroup has a part of all tiles of all tokens, in order, and a ring of tiles in shared memory that the copy engine fills, a tile
// (8192 bytes of rows, 256 of scales) in two copies. One thread starts the copy of a later tile as soon as a slot has been read, also
// beyond the end of a token, so that the ring does not run empty between requests.
//
// Floor: 132 bytes a row at 4.3 TB/s: one tile in 450 cycles of an SM, in which the product takes 128 and the epilogue about 120
// issue slots. In flight: 3 x 4 x 8448 = 101 KB an SM.
#pragma once

#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/sm90/indexer/scorer.cuh"
#include "backends/cuda/sm90/indexer/work.cuh"
#include "backends/cuda/smxx/indexer/order_key.cuh"

namespace strata::cuda::sm90 {

template <int kWarpgroups>
struct alignas(1024) DecodeShared {
  uint8_t queries[kWarpgroups][Scorer<64, 1>::kQueryBytes];
  uint8_t rows[kWarpgroups][kDecodeSlots][kRowBytes];
  float scales[kWarpgroups][kDecodeSlots][kTileRows];
  float weights[kWarpgroups][64];
  uint64_t full[kWarpgroups][kDecodeSlots];
};

// Walks the tiles of a range, over the ends of tokens.
class TileCursor {
 public:
  __device__ TileCursor(const LogitsArgs& a, const WorkRange& range) : a_(a), range_(range) { enter_token(); }
  __device__ bool done() const { return tiles_.begin >= tiles_.end; }
  __device__ int64_t token() const { return tiles_.group; }
  __device__ int tile() const { return tiles_.begin; }
  __device__ void skip(int count) {
    while (count > 0 && !done()) {
      const int here = min(count, tiles_.end - tiles_.begin);
      tiles_.begin += here;
      count -= here;
      if (done()) enter_token();
    }
  }
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
  __device__ void skip(int tiles) { cursor_.skip(tiles); }
  __device__ void next() { cursor_.next(); }
  // Finds out where the tile is.
  __device__ void look_up() {
    if (cursor_.done()) return;
    if (cursor_.token() != token_) {
      token_ = cursor_.token();
      table_ = a_.block_table + a_.token_to_req[token_] * a_.table_stride;
    }
    block_ = a_.page_tiles.divide(cursor_.tile());
    page_ = __ldg(table_ + block_);
  }
  __device__ bool done() const { return cursor_.done(); }
  template <class Shared>
  __device__ void load(Shared& s, int warpgroup, int slot) {
    const int row = (cursor_.tile() - block_ * a_.page_tiles.value()) * kTileRows;
    load_tile(a_, page_, row, s.rows[warpgroup][slot], s.scales[warpgroup][slot], &s.full[warpgroup][slot], policy_);
  }

 private:
  const LogitsArgs& a_;
  TileCursor cursor_;
  const uint64_t policy_ = ptx::evict_first_policy();  // what stays in L2 is the logits
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

// Queries and weights of a token, by all threads of a warpgroup but the first `idle`.
template <class Shared>
__device__ __forceinline__ void load_token(const LogitsArgs& a, Shared& s, int warpgroup, int64_t token, uint32_t idle) {
  const uint32_t thread = threadIdx.x % 128 - idle, threads = 128 - idle;
  Scorer<64, 1>::load_queries(a, s.queries[warpgroup], token, thread, threads);
  if (thread < 64) s.weights[warpgroup][thread] = Scorer<64, 1>::weight(a, token, static_cast<int>(thread));
}

// kWarpgroups: of a block. kMaxima: a.maxima gets the largest of each kMaximaRows logits, which are a warp's of a tile.
template <int kWarpgroups, bool kMaxima>
__global__ void __maxnreg__(kDecodeRegisters) indexer_logits_decode_kernel(const __grid_constant__ LogitsArgs a) {
  extern __shared__ uint8_t dynamic[];
  auto& s = *reinterpret_cast<DecodeShared<kWarpgroups>*>(dynamic + (1024 - __cvta_generic_to_shared(dynamic) % 1024) % 1024);
  prefetch_addresses(a);

  const int warpgroup = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);  // the same in a warp, for the compiler too
  const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32, quad = thread % 4;
  const bool loads = thread == 0;
  if (loads) {
    for (int i = 0; i < kDecodeSlots; ++i) ptx::mbarrier_init(ptx::shared_address(&s.full[warpgroup][i]), 1);
    ptx::fence_mbarrier_init();
    ptx::prefetch_tensor_map(&a.rows_map);
  }
  ptx::wait_for_previous_kernel();
  ptx::launch_dependents();
  // Addresses begin with a request: of few tokens all lie in one line, which comes beside the lengths.
  load_line(a.token_to_req);
  // Of few tiles those that are left over go to different SMs.
  const WorkRange range = find_work<1>(a, static_cast<int>(gridDim.x) * warpgroup + static_cast<int>(blockIdx.x));
  if (range.left == 0) return;

  TileCursor cursor(a, range);
  if (cursor.done()) return;
  int64_t token = cursor.token();

  // The first tiles are a warp's, the first queries the others': behind all the tiles these would take 4 us.
  WorkRange to_load = range;
  if (thread >= kDecodeSlots) to_load.left = 0;
  TileLoader loader(a, to_load);
  if (thread < 32) {
    // A thread for each slot, so that the page numbers are not waited for one after another: threads of a warp that a loop has parted stay
    // so without a barrier.
    loader.skip(thread);
    __syncwarp();
    loader.look_up();
    __syncwarp();
    if (!loader.done()) loader.load(s, warpgroup, thread);
    __syncwarp();
    if (loads) {
      loader.skip(kDecodeSlots);
      loader.look_up();
    }
  } else {
    load_token(a, s, warpgroup, token, 32);
  }
  warpgroup_sync(warpgroup);
  Scorer<64, 1> scorer;
  const auto set_weights = [&] { scorer.set_weights([&](int column) { return s.weights[warpgroup][column]; }); };
  set_weights();

  const int own_row = thread / 32 * 16 + lane / 4 + 8 * (quad & 1);
  const uint32_t queries = ptx::shared_address(s.queries[warpgroup]);
  uint32_t tiles = ptx::shared_address(s.rows[warpgroup]), scales = ptx::shared_address(&s.scales[warpgroup][0][own_row]),
           full = ptx::shared_address(s.full[warpgroup]);
  asm volatile("" : "+r"(tiles), "+r"(scales), "+r"(full));  // or they would be found out anew for every tile
  float* out = a.logits + token * a.logits_stride;
  int rows = scored_rows(a, token);
  int slot = 0;
  uint32_t parity = 0;
  for (; !cursor.done(); cursor.next()) {
    if (cursor.token() != token) {
      token = cursor.token();
      out = a.logits + token * a.logits_stride;
      rows = scored_rows(a, token);
      warpgroup_sync(warpgroup);  // the queries before have been used
      load_token(a, s, warpgroup, token, 0);
      warpgroup_sync(warpgroup);
      set_weights();
    }
    ptx::mbarrier_wait(full + 8 * slot, parity);
    float sums[Scorer<64, 1>::kSums];
    multiply(sums, tiles + kRowBytes * slot, queries);
    const float scale = ptx::ld_shared_f32(scales + kScaleBytes * slot);
    ptx::wgmma_wait<0>();
    warpgroup_sync(warpgroup);  // the slot has been read
    if (loads && !loader.done()) {
      loader.load(s, warpgroup, slot);
      loader.next();
      loader.look_up();
    }
    const float logit = scorer.weighted_sum(sums) * scale;
    const int row = cursor.tile() * kTileRows + own_row;
    if (row < rows && quad < 2) out[row] = logit;
    if constexpr (kMaxima) {
      const uint32_t largest = __reduce_max_sync(0xFFFFFFFFu, row < rows ? order_key(logit) : 0);
      const int group = cursor.tile() * (kTileRows / kMaximaRows) + thread / 32;
      if (lane == 0 && group * kMaximaRows < rows) a.maxima[token * a.maxima_stride + group] = logit_of(largest);
    }
    if (++slot == kDecodeSlots) {
      slot = 0;
      parity ^= 1;
    }
  }
}

}  // namespace strata::cuda::sm90
