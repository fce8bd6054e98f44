// Rows of e4m3 values, which are converted to bf16 on their way into the ring. A lane loads 16 values at a time by cp.async, two groups of
// four rows ahead of their use. The target is its own slot after the shared memory of all problems, because registers would not hold as
// many bytes. A lane reads only what it loaded itself.
//
// A tile of 48 rows of 576 values, cycles of one SM: shared memory 216 to write the e4m3 values, 216 to read them, 432 to write bf16. A
// lane's 216 values, in 15 steps: 120 instructions to fp16, 240 to fp32, 120 to bf16, and about 200 others.
#pragma once

#include <cuda_fp16.h>

#include "backends/cuda/mqa_engine/copy_narrow.cuh"
#include "backends/cuda/mqa_engine/pipeline.cuh"
#include "backends/cuda/ptx/convert.cuh"
#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/memory.cuh"

namespace strata::cuda::sparse_prefill {

template <class S>
struct QuantizedTile {
  static_assert(S::kTileSlots == 1 && S::kFills == 1);
  static constexpr int kGroupRows = 4, kGroups = S::kRowsPerWarp / kGroupRows;  // of a producer warp
  static constexpr int kPrefetchDistance = 2;
  static constexpr int kSteps = (S::kChunks + 1) / 2;  // of a group: 128 values of each of its rows, in the last step perhaps 64
  static constexpr int kStepBytes = kWarpgroup * 16, kGroupBytes = kSteps * kStepBytes;
  static constexpr int kStagedBytes = kPrefetchDistance * kGroupBytes;
  static_assert(kPrefetchDistance < kGroups);
};

// Bytes of shared memory of a problem's kernel.
template <class Problem>
constexpr int shared_bytes() {
  using S = typename Problem::Shape;
  if constexpr (Problem::kQuantized) {
    static_assert(sizeof(SharedMemory<S>) + QuantizedTile<S>::kStagedBytes <= 232448, "227 KB a block");
    return sizeof(SharedMemory<S>) + QuantizedTile<S>::kStagedBytes;
  }
  return sizeof(SharedMemory<S>);
}

// Four e4m3 values times a factor as two pairs of bf16. Not by unpack_e4m3, whose shifts would be 60 instructions more in a tile's 15
// steps.
__device__ __forceinline__ uint2 dequantized(uint32_t quantized, float factor) {
  const uint2 halves = ptx::cvt_f16x4_e4m3x4(quantized);
  const auto pair = [factor](uint32_t half2) {
    const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&half2));
    return ptx::cvt_bf16x2(v.x * factor, v.y * factor);
  };
  return {pair(halves.x), pair(halves.y)};
}

// A lane's copies and conversions. Eight lanes that write to the ring together have four rows and the 16-value units 0 and 2, 1 and 3, 4
// and 6 or 5 and 7. They hit every bank once, because the units of a row are swizzled by the row number.
template <class S>
class QuantizedRows {
  using Tile = QuantizedTile<S>;

 public:
  __device__ __forceinline__ explicit QuantizedRows(SharedMemory<S>& shared)
      : staged(ptx::shared_address(&shared) + sizeof(SharedMemory<S>) + threadIdx.x % kWarpgroup * 16) {}

  static __device__ __forceinline__ int row() { return threadIdx.x % 4; }  // row in the group
  // The lane's 16 values of the first step, relative to its row's start.
  static __device__ __forceinline__ int first_value() { return 16 * lane_unit(); }

  // Issues the load of a step of a group; nothing where the row ends before; zeros if not valid.
  template <bool kAligned>
  __device__ __forceinline__ void issue_load(int step, const uint8_t* from, bool valid) const {
    if (has(step)) {
      const uint32_t to = staged + step * Tile::kStepBytes;
      if constexpr (kAligned) {
        ptx::cp_async_16_or_zero(to, from + step * 128, valid ? 16 : 0);
      } else {
        copy_narrow(to, from + step * 128, valid);
      }
    }
    ptx::cp_async_commit();
  }
  // The values of step `step`, the oldest load or the one after it. Their slot may be reloaded once they are converted. kBefore: number of
  // earlier steps whose slots have not been reloaded.
  template <int kBefore>
  __device__ __forceinline__ uint4 arrived(int step) const {
    ptx::cp_async_wait<Tile::kPrefetchDistance * Tile::kSteps - 1 - kBefore>();
    const uint32_t at = step < Tile::kSteps ? staged + step * Tile::kStepBytes : other_group();
    return ptx::ld_shared(at);
  }
  // Converts to a row of the tile whose first chunk is at `tile`.
  static __device__ __forceinline__ void convert(int step, const uint4& quantized, uint32_t tile, int row_of_tile, float factor) {
    if (!has(step)) return;
    const int unit = lane_unit() % 4 * 2;
    const uint32_t to = tile + (2 * step + lane_unit() / 4) * S::kChunkBytes + unit_offset(row_of_tile, unit);
    const uint2 a = dequantized(quantized.x, factor), b = dequantized(quantized.y, factor);
    ptx::st_shared(to, {a.x, a.y, b.x, b.y});
    const uint2 c = dequantized(quantized.z, factor), d = dequantized(quantized.w, factor);
    ptx::st_shared(to ^ 16, {c.x, c.y, d.x, d.y});
  }
  // Advances to the other group's slots.
  __device__ __forceinline__ void next_group() {
    staged = other_group();
    at_second = !at_second;
  }

 private:
  static __device__ __forceinline__ int lane_unit() { return threadIdx.x / 4 % 2 * 2 + threadIdx.x / 8 % 2 + threadIdx.x / 16 % 2 * 4; }
  static __device__ __forceinline__ bool has(int step) { return 2 * step + 1 < S::kChunks || lane_unit() < 4; }

  __device__ __forceinline__ uint32_t other_group() const { return at_second ? staged - Tile::kGroupBytes : staged + Tile::kGroupBytes; }

  uint32_t staged;
  bool at_second = false;
};

}  // namespace strata::cuda::sparse_prefill
