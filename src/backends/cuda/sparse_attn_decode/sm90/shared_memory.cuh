// Shared memory of the Hopper decode kernels.
#pragma once

#include "backends/cuda/sparse_attn_decode/sm90/rotation.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/token_rows.cuh"

namespace strata::cuda::sparse_decode {

// Private space of a producing warp: the addresses of its V4 rows (FoundRows).
template <KvFormat kFormat>
inline constexpr int kWarpBytes = kFormat == KvFormat::fp8_ds_mla_v4 ? 1024 : 16;

// Registers per thread of each role; all 512 threads start with 128. And what fits into them, in addition to a consumer's 128 sums of
// values and 32 logits. held_steps: steps of the logits that take queries from registers (consumer.cuh). loads_ahead: loads that a V4
// producer issues ahead.
struct RegisterRoom {
  int consumer, producer, held_steps, loads_ahead;
};

// `kHeads_`: heads of a CTA.
template <KvFormat kFormat_, int kHeads_>
struct alignas(1024) SharedMemory {
  static constexpr KvFormat kFormat = kFormat_;
  static constexpr RegisterRoom kRoom = kFormat == KvFormat::fp8_ds_mla_v4 ? RegisterRoom{200, 56, 2, 5} : RegisterRoom{192, 64, 0, 0};
  static_assert(kRoom.consumer + kRoom.producer == 256);
  static constexpr int kHeads = kHeads_, kHeadBytes = kHeads * 128;

  uint8_t q[kChunks<kFormat>][kHeadBytes];            // fp16, rows are heads
  uint8_t k[kStages][kChunks<kFormat>][kChunkBytes];  // fp16, rows are cache rows
  uint8_t p[kHeadBytes];                              // fp16 softmax weights, [head][cache row]
  float2 ends[2][kHeads];                             // of a consumer's tiles: a head's sum of weights and its largest logit
  float2 reference[kHeads];  // rescale factor of earlier sums, and the running maximum that the present weights use
  float q_scale[kHeads];     // a head's query is q_scale times its fp16 values
  alignas(16) uint32_t attended[kStages][kRowTile / 8];  // bit 4 i + j of word w: row 8 w + i is attended
  uint64_t full[kStages][kHalves][kFillsPerHalf];
  uint64_t empty[kStages][kHalves];
  alignas(16) uint8_t of_warp[kProducerThreads / 32][kWarpBytes<kFormat_>];
  RowList list;
  Rotation rotation;  // of the CTA's token
  int32_t token;      // for the producers, after their tiles
  uint32_t overflow;  // a value did not fit fp16 with the present key shift
  int32_t key_shift;
};
static_assert(sizeof(SharedMemory<KvFormat::fp8_ds_mla, 64>) <= 232448, "227 KB a block");

// Parity of the number of fills of each stage: bit s for stage s. Every run over tiles begins with stage 0, so that a tile's stage is known
// at compile time.
__device__ __forceinline__ uint32_t phase_of(uint32_t phases, uint32_t stage, int32_t tile) {
  return (phases >> stage ^ static_cast<uint32_t>(tile) / kStages) & 1u;
}
__device__ __forceinline__ uint32_t phases_after(uint32_t phases, int32_t tiles) {
  static_assert(kStages == 2);
  const auto number = static_cast<uint32_t>(tiles);
  return phases ^ ((number + 1) / kStages & 1u) ^ (number / kStages & 1u) << 1;
}

}  // namespace strata::cuda::sparse_decode
