// y = x W^T for 1 to 64 tokens, of what streamed.h and many_tiles.h do not take: the weight streams through shared memory once, everything
// else is small.
//
// Floor: weight bytes / memory bandwidth; 65536 x 1536 at 4.3 TB/s is 23.4 us, 7168 x 16384 is 27.3 us. Reached on an H200, with the
// quantiser in front: see docs/kernels/20261121-few-token-linear.md. The tensor cores need 64 x 64 x 128 / 4096 = 128 clocks a block at 64
// tokens, a quarter of its memory time.
//
// Design: a tile is one or two parts of 64 output features (the M of wgmma, so that tokens are its N of 8 to 64 and nothing is padded to
// 128). A CTA walks tiles, and in each tile blocks of 128 channels. One warp fills a ring of up to 128 KB by TMA, a weight scale beside
// each stage, where 4.3 TB/s at 1 us of latency needs 33 KB in flight on every SM. Two warpgroups multiply: each a part, or, of a tile of
// one part, every second block; two blocks at a time, because a block is 450 clocks of memory time, and waiting, multiplying and scaling it
// one after the other takes longer than that. The tokens' rows are loaded once, in four steps so that the first is not waited for with the
// last, and stay. When the tiles do not fill the SMs a cluster shares a tile, each CTA a part of k; partial sums meet in distributed shared
// memory while the next tile is multiplied, and are added in rank order, so the result does not depend on timing. Weights do not depend on
// the kernel in front (the activation's quantiser), so the ring fills while that runs; nobody waits for that but who needs a stage. Code
// is short where it is not on the way of a block: in a layer a call finds it in no cache.
//
// e4m3: the tensor core sums 128 products, scaled and added in fp32 (V4 5.2).
#include <cuda.h>

#include <type_traits>

#include "backends/cuda/common/pack.cuh"
#include "backends/cuda/common/warp_barrier.cuh"
#include "backends/cuda/common/warpgroup.cuh"
#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/ptx/tma.cuh"
#include "backends/cuda/ptx/wgmma.cuh"
#include "backends/cuda/sm90/linear/config.h"
#include "backends/cuda/sm90/linear/store_features.cuh"

namespace strata::cuda::sm90 {
namespace {

// What a CTA does: tiles [first_tile, last_tile), of each the blocks [first_block, first_block + chunk) of k.
struct Part {
  int rank, first_tile, last_tile, first_block, chunk;

