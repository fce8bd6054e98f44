// Shared memory of the Hopper decode kernels.
#pragma once

#include "backends/cuda/sm90/sparse_decode/token_rows.cuh"

namespace strata::cuda::sparse_decode {

// `kHeads_`: those of a block.
template <KvFormat kFormat_, int kHeads_>
struct alignas(1024) SharedMemory {
  static constexpr KvFormat kFormat = kFormat_;
  static constexpr int kHeads = kHeads_, kHeadBytes = kHeads * 128, kQueryThreads = kConsumerThreads;
  static constexpr bool kFewHeads = kHeads < kHeadTile;
  static constexpr int kGroups = kFewHeads ? 2 : 1;  // consumers with weights of their own
  // With two teams, each producer warpgroup fills the tiles of one stage, which are one consumer's: it waits for rows and for its stores
  // while the other converts, and a thread has registers for two rows. With one team both fill every tile, which is full sooner after it
  // has become free.
  static constexpr int kTeams = kHeads <= 16 ? 2 : 1;

  uint8_t q[kChunks<kFormat>][kHeadBytes];            // fp16, rows are heads
  uint8_t k[kStages][kChunks<kFormat>][kChunkBytes];  // fp16, rows are cache rows
  uint8_t p[kGroups][kHeadBytes];                     // fp16 weights, [head][cache row]
  float alpha[kHeads];       // few heads: a head's factor to base 2; at the end, what its sums become the output by
  float2 reference[kHeads];  // 64 heads: what the sums are multiplied by before the present weights, and what those are relative to
  float q_scale[kHeads];     // a head's query is q_scale times its fp16 values
  // Few heads: what each warp of a group knows of a head; at the end, what a group's weights are relative to, and its largest logit.
  float columns[kFewHeads ? kGroups : 1][4][kFewHeads ? kHeads : 1];
  float2 ends[kFewHeads ? kGroups : 1][kFewHeads ? kHeads : 1];
  alignas(16) uint32_t attended[kStages][kRowTile / 8];  // bit 4 i + j of word w: row 8 w + i is attended
  uint64_t full[kStages][kHalves];
  uint64_t empty[kStages][kHalves];
  RowList list;
  uint32_t overflow;  // a value did not fit fp16 at the present key shift
  int32_t key_shift;
};
static_assert(sizeof(SharedMemory<KvFormat::fp8_ds_mla, 64>) <= 232448, "227 KB a block");

}  // namespace strata::cuda::sparse_decode
