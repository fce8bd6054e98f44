// Values of the decode kernel for few heads. A warpgroup accumulates half of the value dimensions of all tiles, each warp 16 dimensions of
// each block of 64, and stores them.
#pragma once

#include "backends/cuda/sparse_attn_decode/sm90/few_heads_softmax.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// Blocks of 64 value dimensions per group.
constexpr int kOwnBlocks = kValueDim / kChunkDims / kValueGroups;

// sums[b][4 h + 2 r + i]: head_of(2 h + i), dimension 2 g + r of the warp's 16 of the group's block b (rotary, V4's last block: dimension g
// + 8 r).
template <class Shared>
using Sums = float[kOwnBlocks][4 * Shared::kHeadTiles];

// The warp's 16 dimensions of a block of e4m3 values, all rows, as ldmatrix returns them: pairs of dimensions of pairs of rows.
struct QuantizedValues {
  uint32_t of_steps[2][4];

  template <class Shared>
  __device__ __forceinline__ void load(uint32_t first, int block) {
#pragma unroll
    for (int i = 0; i < 2; ++i) ptx::ldmatrix_x4_trans(of_steps[i], first + kChunkDims * block + 32 * i * Shared::kPitch);
  }
  __device__ __forceinline__ void convert(Steps& a) const {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        constexpr uint32_t kPairsOfRows = 0x3120;
        const uint2 packed = ptx::cvt_f16x4_e4m3x4(__byte_perm(of_steps[step / 2][step % 2 * 2 + i], 0, kPairsOfRows));
        a[step][2 * i] = packed.x, a[step][2 * i + 1] = packed.y;
      }
    }
  }
};

// Two products of bf16 with a power of two.
__device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Rescales earlier sums to the running maximum and scale of the tile's weights.
template <class Shared>
__device__ __forceinline__ void rescale_sums(const Shared& shared, int group, Sums<Shared>& sums) {
#pragma unroll
  for (int c = 0; c < kColumns<Shared>; ++c) {
    const float rescale = shared.rescale[group][head_of(c)];
#pragma unroll
    for (int b = 0; b < kOwnBlocks; ++b) sums[b][c / 2 * 4 + c % 2] *= rescale, sums[b][c / 2 * 4 + c % 2 + 2] *= rescale;
  }
}

// Shared-memory offsets of a thread's rows of a tile for ldmatrix.
struct ValueOffsets {
  uint32_t quantized, rotated;

  template <class Shared>
  __device__ __forceinline__ static ValueOffsets of(int warp, int first_block) {
    // Eight threads have the rows of a step's first pairs, or of its second pairs: q and q + 8 for each q.
    const int thread = threadIdx.x % 32, in_eight = thread % 8, pair = in_eight / 2 + 8 * (in_eight % 2), eight = thread / 8;
    const int row = 16 * (eight / 2) + kSecondPair * (eight % 2) + pair, rotated_row = kSecondPair * (eight / 2) + pair;
    ValueOffsets offsets{static_cast<uint32_t>(row * Shared::kPitch + kChunkDims * first_block + ((warp ^ bank_swap(row)) << 4)),
                         static_cast<uint32_t>(rotated_row * Shared::kPitch + kChunkDims * Shared::kQuantizedBlocks +
                                               ((2 * warp + eight % 2 ^ bank_swap(rotated_row)) << 4))};
    // Computed once, not for every tile.
    asm volatile("" : "+r"(offsets.quantized), "+r"(offsets.rotated));
    return offsets;
  }
};

// What a group reads of a tile before the tile's weights are ready: e4m3 values of its first block, and first the rotary dimensions.
template <bool kHasRotated, class Shared>
struct ValueTile {
  uint32_t first;
  QuantizedValues quantized;
  Steps a[2];

  __device__ __forceinline__ ValueTile(const Shared& shared, uint32_t stage, const ValueOffsets& offsets) {
    const uint32_t tile = ptx::shared_address(shared.rows[stage][0]);
    first = tile + offsets.quantized;
    if constexpr (kHasRotated) {
#pragma unroll
      for (int step = 0; step < 4; ++step) ptx::ldmatrix_x4_trans(a[0][step], tile + offsets.rotated + 16 * step * Shared::kPitch);
    }
    quantized.load<Shared>(first, 0);
  }
};