  __device__ explicit Part(const LinearArgs& a) : rank(static_cast<int>(ptx::cluster_rank())) {
    const int clusters = gridDim.x / a.split, cluster = blockIdx.x / a.split;
    first_tile = static_cast<int>(int64_t{a.num_tiles} * cluster / clusters);
    last_tile = static_cast<int>(int64_t{a.num_tiles} * (cluster + 1) / clusters);
    first_block = a.num_blocks * rank / a.split;
    chunk = a.num_blocks * (rank + 1) / a.split - first_block;
  }
};

// One thread: asks for the weight blocks of the part, in order, as stages of the ring become free.
template <LinearTile kTile>
__device__ inline void stream_weights(const CUtensorMap& map, const LinearArgs& a, const Part& part, uint32_t ring, uint32_t w_scales,
                                      uint32_t full, uint32_t empty) {
  const uint64_t policy = ptx::evict_first_policy();
  const int num_units = (part.last_tile - part.first_tile) * part.chunk;
  int group = part.first_tile / a.tiles_per_group, tile_in_group = part.first_tile - group * a.tiles_per_group, block = 0;
  int stage = 0;
  uint32_t parity = 0;
  const float* scales = nullptr;
#pragma unroll 1
  for (int unit = 0; unit < num_units; ++unit) {
    const int row = group * a.n + tile_in_group * kTile.rows();
    if (block == 0) scales = a.w_scale + row / a.weight_block_rows * a.w_scale_stride + part.first_block;
    if (unit >= a.stages) ptx::mbarrier_wait(empty + stage * 8, parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(full + stage * 8, kTile.stage_bytes());
    ptx::tma_load_2d(ring + stage * kTile.stage_bytes(), &map, (part.first_block + block) * kLinearBlock, row, full + stage * 8, policy);
    ptx::cp_async_4(w_scales + stage * 4, scales + block);
    ptx::cp_async_arrive(full + stage * 8);
    if (++stage == a.stages) {
      stage = 0;
      parity ^= 1;
    }
    if (++block == part.chunk) {
      block = 0;
      if (++tile_in_group == a.tiles_per_group) {
        tile_in_group = 0;
        ++group;
      }
    }
  }
}

// Where the 16-byte part of a block of a token's row is for wgmma, in shared memory.
template <int kTokens>
__device__ __forceinline__ int swizzled(int block, int token, int part) {
  return (block * kTokens + token) * kLinearBlock + (part ^ (token & 7)) * 16;
}

// Asks for blocks [first, last) of the part of the tokens' rows and for their scales. What stands in the place of tokens that do not exist
// does not matter: a token is a column of the product. Rows are a multiple of 16 channels.
template <LinearTile kTile>
__device__ void load_tokens(const LinearArgs& a, const Part& part, int group, int first, int last, uint8_t* shared, float* scales) {
  const uint8_t* const x = a.x + group * a.x_group;
  const auto load = [&](int i, bool asynchronous) {
    const int sixteen = i % 8, token = i / 8 % kTile.tokens, block = first + i / (8 * kTile.tokens);
    if (token >= a.num_tokens) return;
    const int channel = (part.first_block + block) * kLinearBlock + sixteen * 16;
    const bool valid = channel < a.k;
    uint8_t* const to = shared + swizzled<kTile.tokens>(block, token, sixteen);
    const uint8_t* const from = valid ? x + token * a.x_stride + channel : x;
    if (asynchronous) {
      ptx::cp_async_16_or_zero(ptx::shared_address(to), from, valid ? 16 : 0);
    } else {
      uint32_t words[4] = {};
      if (valid) load_words(from, words);
      store_words(to, words);
    }
  };
  const int count = (last - first) * kTile.tokens * 8;
  if (a.x_aligned) {
#pragma unroll 2
    for (int i = threadIdx.x; i < count; i += kLinearConsumers) load(i, true);
  } else {
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += kLinearConsumers) load(i, false);
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < (last - first) * a.num_tokens; i += kLinearConsumers) {
    const int token = i / (last - first), block = first + i - token * (last - first);
    ptx::cp_async_4(ptx::shared_address(scales + block * kTile.tokens + token),
                    a.x_scale + token * a.x_scale_stride + group * a.x_scale_group + part.first_block + block);
  }
}

// Waits for all but the last `pending` < kTokenPhases groups of this thread's copies.
inline constexpr int kTokenPhases = 4;
__device__ __forceinline__ void wait_for_tokens(int pending) {
  switch (pending) {
    case 3: return ptx::cp_async_wait<3>();
    case 2: return ptx::cp_async_wait<2>();
    case 1: return ptx::cp_async_wait<1>();
    default: return ptx::cp_async_wait<0>();
  }
}

// Waits for all but the last `pending` < 2 of the products given to the tensor cores.
__device__ __forceinline__ void wait_for_products(int pending) {
  if (pending == 1) {
    ptx::wgmma_wait<1>();
  } else {
    ptx::wgmma_wait<0>();
  }
}

// One warp: passes on to all ranks that this CTA's partial sums are ready, and that it has read those of the others. A release to the
// cluster waits for every access in flight, a microsecond beside a stream of weights; here nobody waits with it.
__device__ inline void tell_cluster(const LinearArgs& a, const Part& part, uint32_t own_ready, uint32_t own_read, uint32_t ready,
                                    uint32_t read) {
  const int lane = threadIdx.x % 32, num_tiles = part.last_tile - part.first_tile;
#pragma unroll 1
  for (int i = 0; i <= num_tiles; ++i) {
    if (i > 0) {
      ptx::mbarrier_wait(own_read, (i - 1) % 2);
      if (lane < a.split) ptx::mbarrier_arrive_cluster(read, lane);
    }
    if (i < num_tiles) {
      ptx::mbarrier_wait(own_ready, i % 2);
      if (lane < a.split) ptx::mbarrier_arrive_cluster(ready, lane);
    }
  }
}

// Of so many warpgroups: named barrier `id`.
template <int kWarpgroups>
__device__ __forceinline__ void warpgroup_barrier(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(128 * kWarpgroups) : "memory");
}

template <int kTokens, int kParts>
__global__ void __launch_bounds__(kLinearThreads, 1)
    few_tokens_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ LinearArgs a) {
  constexpr LinearTile kTile{kTokens, kParts};
  constexpr int kSlices = 2 / kParts;                           // warpgroups that take the blocks of a part in turns
  constexpr int kStoringRows = kLinearConsumers / kParts / 16;  // of tokens, whose features are stored together
  extern __shared__ __align__(1024) uint8_t shared[];
  const LinearShared at(kTile, a.max_chunk, a.stages);
  float* const x_scales = reinterpret_cast<float*>(shared + at.x_scale);
  const float* const w_scales = reinterpret_cast<float*>(shared + at.w_scale);
  const uint32_t ring = ptx::shared_address(shared), tokens = ptx::shared_address(shared + at.tokens);
  const uint32_t w_scale_address = ptx::shared_address(w_scales);
  const uint32_t full = ptx::shared_address(shared + at.barriers), empty = full + a.stages * 8;
  const uint32_t ready = empty + a.stages * 8, read = ready + 8, own_ready = read + 8, own_read = own_ready + 8;

  const Part part(a);
  const int thread = threadIdx.x, lane = thread % 32;
  if (thread == kLinearConsumers) {
    ptx::prefetch_tensor_map(&weights);
#pragma unroll 1
    for (int i = 0; i < a.stages; ++i) {
      ptx::mbarrier_init(full + i * 8, 2);                            // the copy, and that of the scale
      ptx::mbarrier_init(empty + i * 8, 4 * kParts * kWarpArrivals);  // the warps that multiply it
    }
    ptx::mbarrier_init(ready, a.split);
    ptx::mbarrier_init(read, a.split);
    ptx::mbarrier_init(own_ready, kParts);
    ptx::mbarrier_init(own_read, kParts);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  // The ring does not wait for the barriers of the other CTAs.
  if (a.split > 1) ptx::cluster_arrive();
  if (thread >= kLinearConsumers) {
    if (thread == kLinearConsumers) stream_weights<kTile>(weights, a, part, ring, w_scale_address, full, empty);
    if (a.split > 1) {
      ptx::cluster_wait();
      if (thread / 32 == kLinearConsumers / 32 + 1) tell_cluster(a, part, own_ready, own_read, ready, read);
    }
    return;
  }
  ptx::wait_for_previous_kernel();
  ptx::launch_dependents();  // the quantiser of the next layer's activations, and its weights as this one's blocks end

  const int warpgroup = own_warpgroup(), warp = thread / 32 % 4;
  const int own_part = kParts == 2 ? warpgroup : 0, slice = kParts == 2 ? 0 : warpgroup;
  const int first_row = own_part * kLinearRows;
  const uint32_t own_rows = ring + first_row * kLinearBlock;
  const float* const own_x_scales = x_scales + 2 * (lane % 4);
  int stage = slice;
  uint32_t parity = 0;
  float sums[kTokens / 2];
  // `block` and the next ones of this slice: the tensor cores are given all before the first is waited for.
  const auto multiply = [&]<int kBlocks>(std::integral_constant<int, kBlocks>, int block) {
    float products[kBlocks][kTokens / 2], w_scale[kBlocks];
    uint32_t used[kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      ptx::mbarrier_wait(full + stage * 8, parity);
      const uint64_t w_rows = ptx::wgmma_descriptor(own_rows + stage * kTile.stage_bytes());
      const uint64_t x_rows = ptx::wgmma_descriptor(tokens + (block + b * kSlices) * kTokens * kLinearBlock);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) ptx::wgmma_e4m3(products[b], w_rows + 2 * i, x_rows + 2 * i, i > 0);  // 32 channels each
      ptx::wgmma_commit();
      w_scale[b] = w_scales[stage];
      used[b] = empty + stage * 8;
      stage += kSlices;
      if (stage >= a.stages) {
        stage -= a.stages;
        parity ^= 1;
      }
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      wait_for_products(kBlocks - 1 - b);
      arrive_warp(used[b], lane);  // every lane has read its scale
#pragma unroll
      for (int j = 0; j < kTokens / 8; ++j) {
        const float2 x_scale = *reinterpret_cast<const float2*>(own_x_scales + (block + b * kSlices) * kTokens + 8 * j);
        const float scale[2] = {w_scale[b] * x_scale.x, w_scale[b] * x_scale.y};
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[4 * j + i] += scale[i % 2] * products[b][4 * j + i];
      }
    }
  };
  const auto multiply_blocks = [&](int block, int last) {
#pragma unroll 1
    for (; block + kSlices < last; block += 2 * kSlices) multiply(std::integral_constant<int, 2>(), block);
    if (block < last) multiply(std::integral_constant<int, 1>(), block);
  };

  // The partial sums of a part: two buffers, so that a cluster adds those of one tile while it multiplies the next.
  constexpr int kPartial = kTokens * kLinearPartialStride;
  float* const partial = reinterpret_cast<float*>(shared + at.partial) + 2 * own_part * kPartial;
  // Of those who have the part.
  const auto part_barrier = [&] {
    if constexpr (kParts == 2) {
      warpgroup_barrier<1>(2 + own_part);
    } else {
      warpgroup_barrier<2>(1);
    }
  };
  const auto write_partial = [&](int buffer) {
#pragma unroll
    for (int writing = kSlices - 1; writing >= 0; --writing) {
      if (slice == writing) {
#pragma unroll
        for (int i = 0; i < kTokens / 2; ++i) {
          const int token = i / 4 * 8 + 2 * (lane % 4) + i % 2, row = 16 * warp + lane / 4 + i / 2 % 2 * 8;
          float& sum = partial[buffer * kPartial + token * kLinearPartialStride + row];
          sum = writing == kSlices - 1 ? sums[i] : sum + sums[i];
        }
      }
      part_barrier();
    }
  };
  // Four features of each of this thread's tokens, added over the cluster in rank order; ranks take turns with the tokens.
  constexpr int kTurns = (kTokens + kStoringRows - 1) / kStoringRows;
  float4 results[kTurns];
  const auto token_of = [&](int turn) { return part.rank + (turn * kStoringRows + thread / 16 % kStoringRows) * a.split; };
  const auto reduce = [&](int buffer) {
    const float* const own = partial + buffer * kPartial + thread % 16 * 4;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      results[turn] = make_float4(0, 0, 0, 0);
      if (token_of(turn) >= a.num_tokens) continue;
      const float* const from = own + token_of(turn) * kLinearPartialStride;
      if (a.split == 1) {
        results[turn] = *reinterpret_cast<const float4*>(from);
        continue;
      }
      for (int r = 0; r < a.split; ++r) {
        const float4 v = ptx::load_cluster_f32x4(ptx::map_shared(ptx::shared_address(from), r));
        results[turn] = make_float4(results[turn].x + v.x, results[turn].y + v.y, results[turn].z + v.z, results[turn].w + v.w);
      }
    }
  };
  const auto store = [&](int tile) {
    const int group = tile / a.tiles_per_group;
    const int feature = (tile - group * a.tiles_per_group) * kTile.rows() + first_row + thread % 16 * 4;
    const int count = min(a.n - feature, 4);
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      if (token_of(turn) < a.num_tokens && count > 0) store_features(a, group, token_of(turn), feature, results[turn], count);
    }
  };
  // The i-th tile of this CTA. Waits in the order of the phases: a barrier knows only whether its latest phase is complete.
  const auto finish = [&](int i) {
    if (a.split > 1) {
      if (i > 0) ptx::mbarrier_wait_cluster(read, (i - 1) % 2);
      ptx::mbarrier_wait_cluster(ready, i % 2);
    }
    reduce(i % 2);
    if (a.split > 1) {
      part_barrier();
      if (thread % (kLinearConsumers / kParts) == 0) ptx::mbarrier_arrive(own_read);
    }
    store(part.first_tile + i);
  };

  const int num_tiles = part.last_tile - part.first_tile;
  // Of the blocks whose tokens arrive together: a multiple of four, so that a turn of both slices is of one step.
  const int phase_blocks = (part.chunk + 4 * kTokenPhases - 1) / (4 * kTokenPhases) * 4;
  int loaded_group = -1;
  if (a.split > 1) ptx::cluster_wait();  // complete by now
  const auto multiply_tile = [&](int i) {
    const int tile = part.first_tile + i, group = tile / a.tiles_per_group;
    const bool load = group != loaded_group;
    if (load) {
      if (i > 0) warpgroup_barrier<2>(1);  // the other warpgroup multiplies the tokens of the group before
      loaded_group = group;
#pragma unroll 1
      for (int phase = 0; phase < kTokenPhases; ++phase) {
        const int first = min(phase * phase_blocks, part.chunk), last = min(first + phase_blocks, part.chunk);
        load_tokens<kTile>(a, part, group, first, last, shared + at.tokens, x_scales);
        ptx::cp_async_commit();
      }
    }
#pragma unroll
    for (int j = 0; j < kTokens / 2; ++j) sums[j] = 0;
#pragma unroll 1
    for (int phase = 0; phase < kTokenPhases; ++phase) {
      if (load) {
        wait_for_tokens(kTokenPhases - 1 - phase);
        ptx::fence_proxy_async();
        warpgroup_barrier<2>(1);
      }
      multiply_blocks(phase * phase_blocks + (kSlices == 2 ? (slice ^ (i * part.chunk)) & 1 : 0),
                      min((phase + 1) * phase_blocks, part.chunk));
    }
  };
