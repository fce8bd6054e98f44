// Values of the decode kernel for few heads: a warpgroup has half of the value lanes of all tiles, each warp 16 lanes of each block of 64,
// and stores them.
#pragma once

#include "backends/cuda/sparse_attn_decode/sm90/few_heads_softmax.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// Blocks of 64 value lanes of a group.
constexpr int kOwnBlocks = kValueDim / kChunkLanes / kValueGroups;

// sums[b][4 h + 2 r + i]: of head_of(2 h + i), lane 2 g + r of the warp's 16 of the group's block b (of rotated lanes, V4's last block: g +
// 8 r).
template <class Shared>
using Sums = float[kOwnBlocks][4 * Shared::kHeadTiles];

// 16 of the warp's lanes of a block of codes, all rows, as ldmatrix brings them: pairs of lanes of pairs of rows.
struct ValueCodes {
  uint32_t of_steps[2][4];

  template <class Shared>
  __device__ __forceinline__ void load(uint32_t first, int block) {
#pragma unroll
    for (int i = 0; i < 2; ++i) ptx::ldmatrix_x4_trans(of_steps[i], first + kChunkLanes * block + 32 * i * Shared::kPitch);
  }
  __device__ __forceinline__ void convert(Steps& a) const {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        constexpr uint32_t kPairsOfRows = 0x3120;
        const uint2 lanes = ptx::cvt_f16x4_e4m3x4(__byte_perm(of_steps[step / 2][step % 2 * 2 + i], 0, kPairsOfRows));
        a[step][2 * i] = lanes.x, a[step][2 * i + 1] = lanes.y;
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

// Earlier sums become relative to what the tile's weights are.
template <class Shared>
__device__ __forceinline__ void lift_sums(const Shared& shared, int group, Sums<Shared>& sums) {
#pragma unroll
  for (int c = 0; c < kColumns<Shared>; ++c) {
    const float lift = shared.lift[group][head_of(c)];
#pragma unroll
    for (int b = 0; b < kOwnBlocks; ++b) sums[b][c / 2 * 4 + c % 2] *= lift, sums[b][c / 2 * 4 + c % 2 + 2] *= lift;
  }
}

// A thread's rows of a tile for ldmatrix.
struct ValuePlaces {
  uint32_t codes, rotated;

  template <class Shared>
  __device__ __forceinline__ static ValuePlaces of(int warp, int first_block) {
    // Eight threads' rows are those of a step's first pairs, or of its second: q and q + 8 for each q.
    const int thread = threadIdx.x % 32, in_eight = thread % 8, pair = in_eight / 2 + 8 * (in_eight % 2), eight = thread / 8;
    const int row = 16 * (eight / 2) + kSecondPair * (eight % 2) + pair, rotated_row = kSecondPair * (eight / 2) + pair;
    ValuePlaces places{static_cast<uint32_t>(row * Shared::kPitch + kChunkLanes * first_block + ((warp ^ bank_swap(row)) << 4)),
                       static_cast<uint32_t>(rotated_row * Shared::kPitch + kChunkLanes * Shared::kCodeBlocks +
                                             ((2 * warp + eight % 2 ^ bank_swap(rotated_row)) << 4))};
    // Once, not for every tile.
    asm volatile("" : "+r"(places.codes), "+r"(places.rotated));
    return places;
  }
};

// What a group reads of a tile first, before its weights are there: codes of its first block, and rotated lanes, which come before codes.
template <bool kHasRotated, class Shared>
struct ValueTile {
  uint32_t first;
  ValueCodes codes;
  Steps a[2];

  __device__ __forceinline__ ValueTile(const Shared& shared, uint32_t stage, const ValuePlaces& places) {
    const uint32_t tile = ptx::shared_address(shared.rows[stage][0]);
    first = tile + places.codes;
    if constexpr (kHasRotated) {
#pragma unroll
      for (int step = 0; step < 4; ++step) ptx::ldmatrix_x4_trans(a[0][step], tile + places.rotated + 16 * step * Shared::kPitch);
    }
    codes.load<Shared>(first, 0);
  }
};

// sums += weights * values, for blocks from first_block on; the tile's place is given back.
template <bool kHasRotated, class Shared>
__device__ __forceinline__ void add_values(Shared& shared, uint32_t stage, int group, int first_block, Lane lane,
                                           ValueTile<kHasRotated, Shared>& tile, Sums<Shared>& sums) {
  const uint32_t place = ptx::shared_address(shared.p[group]);
  const uint64_t weights = ptx::wgmma_descriptor(place);
  OfHeads<Shared::kHeadTiles> own_weights;
  if constexpr (Shared::kOwnValues) own_weights.load(place, 4 * lane.g + lane.q);
  const bool lifted = shared.lifted[group];
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
      tile.codes.convert(values);
      if (i + 1 < kOwnBlocks) tile.codes.template load<Shared>(tile.first, own + 1);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const uint4& two = two_steps[step / 2];
        const __half2 of_first = as_half2(step % 2 == 0 ? two.x : two.z), of_second = as_half2(step % 2 == 0 ? two.y : two.w);
#pragma unroll
        for (int j = 0; j < 4; ++j) values[step][j] = mul_f16x2(values[step][j], j < 2 ? of_first : of_second);
      }
    }
    if (i == 0 && lifted) lift_sums(shared, group, sums);  // behind the first conversions, which need not wait for it
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

// A token's tiles, from the block's tile `at` on; in turn until the groups of logits say that one is the last, of as many as are returned.
template <bool kHasRotated, class Shared>
__device__ __forceinline__ int32_t add_tiles(Shared& shared, uint32_t at, int32_t tiles, int first_block, Lane lane,
                                             const ValuePlaces& places, Sums<Shared>& sums) {
#pragma unroll
  for (int i = 0; i < kOwnBlocks * 4 * Shared::kHeadTiles; ++i) sums[i % kOwnBlocks][i / kOwnBlocks] = 0.0f;
#pragma unroll 1
  for (int32_t tile = 0; tile < tiles; ++tile) {
    const int group = tile % kLogitGroups;
    const Place<Shared> place(at + tile);
    place.wait_until_full(shared);
    ValueTile<kHasRotated, Shared> values(shared, place.stage, places);
    ptx::barrier_sync(kWeightsReady + group, kWeightsThreads);
    if (Shared::kInTurn && shared.last[group]) tiles = tile + 1;
    add_values(shared, place.stage, group, first_block, lane, values, sums);
    if (Shared::kInTurn || tile + kLogitGroups < tiles) ptx::barrier_arrive(kWeightsFree + group, kWeightsThreads);
  }
  return tiles;
}

// Four bytes, two value lanes, of a head that there is. Predicates, as branches are more instructions than what they go round.
__device__ __forceinline__ void store_pair(bool wanted, uint16_t* target, uint32_t pair) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.global.b32 [%1], %2;\n}" ::"r"(static_cast<int>(wanted)), "l"(target),
               "r"(pair)
               : "memory");
}

