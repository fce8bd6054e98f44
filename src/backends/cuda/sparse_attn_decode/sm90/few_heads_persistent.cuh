// Few heads of many tokens: a persistent kernel, with as many CTAs as SMs, that processes tokens round-robin with the roles of
// few_heads.cuh. Loads of the next token overlap the present one. With a CTA per token the two ends of a CTA, 4 us, would not be hidden,
// because two CTAs do not fit on an SM.
//
// A token's queries are a tile of the ring before its rows. The logits groups make operands of them when both have issued their last logits
// of the previous token, while the values groups add its last tiles. Per-token state is reset only after the values have added the token's
// last tile, because they still read its maximum. The values store a token while the next token's first logits run.
#pragma once

#include "backends/cuda/device/warpgroup.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/few_heads.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// The heads and token of a CTA's work item.
struct Item {
  int32_t token, batch, query, first_head;
  __device__ __forceinline__ Item(const DecodeArgs& a, int32_t item, int32_t head_tiles, int32_t heads) {
    token = divide(item, head_tiles), first_head = (item - token * head_tiles) * heads;
    batch = divide(token, a.num_queries), query = token - batch * a.num_queries;
  }
};

// A loading warp's work over the CTA's tokens.
template <class Shared>
__device__ __forceinline__ void load_tokens(const DecodeArgs& a, Shared& shared, int32_t items, int32_t head_tiles, int warp, int lane) {
  uint32_t at = 0;
  const auto length_of = [&](int32_t i) {
    return i < items ? Lengths::load_lane(lane, a, Item(a, i, head_tiles, Shared::kHeads).batch) : 0;
  };
  int32_t next_length = length_of(blockIdx.x);
  Rows<Shared::kFormat> loaded(a, warp, lane);
#pragma unroll 1
  for (int32_t i = blockIdx.x; i < items; i += gridDim.x) {
    const Item item(a, i, head_tiles, Shared::kHeads);
    const TokenRows rows(a, Lengths(next_length));
    next_length = length_of(i + gridDim.x);
    const int32_t tiles = max(rows.tiles, 1);  // without rows: one tile of rows that are not attended
    if (rows.total == 0) {
      loaded.list.end = 0, loaded.address = {};
    } else {
      loaded.start(RowList(a, item.batch, item.query, rows, tiles), 0);
    }
    {
      constexpr int kUnits = kRowDims<Shared::kFormat> / 8;
      const uint32_t stage = acquire_stage(shared, at).index, to = ptx::shared_address(shared.rows[stage][0]);
      const uint16_t* const q = a.q + item.batch * a.q_batch_stride + item.query * a.q_query_stride + item.first_head * a.q_head_stride;
      if (warp == 0 && lane == 0) shared.tiles[stage] = tiles;
#pragma unroll 2
      for (int unit = 32 * warp + lane; unit < Shared::kHeads * kUnits; unit += kWarpgroup) {
        const int head = unit / kUnits;
        const bool valid = item.first_head + head < a.num_heads;
        ptx::cp_async_16_or_zero(to + 16 * unit, q + (valid ? head * a.q_head_stride + unit % kUnits * 8 : 0), valid ? 16 : 0);
      }
      signal(shared, stage, lane);
    }
    load_rows(shared, loaded, at + 1, tiles, i, warp, lane, Confirmed{});
    at += 1 + tiles;
  }
}

// Moves the token's queries from the ring to where products read them, by the logits groups.
template <class Shared>
__device__ __forceinline__ void move_queries(const DecodeArgs& a, Shared& shared, uint32_t stage) {
  constexpr int kUnits = Queries<Shared>::kUnits, kWarps = kLogitGroups * kWarpgroup / 32;
  const int lane = threadIdx.x % 32;
  const NormalisedQueries normed(a, 0);
#pragma unroll
  for (int head = threadIdx.x / 32; head < Shared::kHeads; head += kWarps) {
    uint4 v[Queries<Shared>::kLoads];
#pragma unroll
    for (int j = 0; j < Queries<Shared>::kLoads; ++j) {
      const int unit = lane + 32 * j;
      v[j] = unit < kUnits ? reinterpret_cast<const uint4*>(shared.rows[stage][0])[head * kUnits + unit] : uint4{};
    }
    store_queries(shared, head, normed, v, a.scale_log2);
  }
}

