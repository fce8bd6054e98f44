// Rows of e4m3 codes, which become bf16 on their way into the ring. A lane asks for 16 codes at a time, by cp.async into a place of its own
// behind the shared memory of all problems, two groups of four rows ahead of their use: registers would not hold as many bytes. What it
// asked for it alone reads.
//
// Of a tile of 48 rows of 576 codes, cycles of one SM: shared memory 216 for the codes to arrive, 216 to read them, 432 to write bf16. Of a
// lane's 216 codes, in 15 steps: 120 instructions to fp16, 240 to fp32, 120 to bf16, and about 200 beside them.
#pragma once

#include <cuda_fp16.h>

#include "backends/cuda/mqa_engine/copy_narrow.cuh"
#include "backends/cuda/mqa_engine/pipeline.cuh"
#include "backends/cuda/ptx/convert.cuh"
#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/memory.cuh"

namespace strata::cuda::sparse_prefill {

template <class S>
struct CodedTile {
  static_assert(S::kParts == 1 && S::kFills == 1);
  static constexpr int kGroupRows = 4, kGroups = S::kRowsPerWarp / kGroupRows;  // of a producer warp
  static constexpr int kAhead = 2;
  static constexpr int kSteps = (S::kChunks + 1) / 2;  // of a group: of its rows 128 codes each, in the last one perhaps 64
  static constexpr int kStepBytes = kWarpgroup * 16, kGroupBytes = kSteps * kStepBytes;
  static constexpr int kStagedBytes = kAhead * kGroupBytes;
  static_assert(kAhead < kGroups);
};

// Bytes of shared memory of a problem's kernel.
template <class Problem>
constexpr int shared_bytes() {
  using S = typename Problem::Shape;
  if constexpr (Problem::kCodes) {
    static_assert(sizeof(SharedMemory<S>) + CodedTile<S>::kStagedBytes <= 232448, "227 KB a block");
    return sizeof(SharedMemory<S>) + CodedTile<S>::kStagedBytes;
  }
  return sizeof(SharedMemory<S>);
}

// Four codes times a factor as two pairs of bf16. Not by unpack_e4m3, whose shifts would be 60 instructions more of a tile's 15 steps.
__device__ __forceinline__ uint2 coded_values(uint32_t codes, float factor) {
  const uint2 halves = ptx::cvt_f16x4_e4m3x4(codes);
  const auto pair = [factor](uint32_t half2) {
    const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&half2));
    return ptx::cvt_bf16x2(v.x * factor, v.y * factor);
  };
  return {pair(halves.x), pair(halves.y)};
}

// A lane's part of the copies and conversions. Eight lanes that write to the ring at a time have four rows and the pieces 0 and 2, 1 and 3,
// 4 and 6 or 5 and 7 of 16 codes: every bank once, as units of a row are swizzled by its number.
template <class S>
class CodedRows {
  using Tile = CodedTile<S>;

 public:
  __device__ __forceinline__ explicit CodedRows(SharedMemory<S>& shared)
      : staged(ptx::shared_address(&shared) + sizeof(SharedMemory<S>) + threadIdx.x % kWarpgroup * 16) {}

  static __device__ __forceinline__ int row() { return threadIdx.x % 4; }  // of the group
  // The lane's 16 codes of the first step, from its row's start on.
  static __device__ __forceinline__ int first_code() { return 16 * piece(); }

  // A step of a group, and nothing where the row ends before; zeros when not wanted.
  template <bool kAligned>
  __device__ __forceinline__ void ask(int step, const uint8_t* from, bool wanted) const {
    if (has(step)) {
      const uint32_t to = staged + step * Tile::kStepBytes;
      if constexpr (kAligned) {
        ptx::cp_async_16_or_zero(to, from + step * 128, wanted ? 16 : 0);
      } else {
        copy_narrow(to, from + step * 128, wanted);
      }
    }
    ptx::cp_async_commit();
  }
  // The codes of the step that was asked for first, whose place may be asked for again once they are converted, or of the one behind it.
  // `before`: how many steps in front of it have not been asked for again.
  template <int kBefore>
  __device__ __forceinline__ uint4 arrived(int step) const {
    ptx::cp_async_wait<Tile::kAhead * Tile::kSteps - 1 - kBefore>();
    const uint32_t at = step < Tile::kSteps ? staged + step * Tile::kStepBytes : other_group();
    return ptx::ld_shared(at);
  }
  // To a row of the tile whose first chunk is at `tile`.
  static __device__ __forceinline__ void convert(int step, const uint4& codes, uint32_t tile, int row_of_tile, float factor) {
    if (!has(step)) return;
    const int unit = piece() % 4 * 2;
    const uint32_t to = tile + (2 * step + piece() / 4) * S::kChunkBytes + unit_offset(row_of_tile, unit);
    const uint2 a = coded_values(codes.x, factor), b = coded_values(codes.y, factor);
    ptx::st_shared(to, {a.x, a.y, b.x, b.y});
    const uint2 c = coded_values(codes.z, factor), d = coded_values(codes.w, factor);
    ptx::st_shared(to ^ 16, {c.x, c.y, d.x, d.y});
  }
  // On to the other group's places.
  __device__ __forceinline__ void next_group() {
    staged = other_group();
    at_second = !at_second;
  }

 private:
  static __device__ __forceinline__ int piece() { return threadIdx.x / 4 % 2 * 2 + threadIdx.x / 8 % 2 + threadIdx.x / 16 % 2 * 4; }
  static __device__ __forceinline__ bool has(int step) { return 2 * step + 1 < S::kChunks || piece() < 4; }

  __device__ __forceinline__ uint32_t other_group() const { return at_second ? staged - Tile::kGroupBytes : staged + Tile::kGroupBytes; }

  uint32_t staged;
  bool at_second = false;
};

}  // namespace strata::cuda::sparse_prefill
