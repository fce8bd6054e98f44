// Few heads of many tokens: a call of many rounds of blocks has as many as SMs, which take one token after the other, with the roles of
// few_heads.cuh. Rows are then on their way from one token to the next; of a block for each token the two ends, 4 us, are not hidden, as no
// two fit on an SM.
//
// A token's queries are a tile of the ring in front of its rows: the groups of logits make operands of them when both have their last
// logits of the token before, while the values add its last tiles. What belongs to a token starts over when the values have added its last
// tile: they still read what that is relative to. They store the token while the next one's first logits run.
#pragma once

#include "backends/cuda/sm90/sparse_decode/few_heads.cuh"

namespace strata::cuda::sparse_decode::few_heads {

// The heads of a block, of one token.
struct Item {
  int32_t token, batch, query, first_head;
  __device__ __forceinline__ Item(const DecodeArgs& a, int32_t item, int32_t head_tiles, int32_t heads) {
    token = divide(item, head_tiles), first_head = (item - token * head_tiles) * heads;
    batch = divide(token, a.num_queries), query = token - batch * a.num_queries;
  }
};

// A place of the ring and the parity of its turn.
template <class Shared>
struct Place {
  uint32_t stage, parity;
  __device__ __forceinline__ explicit Place(uint32_t tile) : stage(tile % Shared::kRing), parity(tile / Shared::kRing & 1u) {}
};

// A loading warp's part of the block's tokens.
template <class Shared>
__device__ __forceinline__ void load_tokens(const DecodeArgs& a, Shared& shared, int32_t items, int32_t head_tiles, int warp, int lane) {
  uint32_t at = 0;
  const auto wait_for_place = [&] {
    if (at >= static_cast<uint32_t>(Shared::kAhead)) {  // as in load_rows
      const Place<Shared> before(at - Shared::kAhead);
      ptx::mbarrier_wait(ptx::shared_address(&shared.full[before.stage]), before.parity);
    }
    const Place<Shared> place(at);
    ptx::mbarrier_wait(ptx::shared_address(&shared.empty[place.stage]), place.parity ^ 1u);
    return place.stage;
  };
  const auto tell = [&](uint32_t stage) {
    const uint32_t full = ptx::shared_address(&shared.full[stage]);
    ptx::cp_async_arrive(full);
    if (lane == 0) ptx::mbarrier_arrive(full);
    ++at;
  };
  const auto length_of = [&](int32_t i) {
    return i < items ? Lengths::asked_by(lane, a, Item(a, i, head_tiles, Shared::kHeads).batch) : 0;
  };
  int32_t next_length = length_of(blockIdx.x);
  Rows<Shared::kFormat> loaded(a, warp, lane);
#pragma unroll 1
  for (int32_t i = blockIdx.x; i < items; i += gridDim.x) {
    const Item item(a, i, head_tiles, Shared::kHeads);
    const TokenRows rows(a, Lengths(next_length));
    next_length = length_of(i + gridDim.x);
    const int32_t tiles = max(rows.tiles, 1);
    const bool empty = rows.total == 0;  // a tile of rows that are not attended
    if (empty) {
      loaded.address = {};
    } else {
      loaded.start(RowList(a, item.batch, item.query, rows, tiles), 0);
    }
    {
      constexpr int kUnits = kRowLanes<Shared::kFormat> / 8;
      const uint32_t stage = wait_for_place(), to = ptx::shared_address(shared.rows[stage][0]);
      const uint16_t* const q = a.q + item.batch * a.q_batch_stride + item.query * a.q_query_stride + item.first_head * a.q_head_stride;
      if (warp == 0 && lane == 0) shared.tiles[stage] = tiles;
#pragma unroll 2
      for (int unit = 32 * warp + lane; unit < Shared::kHeads * kUnits; unit += kWarpgroup) {
        const int head = unit / kUnits;
        const bool wanted = item.first_head + head < a.num_heads;
        ptx::cp_async_16_or_zero(to + 16 * unit, q + (wanted ? head * a.q_head_stride + unit % kUnits * 8 : 0), wanted ? 16 : 0);
      }
      tell(stage);
    }
#pragma unroll 1
    for (int32_t tile = 0; tile < tiles; ++tile) {
      if (tile % 2 == 0 && !empty) loaded.advance(tile / 2);
      const uint32_t stage = wait_for_place();
      copy_rows<true>(shared, loaded.address, stage, tile % 2, warp, lane);
      if (tile < a.next_times) {
        __syncwarp();  // as in load_rows
        bring_next_near<kWarpgroup / 32>(a, i, tile, warp);
      }
      const uint32_t attended = __ballot_sync(~0u, loaded.address.data != nullptr) >> (tile % 2 * 16);
      if (lane == 0) shared.attended[stage][warp] = attended;
      tell(stage);
    }
  }
}

// The token's queries from the ring to where products read them, by the groups of logits.
template <class Shared>
__device__ __forceinline__ void take_queries(const DecodeArgs& a, Shared& shared, uint32_t stage) {
  constexpr int kUnits = Queries<Shared>::kUnits, kWarps = kLogitGroups * kWarpgroup / 32;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int head = threadIdx.x / 32; head < Shared::kHeads; head += kWarps) {
    uint4 v[Queries<Shared>::kLoads];
#pragma unroll
    for (int j = 0; j < Queries<Shared>::kLoads; ++j) {
      const int unit = lane + 32 * j;
      v[j] = unit < kUnits ? reinterpret_cast<const uint4*>(shared.rows[stage][0])[head * kUnits + unit] : uint4{};
    }
    store_queries(shared, head, v, a.scale_log2);
  }
}