#pragma unroll 1
  for (int i = 0; i < num_tiles + (a.split > 1 && num_tiles > 0); ++i) {
    if (i < num_tiles) multiply_tile(i);
    if (a.split == 1) write_partial(i % 2);
    // Of a cluster, the tile before, whose partial sums have met in the meantime.
    if (a.split == 1 || i > 0) finish(a.split == 1 ? i : i - 1);
    if (a.split > 1 && i < num_tiles) {
      write_partial(i % 2);
      if (thread % (kLinearConsumers / kParts) == 0) ptx::mbarrier_arrive(own_ready);
    }
  }
  // No block leaves while another reads its partial sums.
  if (a.split > 1 && num_tiles > 0) ptx::mbarrier_wait_cluster(read, (num_tiles - 1) % 2);
}

template <int kTokens, int kParts>
const void* kernel() {
  return reinterpret_cast<const void*>(&few_tokens_kernel<kTokens, kParts>);
}

}  // namespace

const void* linear_kernel(const LinearTile& tile) {
  switch (tile.tokens) {
    case 8: return tile.parts == 2 ? kernel<8, 2>() : kernel<8, 1>();
    case 16: return tile.parts == 2 ? kernel<16, 2>() : kernel<16, 1>();
    case 32: return tile.parts == 2 ? kernel<32, 2>() : kernel<32, 1>();
    default: return kernel<64, 1>();
  }
}

}  // namespace strata::cuda::sm90
