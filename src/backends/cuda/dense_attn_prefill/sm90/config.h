// Shapes, shared memory and parameters of the Hopper kernel of dense_attn_prefill.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "backends/cuda/device/divisor.h"
#include "backends/cuda/device/warpgroup.cuh"
#include "backends/cuda/portable_attention/dense_prefill.h"

namespace strata::cuda::dense_prefill {

inline constexpr int kNopeDim = 128, kRotaryDim = 64, kValueDim = 128;
inline constexpr int kChunkDims = 64;  // dimensions of a swizzled 128-byte row
inline constexpr int kNopeChunks = kNopeDim / kChunkDims, kKeyChunks = kNopeChunks + kRotaryDim / kChunkDims,
                     kValueChunks = kValueDim / kChunkDims;
inline constexpr int kQueries = 128, kKeys = 128;  // of a tile
inline constexpr int kStages = 2;
inline constexpr int kWorkQueueSlots = 2;                 // most dynamically assigned items that some role has not begun
inline constexpr int kChunkBytes = 128 * kChunkDims * 2;  // of 128 rows

inline constexpr int kConsumers = 2;  // warpgroups that multiply, 64 queries each
inline constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
inline constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
// Roles share the registers that a CTA starts with: a role that requested more would wait for ever.
static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= 65536 / kThreads / 8 * 8 * (kConsumers + 1));

struct alignas(1024) SharedMemory {
  uint8_t q[kKeyChunks][kChunkBytes];
  uint8_t keys[kStages][kKeyChunks][kChunkBytes];
  uint8_t values[kStages][kValueChunks][kChunkBytes];
  uint64_t q_full, q_empty;
  uint64_t keys_full[kStages], keys_empty[kStages], values_full[kStages], values_empty[kStages];
  uint64_t queue_full[kWorkQueueSlots], queue_empty[kWorkQueueSlots];
  int32_t queue[kWorkQueueSlots];
};
static_assert(sizeof(SharedMemory) <= 232448, "227 KB a block");

// An item is a tile of 128 queries of a head. In causal attention the last queries see the most keys, so a head's last tile comes first.
// Heads of a group, which share L2, alternate. Each CTA starts with one item; a CTA that finishes takes the next.
struct Args {
  DensePrefill call;
  CUtensorMap q, k_nope, k_pe, v;
  int32_t num_items;
  uint32_t* next_item;  // initialised by the first CTA
  Divisor items_of_request{1}, items_of_group{1}, heads_of_group{1};
  int32_t tiles;  // of the longest request's queries
};

}  // namespace strata::cuda::dense_prefill