// sums += weights * values, for blocks from first_block on; then releases the tile's stage.
template <bool kHasRotated, class Shared>
__device__ __forceinline__ void add_values(Shared& shared, uint32_t stage, int group, int first_block, Lane lane,
                                           ValueTile<kHasRotated, Shared>& tile, Sums<Shared>& sums) {
  const uint32_t address = ptx::shared_address(shared.p[group]);
  const uint64_t weights = ptx::wgmma_descriptor(address);
  OfHeads<Shared::kHeadTiles> own_weights;
  if constexpr (Shared::kOwnValues) own_weights.load(address, 4 * lane.g + lane.q);
  const bool rescaled = shared.rescaled[group];
  const uint4* const scales = reinterpret_cast<const uint4*>(&shared.value_scales[group][first_block][pair_of(0, lane.q)]);
#pragma unroll
  for (int i = 0; i < kOwnBlocks; ++i) {
    const int own = kHasRotated ? (i + kOwnBlocks - 1) % kOwnBlocks : i;
    Steps& values = tile.a[i % 2];
    if (!Shared::kOwnValues && i > 1) {
      ptx::wgmma_wait<1>();
      hold(values);
    }
    if (kHasRotated && own == kOwnBlocks - 1) {
      const uint32_t scale = __byte_perm(__float_as_uint(pow2(kExponentBias - shared.top_scale[group])), 0, 0x3232);  // bf16, twice
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int j = 0; j < 4; ++j) values[step][j] = bf16x2_to_f16x2(mul_bf16x2(values[step][j], scale), 1.0f);
      }
    } else {
      const uint4 two_steps[2] = {scales[own * (Shared::kPairPitch / 4)], scales[own * (Shared::kPairPitch / 4) + 1]};
      tile.quantized.convert(values);
      if (i + 1 < kOwnBlocks) tile.quantized.template load<Shared>(tile.first, own + 1);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const uint4& two = two_steps[step / 2];
        const __half2 of_first = as_half2(step % 2 == 0 ? two.x : two.z), of_second = as_half2(step % 2 == 0 ? two.y : two.w);
#pragma unroll
        for (int j = 0; j < 4; ++j) values[step][j] = mul_f16x2(values[step][j], j < 2 ? of_first : of_second);
      }
    }
    if (i == 0 && rescaled) rescale_sums(shared, group, sums);  // after the first conversions, which need not wait for it
    if constexpr (Shared::kOwnValues) {
#pragma unroll
      for (int step = 0; step < 4; ++step) own_weights.add_product(sums[own], values[step], step);
    } else {
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) ptx::wgmma_f16_rs(sums[own], values[step], weights + 2 * step, true);
      ptx::wgmma_commit();
    }
  }
  arrive_warp(shared.empty[stage]);
  if constexpr (Shared::kOwnValues) return;
  ptx::wgmma_wait<0>();
#pragma unroll
  for (int b = 0; b < kOwnBlocks; ++b) ptx::wgmma_hold(sums[b]);
  hold(tile.a[0]);
  hold(tile.a[1]);
}

// Accumulates a token's tiles, from the CTA's tile `at` on, and returns their number. With kPersistent until the logits groups mark one as
// last.
template <bool kHasRotated, class Shared>
__device__ __forceinline__ int32_t add_tiles(Shared& shared, uint32_t at, int32_t tiles, int first_block, Lane lane,
                                             const ValueOffsets& offsets, Sums<Shared>& sums) {
#pragma unroll
  for (int i = 0; i < kOwnBlocks * 4 * Shared::kHeadTiles; ++i) sums[i % kOwnBlocks][i / kOwnBlocks] = 0.0f;
#pragma unroll 1
  for (int32_t tile = 0; tile < tiles; ++tile) {
    const int group = tile % kLogitGroups;
    const RingStage<Shared> stage(at + tile);
    stage.wait_until_full(shared);
    ValueTile<kHasRotated, Shared> values(shared, stage.index, offsets);
    ptx::barrier_sync(kWeightsReady + group, kWeightsThreads);
    if (Shared::kPersistent && shared.last[group]) tiles = tile + 1;
    add_values(shared, stage.index, group, first_block, lane, values, sums);
    if (Shared::kPersistent || tile + kLogitGroups < tiles) ptx::barrier_arrive(kWeightsFree + group, kWeightsThreads);
  }
  return tiles;
}

// Stores four bytes, two value dimensions, if the head exists. Predicated, because a branch would be more instructions than it skips.
__device__ __forceinline__ void store_pair(bool valid, uint16_t* target, uint32_t pair) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.global.b32 [%1], %2;\n}" ::"r"(static_cast<int>(valid)), "l"(target),
               "r"(pair)
               : "memory");
}

