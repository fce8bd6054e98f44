// Shared memory of the Hopper decode kernels.
#pragma once

#include "backends/cuda/sparse_attn_decode/sm90/rotation.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/token_rows.cuh"

namespace strata::cuda::sparse_decode {

// What a producing warp has for itself: where its rows of V4 are (FoundRows).
template <KvFormat kFormat>
inline constexpr int kWarpBytes = kFormat == KvFormat::fp8_ds_mla_v4 ? 1024 : 16;

// Registers of a thread of each role, of which all 512 start with 128, and what fits them besides a consumer's 128 sums of values and 32
// logits: steps of its logits that take the queries from registers (consumer.cuh); pieces of its row that a producer of V4 asks for ahead.
struct RegisterRoom {
  int consumer, producer, held_steps, pieces_ahead;
};

// `kHeads_`: those of a block.
template <KvFormat kFormat_, int kHeads_>
struct alignas(1024) SharedMemory {
  static constexpr KvFormat kFormat = kFormat_;
  static constexpr RegisterRoom kRoom = kFormat == KvFormat::fp8_ds_mla_v4 ? RegisterRoom{200, 56, 2, 5} : RegisterRoom{192, 64, 0, 0};
  static_assert(kRoom.consumer + kRoom.producer == 256);
  static constexpr int kHeads = kHeads_, kHeadBytes = kHeads * 128;

  uint8_t q[kChunks<kFormat>][kHeadBytes];            // fp16, rows are heads
  uint8_t k[kStages][kChunks<kFormat>][kChunkBytes];  // fp16, rows are cache rows
  uint8_t p[kHeadBytes];                              // fp16 weights, [head][cache row]
  float2 ends[2][kHeads];                             // of a consumer's tiles: a head's sum of weights, and its largest logit
  float2 reference[kHeads];  // what the sums are multiplied by before the present weights, and what those are relative to
  float q_scale[kHeads];     // a head's query is q_scale times its fp16 values
  alignas(16) uint32_t attended[kStages][kRowTile / 8];  // bit 4 i + j of word w: row 8 w + i is attended
  uint64_t full[kStages][kHalves][kParts];
  uint64_t empty[kStages][kHalves];
  alignas(16) uint8_t of_warp[kProducerThreads / 32][kWarpBytes<kFormat_>];
  RowList list;
  Rotation rotation;  // of the token
  int32_t token;      // for the producers, when their tiles are done
  uint32_t overflow;  // a value did not fit fp16 at the present key shift
  int32_t key_shift;
};
static_assert(sizeof(SharedMemory<KvFormat::fp8_ds_mla, 64>) <= 232448, "227 KB a block");

// How often stages have been filled: bit s is odd for stage s. A run over tiles begins with stage 0 whatever was before, so that a tile's
// stage is known when the loop is compiled.
__device__ __forceinline__ uint32_t phase_of(uint32_t phases, uint32_t stage, int32_t tile) {
  return (phases >> stage ^ static_cast<uint32_t>(tile) / kStages) & 1u;
}
__device__ __forceinline__ uint32_t phases_behind(uint32_t phases, int32_t tiles) {
  static_assert(kStages == 2);
  const auto number = static_cast<uint32_t>(tiles);
  return phases ^ ((number + 1) / kStages & 1u) ^ (number / kStages & 1u) << 1;
}

}  // namespace strata::cuda::sparse_decode
