// Logits of the lightning indexer on Hopper for few tokens per request, fp8: memory-bound.
//
// Each CTA has a consecutive share of all tiles of all tokens. One warp fills a ring of tiles by TMA (8192 bytes of rows, 256 of scales),
// also across the end of a token, so that the ring does not run empty between requests. Two warpgroups process the tiles alternately, with
// the same queries. With these registers and shared memory the CTA fits on every SM together with a CTA of the query product that runs
// concurrently; with three warpgroups it would not.
//
// Floor: 132 bytes a row at 4.3 TB/s: one tile in 450 cycles of an SM, in which the product takes 128 and the epilogue about 120 issue
// slots.
#pragma once

#include "backends/cuda/indexer/query_lanes.cuh"
#include "backends/cuda/indexer/sm90/tile_ring.cuh"
#include "backends/cuda/indexer/sm90/work.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"

namespace strata::cuda::sm90 {

struct DecodeArgs {
  LogitsArgs logits;       // shares: one per CTA
  int32_t slots;           // of the ring, at most kDecodeSlots
  IndexerQueryArgs query;  // from which a CTA makes queries and weights, if it does
};

using DecodeShared = RingShared<kDecodeSlots>;

// Prefetches to L2, while the preceding kernel may still run, the chain of data on which the first tiles' addresses depend. Only a hint:
// what preceding kernels still write is read later.
__device__ __forceinline__ void prefetch_addresses(const LogitsArgs& a) {
  constexpr int kLine = 32;  // numbers
  const int64_t first = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kLine;
  if (first < a.num_tokens) {
    ptx::prefetch_l2(a.lengths + first);
    ptx::prefetch_l2(a.token_to_req + first);
  }
  if (first < a.table_entries) ptx::prefetch_l2(a.block_table + first);
}

// Loads the tiles of a range, one after the other. By one warp; a lane looks up one page per 32 tiles.
__device__ __forceinline__ void load_tiles(const LogitsArgs& a, DecodeShared& s, WorkRange range, int slots) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  RingFiller filler(a, s, slots);
  Tiles tiles;
  while (next_tiles(a, range, tiles)) {
    if (tiles.begin >= tiles.end) continue;
    const int32_t* const table = a.block_table + a.token_to_req[tiles.token] * a.table_stride;
    for (int first = tiles.begin; first < tiles.end; first += 32) {
      const int tile = min(first + lane, tiles.end - 1), block = a.page_tiles.divide(tile);
      filler.add(min(tiles.end - first, 32), __ldg(table + block), (tile - block * a.page_tiles.value()) * kTileRows);
    }
  }
}

// The same as load_token of IndexerQuery's output, by the lanes of eight of its warps.
__device__ __forceinline__ Scorer<64, 1> make_token(const LogitsArgs& a, const IndexerQueryArgs& q, DecodeShared& s, int64_t token) {
  using namespace indexer_query;
  constexpr int kSteps = 64 / (kDecodeScorers / kHeadLanes);
  const int lane = static_cast<int>(threadIdx.x) % 32, in_head = lane % kHeadLanes, first = static_cast<int>(threadIdx.x) / kHeadLanes;
  uint4 values[kSteps][kHalves] = {};
  float weights[kSteps] = {};
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int head = first + step * (kDecodeScorers / kHeadLanes);
    if (head >= q.heads) continue;
    const auto* const from = reinterpret_cast<const uint4*>(q.q + token * q.token_stride + head * q.head_stride) + in_head;
    values[step][0] = from[0], values[step][1] = from[kHeadLanes];
    weights[step] = q.weight(token, head);
  }
  LaneRotation<RopePairing::interleaved> rotation;
  rotation.load(q, token, lane);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int head = first + step * (kDecodeScorers / kHeadLanes);
    uint32_t words[kHalves][kWords];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const uint4 v = values[step][half];
      words[half][0] = v.x, words[half][1] = v.y, words[half][2] = v.z, words[half][3] = v.w;
    }
    rotation.rotate(words[1]);
    uint2 quantized[kHalves];
    const float scale = encode_e4m3(words, q.amax_floor, quantized);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int unit = (half * kHeadLanes + in_head) / 2;  // unit of 16 bytes, as load_queries places it
      reinterpret_cast<uint2*>(s.queries + head * kIndexerDim)[2 * (unit ^ head % 8) + in_head % 2] = quantized[half];
    }
    if (in_head == 0) s.weights[head] = head < q.heads ? q.scaled_weight(weights[step], scale) : 0.0f;
  }
  ptx::fence_proxy_async();
  ptx::barrier_sync(1, kDecodeScorers);
  Scorer<64, 1> scorer;
  scorer.set_weights([&](int column) { return s.weights[column]; });
  return scorer;
}

// kMaxima: the row's maxima are noted for the selection. kMakesQuery: queries and weights are made here.
template <bool kMaxima, bool kMakesQuery>
__global__ void __maxnreg__(kDecodeRegisters) indexer_logits_decode_kernel(const __grid_constant__ DecodeArgs args) {
  extern __shared__ uint8_t dynamic[];
  auto& s = *reinterpret_cast<DecodeShared*>(dynamic + (1024 - __cvta_generic_to_shared(dynamic) % 1024) % 1024);
  const LogitsArgs& a = args.logits;
  const int warpgroup = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 128, 0);  // warp-uniform, also for the compiler
  prepare_ring(a, s, args.slots);
  prefetch_addresses(a);
  __syncthreads();
  ptx::wait_for_previous_kernel();
  ptx::launch_dependents();
  // Addresses depend on the request index: with few tokens all are in one line, which is loaded concurrently with the lengths.
  load_line(a.token_to_req);
  WorkRange range = find_work<1>(a, static_cast<int>(blockIdx.x));
  if (warpgroup == kDecodeWarpgroups) return load_tiles(a, s, range, args.slots);

  RingConsumer<kDecodeWarpgroups, DecodeShared> ring(s, args.slots, warpgroup);
  const int own_row = ring.own_row();
  int before = 0;  // tiles of the earlier tokens
  Tiles tiles;
  while (next_tiles(a, range, tiles)) {
    const int count = tiles.end - tiles.begin;
    if (count <= 0) continue;
    const int64_t token = tiles.token;
    if (before > 0) ptx::barrier_sync(1, kDecodeScorers);  // the previous queries have been used
    const Scorer<64, 1> scorer = [&] {
      if constexpr (kMakesQuery) {
        return make_token(a, args.query, s, token);
      } else {
        return load_token<kDecodeScorers>(a, s, token, [] {});
      }
    }();
    float* const out = a.logits + token * a.logits_stride;
    const int rows = scored_rows(a, token);
    const bool notes = kMaxima && rows > a.maxima_from;
    for (int i = (warpgroup + kDecodeWarpgroups - before % kDecodeWarpgroups) % kDecodeWarpgroups; i < count; i += kDecodeWarpgroups) {
      const float logit = ring.score(scorer);
      const int tile = tiles.begin + i, row = tile * kTileRows + own_row;
      if (row < rows && threadIdx.x % 4 < 2) out[row] = logit;
      if (notes) note_maximum(a.maxima + token * a.maxima_stride, tile, row, rows, logit);
    }
    before += count;
  }
}

}  // namespace strata::cuda::sm90
