// Shapes, shared memory and parameters of the Hopper kernel of dense_attn_prefill.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "backends/cuda/common/divisor.h"
#include "backends/cuda/common/warpgroup.cuh"
#include "backends/cuda/smxx/attention/dense_prefill.h"

namespace strata::cuda::dense_prefill {

inline constexpr int kNopeDim = 128, kRotaryDim = 64, kValueDim = 128;
inline constexpr int kChunkLanes = 64;  // of a swizzled 128-byte row
inline constexpr int kNopeChunks = kNopeDim / kChunkLanes, kKeyChunks = kNopeChunks + kRotaryDim / kChunkLanes,
                     kValueChunks = kValueDim / kChunkLanes;
inline constexpr int kQueries = 128, kKeys = 128;  // of a tile
static_assert(kQueries == kKeys, "turns.h counts on it");
inline constexpr int kStages = 2;
inline constexpr int kChunkBytes = 128 * kChunkLanes * 2;  // of 128 rows

inline constexpr int kConsumers = 2;  // warpgroups that multiply, 64 queries each
inline constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
inline constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= 65536 / kWarpgroup);

struct alignas(1024) SharedMemory {
  uint8_t q[kKeyChunks][kChunkBytes];
  uint8_t keys[kStages][kKeyChunks][kChunkBytes];
  uint8_t values[kStages][kValueChunks][kChunkBytes];
  uint64_t q_full, q_empty;
  uint64_t keys_full[kStages], keys_empty[kStages], values_full[kStages], values_empty[kStages];
};
static_assert(sizeof(SharedMemory) <= 232448, "227 KB a block");

// A block's turn is a tile of 128 queries of a head, or two of them, as far from either end (dense_prefill/turns.h). Heads of a group,
// which share L2, take turns.
struct Args {
  DensePrefill call;
  CUtensorMap q, k_nope, k_pe, v;
  int32_t num_turns, tiles_of_turn;
  Divisor turns_of_request{1}, turns_of_group{1}, heads_of_group{1};
  int32_t tiles;  // of the longest request's queries
};

}  // namespace strata::cuda::dense_prefill