// A group of logits: every second tile of each token.
template <class Shared>
__device__ __forceinline__ void weigh_tokens(const DecodeArgs& a, Shared& shared, int32_t items, int32_t head_tiles, int group, int warp) {
  constexpr uint32_t kThreads = kLogitGroups * kWarpgroup;
  const uint64_t queries = ptx::wgmma_descriptor(ptx::shared_address(shared.q[0]));
  Lane lane;
  uint32_t at = 0;
  int32_t tiles = 0;
  float sink = -INFINITY;  // of the token's head threadIdx.x
  const auto take = [&](int32_t i) {
    const int32_t head = Item(a, i, head_tiles, Shared::kHeads).first_head + static_cast<int32_t>(threadIdx.x);
    if (threadIdx.x < Shared::kHeads) sink = a.sink != nullptr && head < a.num_heads ? a.sink[head] : -INFINITY;
    const Place<Shared> place(at);
    ptx::mbarrier_wait(ptx::shared_address(&shared.full[place.stage]), place.parity);
    tiles = __shfl_sync(~0u, shared.tiles[place.stage], 0);
    take_queries(a, shared, place.stage);
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared.empty[place.stage]));
    ++at;
  };
  static_assert(kLogitGroups == kValueGroups);  // whose arrivals the groups of logits make for queries
  if (static_cast<int32_t>(blockIdx.x) < items) take(blockIdx.x);
#pragma unroll 1
  for (int32_t i = blockIdx.x; i < items; i += gridDim.x) {
    const Item item(a, i, head_tiles, Shared::kHeads);
    prepare_softmax(shared);
    if (threadIdx.x < Shared::kHeads) shared.sink[threadIdx.x] = sink * kLog2e;
    ptx::fence_proxy_async();
    ptx::barrier_sync(kLogitsDone, kThreads);
    WeightSums<Shared> sums;
    static_assert(!Shared::kSumsAside);
    if (group == 1) ptx::barrier_arrive(kTurn, kTurnThreads);
    lane.forget();  // places are computed here: for every tile they are 80 instructions, 0.1 us
#pragma unroll 1
    for (int32_t tile = group; tile < tiles; tile += kLogitGroups) {
      const Place<Shared> place(at + tile);
      Logits<Shared> s;
      RowScales<Shared> scales;
      ptx::mbarrier_wait(ptx::shared_address(&shared.full[place.stage]), place.parity);
      logits(shared, queries, place.stage, warp, lane, scales, s);
      if (tile >= kLogitGroups) ptx::barrier_sync(kWeightsFree + group, kWeightsThreads);
      if (threadIdx.x % kWarpgroup == 0) shared.last[group] = tile + 1 == tiles;
      weigh(shared, place.stage, group, warp, lane, tile + 1 == tiles, scales, s, sums);
    }
    tell_sums(shared, group, warp, sums);
    ptx::barrier_sync(kLogitsDone, kThreads);
    const int last_group = (tiles + kLogitGroups - 1) % kLogitGroups;
    // Until the values have added the group's last tile.
    const auto wait_for_values = [&, wanted = group < tiles] {
      if (wanted) ptx::barrier_sync(kWeightsFree + group, kWeightsThreads);
    };
    // The values have stored the token before when they have added a tile of this one: with more tiles they have.
    const bool waits_first = tiles <= kLogitGroups;
    if (waits_first) wait_for_values();
    if (threadIdx.x < 32) finish_head(a, shared, last_group, item.token, 0, item.first_head, false);
    at += tiles;
    if (i + static_cast<int32_t>(gridDim.x) < items) take(i + static_cast<int32_t>(gridDim.x));
    if (!waits_first) wait_for_values();
    ptx::barrier_sync(kLogitsDone, kThreads);
  }
}