// Where a thread's dimensions of the first head are stored.
__device__ __forceinline__ uint16_t* target_of(const DecodeArgs& a, int first_block, int warp, int32_t token, int32_t split,
                                               int32_t first_head, bool is_split) {
  const Lane at;
  const int32_t batch = divide(token, a.num_queries), query = token - batch * a.num_queries;
  const int64_t head_stride = is_split ? kValueDim : a.out_head_stride;
  return (is_split ? a.split_out + split_index(a, token, split, 0) * kValueDim
                   : a.out + batch * a.out_batch_stride + query * a.out_query_stride) +
         first_head * head_stride + kChunkDims * first_block + 16 * warp + 2 * at.g;
}

// Stores a group's value dimensions, 32 bytes of a head by eight threads. Splits that a cluster combines are sent to the CTA that combines
// them.
template <bool kHasRotated, class Shared>
__device__ __forceinline__ void store(const DecodeArgs& a, const Shared& shared, int first_block, int warp, uint16_t* target,
                                      int32_t first_head, bool is_split, const Sums<Shared>& sums) {
  const Lane at;
  const int64_t head_stride = is_split ? kValueDim : a.out_head_stride;
  const bool rotates = first_block > 0 && !is_split && a.positions != nullptr;
  const float2 rotation = rotates ? shared.rotation[8 * warp + at.g] : float2{};
#pragma unroll
  for (int c = 0; c < kColumns<Shared>; ++c) {
    const int head = head_of(c, at.q);
    const float factor = shared.normaliser[head];
    uint16_t* const of_head = target + head * head_stride;
    [[maybe_unused]] uint32_t pairs[kOwnBlocks];
#pragma unroll
    for (int b = 0; b < kOwnBlocks; ++b) {
      float two[2] = {sums[b][c / 2 * 4 + c % 2] * factor, sums[b][c / 2 * 4 + c % 2 + 2] * factor};
      if (kHasRotated && b == kOwnBlocks - 1) {
        // Dimensions g and g + 8 become 2 g and 2 g + 1.
        const int from = 4 * (2 * at.g % 8) + at.q;
        const float low[2] = {__shfl_sync(~0u, two[0], from), __shfl_sync(~0u, two[0], from + 4)};
        const float high[2] = {__shfl_sync(~0u, two[1], from), __shfl_sync(~0u, two[1], from + 4)};
        two[0] = at.g < 4 ? low[0] : high[0], two[1] = at.g < 4 ? low[1] : high[1];
      }
      uint32_t pair = is_split ? ptx::cvt_f16x2(two[0], two[1]) : ptx::cvt_bf16x2(two[0], two[1]);
      if (b == kOwnBlocks - 1 && rotates) pair = rotate_back(pair, rotation);
      if constexpr (Shared::kInCluster) pairs[b] = pair;
      store_pair(first_head + head < a.num_heads && !(Shared::kInCluster && is_split), of_head + kChunkDims * b, pair);
    }
    if constexpr (Shared::kInCluster) {
      if (is_split && first_head + head < a.num_heads) send_values(shared, head, {first_block / kOwnBlocks, warp, at.g}, pairs);
    }
  }
}

// A values group of a CTA with one token: its blocks, from first_block on.
template <bool kHasRotated, class Shared>
__device__ __forceinline__ void add_token(const DecodeArgs& a, Shared& shared, int first_block, int warp, int32_t tiles, int32_t token,
                                          int32_t split, int32_t first_head, bool is_split) {
  if (first_block > 0 && warp == 0) load_rotation(a, token, shared.rotation);  // kNormaliserReady comes before its use
  const Lane lane;
  const ValueOffsets offsets = ValueOffsets::of<Shared>(warp, first_block);
  // Computed here and not at the end, where everything else waits for it.
  uint16_t* target = target_of(a, first_block, warp, token, split, first_head, is_split);
  asm volatile("" : "+l"(target));
  Sums<Shared> sums;
  add_tiles<kHasRotated>(shared, 0, tiles, first_block, lane, offsets, sums);
  ptx::barrier_sync(kNormaliserReady, kNormaliserThreads);
  store<kHasRotated>(a, shared, first_block, warp, target, first_head, is_split, sums);
}

}  // namespace strata::cuda::sparse_decode::few_heads
