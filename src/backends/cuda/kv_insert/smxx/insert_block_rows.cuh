// 16-byte aligned rows of block formats, from 16-byte aligned bf16 values: fp8_ds_mla_v4, fp8_ds_mla, indexer_fp8.
#pragma once

#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/device/store_words.cuh"
#include "backends/cuda/runtime/early_launch.cuh"

namespace strata::cuda {

struct InsertRows {
  Rows<const Bf16> k;
  const int64_t* slots;
  PagedCache cache;
  CacheRows cache_rows;
  int32_t rows;
  bool ue8m0;
  bool touches;  // few rows only: with many the latencies are hidden
};

// Lanes per row, and values per lane.
template <KvFormat kFormat>
inline constexpr int kRowLanes = kFormat == KvFormat::indexer_fp8 ? 16 : kWarpSize;
template <KvFormat kFormat>
inline constexpr int kLaneValues = kFormat == KvFormat::indexer_fp8 ? kIndexerDim / kRowLanes<kFormat> : 16;

constexpr int kInsertThreads = 128;

template <KvFormat kFormat>
__global__ void __launch_bounds__(kInsertThreads) insert_block_rows_kernel(const __grid_constant__ InsertRows c) {
  constexpr int kLanes = kRowLanes<kFormat>, kWords = kLaneValues<kFormat> / 2;
  const int64_t n = int64_t{blockIdx.x} * (kInsertThreads / kLanes) + threadIdx.x / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  start_early([&] {
    if (!c.touches || n >= c.rows || lane > 0) return;
    c.cache_rows.touch_row(speculative_load(c.slots + n));
  });
  const int64_t there = min(n, int64_t{c.rows} - 1);  // lanes past the end take part in reductions
  const auto* const k = reinterpret_cast<const uint8_t*>(c.k.row(there));
  const int64_t slot = n < c.rows ? __ldg(c.slots + there) : -1;
  uint32_t words[kWords], rope = 0;
  load_wide(k + 4 * kWords * lane, words);
  if constexpr (kFormat == KvFormat::fp8_ds_mla) rope = *reinterpret_cast<const uint32_t*>(k + 2 * kMlaLatentDim + 4 * lane);
  constexpr int kBlock = kFormat == KvFormat::fp8_ds_mla_v4 ? kKvBlock : kMlaTile;  // as many as an indexer's row has
  const uint32_t amax = amax_bits<kBlock / (2 * kWords)>(words);
  const uint32_t rope_bits = max(rope & 0x7FFFu, rope >> 16 & 0x7FFFu);
  const RowAddress to = slot >= 0 ? c.cache_rows.row(slot) : RowAddress{};
  if (__any_sync(kAllLanes, max(amax, rope_bits) >= kBf16Infinity)) {
    float x[2 * kWords];
    unpack_words(words, x);
    if constexpr (kFormat == KvFormat::indexer_fp8) {
      detail::store_indexer_fp8<true>(to, x, lane, slot >= 0);
    } else if (slot < 0) {
      return;
    } else if constexpr (kFormat == KvFormat::fp8_ds_mla_v4) {
      detail::store_v4<true>(to, x, lane);
    } else {
      const float pair[2] = {bf16_low(rope), bf16_high(rope)};
      store_mla_row<true>(c.cache, c.cache_rows.row(slot), x, pair, lane, {.ue8m0 = c.ue8m0});
    }
    return;
  }
  if (slot < 0) return;
  if constexpr (kFormat == KvFormat::fp8_ds_mla_v4) {
    store_v4(to, words, amax, lane);
  } else if constexpr (kFormat == KvFormat::fp8_ds_mla) {
    store_mla(to, words, rope, amax, lane, c.ue8m0);
  } else {
    store_indexer(to, words, amax, lane);
  }
}

}  // namespace strata::cuda
