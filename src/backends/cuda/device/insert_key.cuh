// Inserts V4 keys into paged caches (V4 8.2): rotated, quantised, stored.
#pragma once

#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/device/store_words.cuh"
#include "backends/cuda/device/values.cuh"
#include "backends/cuda/device/warp.cuh"

namespace strata::cuda {

struct KeyInsertArgs {
  const int64_t* slots;  // null: nothing is inserted
  int32_t num_slots;     // entries of slots
  const int64_t* positions;
  Rows<const float> cos_sin;
  PagedCache cache;
  CacheRows rows_of_cache;
};

inline constexpr int kKeyRotary = kV4RopeDim, kKeyDim = kV4NopeDim + kKeyRotary, kKeyRun = kKeyDim / kWarpSize;

// Whether the rows of the cache and of the table allow a warp to insert keys by words: 16 values per thread.
inline bool inserts_words(const PagedCache& cache, const TensorView& cos_sin) {
  return cache.format == KvFormat::fp8_ds_mla_v4 && rows_of_words(cache) && rows_aligned(cos_sin) && cos_sin.shape[1] == kKeyRotary;
}

// The first of a thread's rotary dimensions; below 0 it has none.
__device__ __forceinline__ int key_rope_dim(int lane) { return kKeyRun * lane - (kKeyDim - kKeyRotary); }

// Inserts a warp's key, 16 values per thread as the norm leaves them. get_angles(angles): for threads with rotary dimensions.
template <class GetAngles>
__device__ __forceinline__ void insert_words(const KeyInsertArgs& k, int64_t slot, uint32_t (&words)[kKeyRun / 2],
                                             const GetAngles& get_angles, int lane) {
  if (key_rope_dim(lane) >= 0) {
    float values[kKeyRun], angles[kKeyRun];
    get_angles(angles);
    unpack_words(words, values);
    rotate_values(values, angles);
    pack_words(values, words);
  }
  if (slot < 0) return;
  const uint32_t amax = amax_bits<kKvBlock / kKeyRun>(words);
  const RowAddress to = k.rows_of_cache.row(slot);
  if (!__any_sync(kAllLanes, amax >= kBf16Infinity)) return store_v4(to, words, amax, lane);
  float values[kKeyRun];
  unpack_words(words, values);
  store_row_512<true>(k.cache, to, values, lane);
}

}  // namespace strata::cuda
