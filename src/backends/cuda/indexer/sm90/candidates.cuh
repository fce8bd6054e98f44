// The entries of one long row that may be among its k largest, as the CTAs of its logits kernel write them for the selection: V4 10.4.
//
// CTAs exchange nothing. With tiles assigned round-robin each has about its share of the k largest. From the first half of its tiles a CTA
// derives a value that a few more of its logits than that reach. One warp lists the logits that reach it as tiles are scored, so that the
// list is complete with the last logit. `limit` is the smallest key from which on the CTA has written everything: if it had more of the k
// than expected, the selection detects it.
#pragma once

#include "backends/cuda/device/warp.cuh"
#include "backends/cuda/indexer/order_key.cuh"
#include "backends/cuda/indexer/sm90/config.h"
#include "backends/cuda/indexer/sm90/notes.h"
#include "backends/cuda/ptx/mbarrier.cuh"

namespace strata::cuda::sm90 {

inline constexpr int kCandidateTiles = kCandidateRows / kTileRows;

// Of a CTA of the logits kernel.
struct CandidatesShared {
  alignas(16) uint32_t keys[kCandidateTiles][kTileRows];
  static constexpr int kList = 256;
  static_assert(kCandidateSlots <= 32);
  alignas(16) uint32_t found[kList];  // keys
  uint32_t positions[kList];          // indices in `keys`
  uint64_t scored[kCandidateTiles];   // barriers: a tile's keys have been written
};

// By a warp concurrently with those that score the CTA's tiles. share: of the k.
__device__ __forceinline__ void list_candidates(CandidatesShared& s, int tiles, int share, const Candidates& out) {
  constexpr int kList = CandidatesShared::kList;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto wait = [&](int tile) {
    ptx::mbarrier_wait(ptx::shared_address(&s.scored[tile]), 0);
    if (tile + 1 < tiles) ptx::mbarrier_wait(ptx::shared_address(&s.scored[tile + 1]), 0);
  };
  // The lane's four keys of two tiles.
  const auto read = [&](int tile) {
    return tile + lane / 16 < tiles ? *reinterpret_cast<const uint4*>(&s.keys[tile][0] + 4 * lane) : uint4{};
  };
  // Each lane's largest of the sample: if n of the lanes reach a value, about n entries do.
  const int sampled = min((tiles / 2 + 1) / 2 * 2, tiles);
  uint32_t largest = 0;
#pragma unroll 1
  for (int i = 0; i < sampled; i += 2) {
    wait(i);
    const uint4 v = read(i);
    largest = max(max(max(v.x, v.y), max(v.z, v.w)), largest);
  }
  const float entries = (15.0f + 0.75f * static_cast<float>(share)) * static_cast<float>(sampled) / static_cast<float>(max(tiles, 1));
  const int lanes = min(max(__float2int_rn(32.0f * (1.0f - __expf(-entries / 32.0f))), 1), 32);
  int larger = 0;
#pragma unroll
  for (int j = 1; j < 32; ++j) larger += __shfl_xor_sync(kAllLanes, largest, j) > largest ? 1 : 0;
  const uint32_t bound = max(__reduce_min_sync(kAllLanes, larger < lanes ? largest : 0xFFFFFFFFu), 1u);

  int count = 0;
  const auto list = [&](const uint4& v, int tile) {
    const uint32_t keys[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const bool reaches = keys[e] >= bound;
      const uint32_t those = __ballot_sync(kAllLanes, reaches);
      const int at = count + __popc(those & ((1u << lane) - 1));
      if (reaches && at < kList) {
        s.found[at] = keys[e];
        s.positions[at] = static_cast<uint32_t>(tile * kTileRows + 4 * lane + e);
      }
      count += __popc(those);
    }
  };
  int tile = 0;
#pragma unroll 1
  for (; tile + 4 <= sampled; tile += 4) {
    const uint4 v = read(tile), w = read(tile + 2);
    list(v, tile);
    list(w, tile + 2);
  }
#pragma unroll 1
  for (; tile < tiles; tile += 2) {
    wait(tile);
    list(read(tile), tile);
  }
  __syncwarp();
  uint32_t* const out_keys = out.keys + blockIdx.x * kCandidateSlots;
  uint32_t* const out_entries = out.entries + blockIdx.x * kCandidateSlots;
  const auto send = [&](int at, uint32_t key, uint32_t position) {
    out_keys[at] = key;
    out_entries[at] = (blockIdx.x + position / kTileRows * gridDim.x) * kTileRows + position % kTileRows;
  };
  uint32_t limit = bound;
  if (count <= kCandidateSlots) {
    if (lane < kCandidateSlots) send(lane, lane < count ? s.found[lane] : 0, lane < count ? s.positions[lane] : 0);
  } else if (count > kList) {
    limit = 0xFFFFFFFFu;
    if (lane < kCandidateSlots) send(lane, 0, 0);
  } else {  // the largest of them
    if (lane < 4 && count + lane < kList) s.found[count + lane] = 0;
    __syncwarp();
    int sent = 0;
    uint32_t left = 0;  // the largest that is not written
#pragma unroll 1
    for (int first = 0; first < count; first += 32) {
      const uint32_t key = first + lane < count ? s.found[first + lane] : 0;
      int reach = 0;
#pragma unroll 4
      for (int i = 0; i < count; i += 4) {
        const uint4 v = *reinterpret_cast<const uint4*>(s.found + i);
        reach += (v.x >= key ? 1 : 0) + (v.y >= key ? 1 : 0) + (v.z >= key ? 1 : 0) + (v.w >= key ? 1 : 0);
      }
      const bool fits = key > 0 && reach <= kCandidateSlots;
      const uint32_t those = __ballot_sync(kAllLanes, fits);
      if (fits) send(sent + __popc(those & ((1u << lane) - 1)), key, s.positions[first + lane]);
      sent += __popc(those);
      left = max(left, fits ? 0 : key);
    }
    limit = __reduce_max_sync(kAllLanes, left) + 1;
    if (lane >= sent && lane < kCandidateSlots) send(lane, 0, 0);
  }
  if (lane == 0) out.limits[blockIdx.x] = limit;
}

}  // namespace strata::cuda::sm90