// A group of values: its blocks, from first_block on, of all tiles.
template <bool kHasRotated, class Shared>
__device__ __forceinline__ void add_tokens(const DecodeArgs& a, Shared& shared, int32_t items, int32_t head_tiles, int first_block,
                                           int warp) {
  const Lane lane;
  const ValuePlaces places = ValuePlaces::of<Shared>(warp, first_block);
  uint32_t at = 0;
#pragma unroll 1
  for (int32_t i = blockIdx.x; i < items; i += gridDim.x) {
    const Item item(a, i, head_tiles, Shared::kHeads);
    if (first_block > 0 && a.positions != nullptr) {
      ptx::barrier_sync(kRotationFree, kWarpgroup);
      if (warp == 0) load_rotation(a, item.token, shared.rotation);
    }
    Sums<Shared> sums;
#pragma unroll
    for (int i = 0; i < kOwnBlocks * 4 * Shared::kHeadTiles; ++i) sums[i % kOwnBlocks][i / kOwnBlocks] = 0.0f;
    ++at;
    int group = 0;
    bool last;
#pragma unroll 1
    do {
      const Place<Shared> place(at++);
      ptx::mbarrier_wait(ptx::shared_address(&shared.full[place.stage]), place.parity);
      ValueTile<kHasRotated, Shared> values(shared, place.stage, places);
      ptx::barrier_sync(kWeightsReady + group, kWeightsThreads);
      last = shared.last[group];
      add_values(shared, place.stage, group, first_block, lane, values, sums);
      ptx::barrier_arrive(kWeightsFree + group, kWeightsThreads);
      group ^= 1;
    } while (!last);
    ptx::barrier_sync(kNormaliserReady, kNormaliserThreads);
    uint16_t* const target = target_of(a, first_block, warp, item.token, 0, item.first_head, false);
    store<true, kHasRotated>(a, shared, first_block, warp, target, item.first_head, false, sums);
  }
}

}  // namespace strata::cuda::sparse_decode::few_heads

namespace strata::cuda::sparse_decode {

// V4. Rows of the caches, of q and of out start at multiples of 16 bytes; a token's rows are not cut.
template <int kHeads>
__global__ void __launch_bounds__(few_heads::kBlockThreads, 1)
    few_heads_in_turn_kernel(const __grid_constant__ DecodeArgs a, int32_t items) {
  using namespace few_heads;
  using Block = Shared<KvFormat::fp8_ds_mla_v4, kHeads>;
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<Block*>(shared_bytes);
  const int32_t head_tiles = (a.num_heads + kHeads - 1) / kHeads;
  const int group = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0), warp = __shfl_sync(~0u, threadIdx.x / 32 % 4, 0);
  ptx::launch_dependents();
  if (threadIdx.x == 0) few_heads::prepare(shared);
  few_heads::meet<Block>();
  ptx::wait_for_previous_kernel();
  if (group == kGroups) {
    ptx::registers_shrink<Registers<kHeads>::kLoader>();
    load_tokens(a, shared, items, head_tiles, warp, static_cast<int>(threadIdx.x % 32));
  } else if (group < kLogitGroups) {
    ptx::registers_grow<Registers<kHeads>::kLogits>();
    weigh_tokens(a, shared, items, head_tiles, group, warp);
  } else if (group == kLogitGroups) {
    ptx::registers_grow<Registers<kHeads>::kValues>();
    add_tokens<false>(a, shared, items, head_tiles, 0, warp);
  } else {
    ptx::registers_grow<Registers<kHeads>::kValues>();
    add_tokens<true>(a, shared, items, head_tiles, kOwnBlocks, warp);
  }
}

}  // namespace strata::cuda::sparse_decode