// A logits group: every second tile of each token.
template <class Shared>
__device__ __forceinline__ void softmax_tokens(const DecodeArgs& a, Shared& shared, int32_t items, int32_t head_tiles, int group,
                                               int warp) {
  constexpr uint32_t kThreads = kLogitGroups * kWarpgroup;
  const uint64_t queries = ptx::wgmma_descriptor(ptx::shared_address(shared.q[0]));
  static_assert(kLogitGroups == kValueGroups);  // the logits groups arrive for the queries' stage instead of the values groups
  static_assert(!Shared::kSumsInShared);
  Lane lane;
  uint32_t at = 0;
  bool waits = false;  // for the values, which must add the group's last tile of the previous token
  const auto wait_for_values = [&] {
    if (waits) ptx::barrier_sync(kWeightsFree + group, kWeightsThreads);
    waits = false;
  };
#pragma unroll 1
  for (int32_t i = blockIdx.x; i < items; i += gridDim.x) {
    const Item item(a, i, head_tiles, Shared::kHeads);
    const int32_t head = item.first_head + static_cast<int32_t>(threadIdx.x);
    const bool has_sink = threadIdx.x < Shared::kHeads && a.sink != nullptr && head < a.num_heads;
    const float sink = has_sink ? a.sink[head] * kLog2e : -INFINITY;
    const RingStage<Shared> stage(at++);
    stage.wait_until_full(shared);
    const int32_t tiles = __shfl_sync(~0u, shared.tiles[stage.index], 0);
    move_queries(a, shared, stage.index);
    arrive_warp(shared.empty[stage.index]);
    wait_for_values();
    ptx::barrier_sync(kLogitsDone, kThreads);
    prepare_softmax(shared);
    if (threadIdx.x < Shared::kHeads) shared.sink[threadIdx.x] = sink;
    ptx::fence_proxy_async();
    ptx::barrier_sync(kLogitsDone, kThreads);
    WeightSums<Shared> sums;
    if (group == 1) ptx::barrier_arrive(kRunningMaxReady, kLogitsThreads);
    lane.forget();  // offsets are recomputed here: for every tile they would be 80 instructions, 0.1 us
#pragma unroll 1
    for (int32_t tile = group; tile < tiles; tile += kLogitGroups) {
      softmax_tile(shared, queries, RingStage<Shared>(at + tile), group, warp, lane, tile < kLogitGroups, tile + 1 == tiles, sums);
    }
    publish_sums(shared, group, warp, sums);
    ptx::barrier_sync(kLogitsDone, kThreads);
    waits = group < tiles;
    // When the values have added a tile of this token, they have stored the previous one: with more tiles this is certain.
    if (tiles <= kLogitGroups) wait_for_values();
    const int last_group = (tiles + kLogitGroups - 1) % kLogitGroups;
    if (threadIdx.x < 32) finish_head(a, shared, last_group, item.token, 0, item.first_head, false);
    at += tiles;
  }
  wait_for_values();
}

// A values group: its blocks, from first_block on, of all tiles.
template <bool kHasRotated, class Shared>
__device__ __forceinline__ void add_tokens(const DecodeArgs& a, Shared& shared, int32_t items, int32_t head_tiles, int first_block,
                                           int warp) {
  const Lane lane;
  const ValueOffsets offsets = ValueOffsets::of<Shared>(warp, first_block);
  uint32_t at = 0;
#pragma unroll 1
  for (int32_t i = blockIdx.x; i < items; i += gridDim.x) {
    const Item item(a, i, head_tiles, Shared::kHeads);
    if (first_block > 0 && a.positions != nullptr) {
      ptx::barrier_sync(kRotationFree, kWarpgroup);
      if (warp == 0) load_rotation(a, item.token, shared.rotation);
    }
    Sums<Shared> sums;
    at += 1 + add_tiles<kHasRotated>(shared, at + 1, INT32_MAX, first_block, lane, offsets, sums);
    ptx::barrier_sync(kNormaliserReady, kNormaliserThreads);
    uint16_t* const target = target_of(a, first_block, warp, item.token, 0, item.first_head, false);
    store<kHasRotated>(a, shared, first_block, warp, target, item.first_head, false, sums);
  }
}

}  // namespace strata::cuda::sparse_decode::few_heads

namespace strata::cuda::sparse_decode {

// V4. Rows of the caches, of q and of out are 16-byte aligned; a token's rows are not split.
template <int kHeads>
__global__ void __launch_bounds__(few_heads::kBlockThreads, 1)
    few_heads_persistent_kernel(const __grid_constant__ DecodeArgs a, int32_t items) {
  using namespace few_heads;
  using Block = Shared<KvFormat::fp8_ds_mla_v4, kHeads, false, true>;
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<Block*>(shared_bytes);
  const int32_t head_tiles = (a.num_heads + kHeads - 1) / kHeads;
  const int group = own_warpgroup(), warp = __shfl_sync(~0u, threadIdx.x / 32 % 4, 0);
  ptx::launch_dependents();
  if (threadIdx.x == 0) few_heads::prepare(shared);
  few_heads::meet<Block>();
  ptx::wait_for_previous_kernel();
  if (group == kGroups) {
    ptx::registers_shrink<Registers<kHeads, true>::kLoader>();
    load_tokens(a, shared, items, head_tiles, warp, static_cast<int>(threadIdx.x % 32));
  } else if (group < kLogitGroups) {
    ptx::registers_grow<Registers<kHeads, true>::kLogits>();
    softmax_tokens(a, shared, items, head_tiles, group, warp);
  } else if (group == kLogitGroups) {
    ptx::registers_grow<Registers<kHeads, true>::kValues>();
    add_tokens<false>(a, shared, items, head_tiles, 0, warp);
  } else {
    ptx::registers_grow<Registers<kHeads, true>::kValues>();
    add_tokens<true>(a, shared, items, head_tiles, kOwnBlocks, warp);
  }
}

}  // namespace strata::cuda::sparse_decode