// Where the first head's lanes of a thread are stored to.
__device__ __forceinline__ uint16_t* target_of(const DecodeArgs& a, int first_block, int warp, int32_t token, int32_t split,
                                               int32_t first_head, bool is_part) {
  const Lane at;
  const int32_t batch = divide(token, a.num_queries), query = token - batch * a.num_queries;
  const int64_t head_stride = is_part ? kValueDim : a.out_head_stride;
  return (is_part ? a.part_out + part_index(a, token, split, 0) * kValueDim
                  : a.out + batch * a.out_batch_stride + query * a.out_query_stride) +
         first_head * head_stride + kChunkLanes * first_block + 16 * warp + 2 * at.g;
}

// A group's value lanes, 32 bytes of a head by eight threads; of a part that a cluster merges, to the block that does.
template <bool kHasRotated, class Shared>
__device__ __forceinline__ void store(const DecodeArgs& a, const Shared& shared, int first_block, int warp, uint16_t* target,
                                      int32_t first_head, bool is_part, const Sums<Shared>& sums) {
  const Lane at;
  const int64_t head_stride = is_part ? kValueDim : a.out_head_stride;
  const bool rotates = first_block > 0 && !is_part && a.positions != nullptr;
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
        // Lanes g and g + 8 become 2 g and 2 g + 1.
        const int from = 4 * (2 * at.g % 8) + at.q;
        const float low[2] = {__shfl_sync(~0u, two[0], from), __shfl_sync(~0u, two[0], from + 4)};
        const float high[2] = {__shfl_sync(~0u, two[1], from), __shfl_sync(~0u, two[1], from + 4)};
        two[0] = at.g < 4 ? low[0] : high[0], two[1] = at.g < 4 ? low[1] : high[1];
      }
      uint32_t pair = is_part ? ptx::cvt_f16x2(two[0], two[1]) : ptx::cvt_bf16x2(two[0], two[1]);
      if (b == kOwnBlocks - 1 && rotates) pair = rotate_back(pair, rotation);
      if constexpr (Shared::kInCluster) pairs[b] = pair;
      store_pair(first_head + head < a.num_heads && !(Shared::kInCluster && is_part), of_head + kChunkLanes * b, pair);
    }
    if constexpr (Shared::kInCluster) {
      if (is_part && first_head + head < a.num_heads) send_values(shared, head, {first_block / kOwnBlocks, warp, at.g}, pairs);
    }
  }
}

// A group of values of a block of one token: its blocks, from first_block on.
template <bool kHasRotated, class Shared>
__device__ __forceinline__ void add_token(const DecodeArgs& a, Shared& shared, int first_block, int warp, int32_t tiles, int32_t token,
                                          int32_t split, int32_t first_head, bool is_part) {
  if (first_block > 0 && warp == 0) load_rotation(a, token, shared.rotation);  // kNormaliserReady comes before its use
  const Lane lane;
  const ValuePlaces places = ValuePlaces::of<Shared>(warp, first_block);
  // Not at the end, where everything else waits for it.
  uint16_t* target = target_of(a, first_block, warp, token, split, first_head, is_part);
  asm volatile("" : "+l"(target));
  Sums<Shared> sums;
  add_tiles<kHasRotated>(shared, 0, tiles, first_block, lane, places, sums);
  ptx::barrier_sync(kNormaliserReady, kNormaliserThreads);
  store<kHasRotated>(a, shared, first_block, warp, target, first_head, is_part, sums);
}

}  // namespace strata::cuda::sparse_decode::few_heads
