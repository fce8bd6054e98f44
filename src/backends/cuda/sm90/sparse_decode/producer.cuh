// The producer of the Hopper decode kernel: a warpgroup that loads cache rows, turns them into fp16 and puts them into shared memory.
//
// A row comes in 16-byte pieces by plain loads, four lanes to the 64 codes of one scale, all of a thread's pieces of the next tile in
// flight (36 KB an SM). e4m3 -> fp16 is one exact instruction a pair, the scale one packed product. Eight lanes (two neighbouring rows,
// four even or odd 16-byte units) hit all banks of the swizzled tile: 512 cycles of stores for 64 rows, the floor.
#pragma once

#include <cuda_fp16.h>

#include "backends/cuda/ptx/cluster.cuh"
#include "backends/cuda/ptx/convert.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/ptx/warpgroup.cuh"
#include "backends/cuda/sm90/sparse_decode/token_rows.cuh"

namespace strata::cuda::sparse_decode {

// Any alignment.
__device__ __forceinline__ uint4 load_bytes(const uint8_t* p) {
  uint32_t w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = uint32_t{load_u16(p + 4 * i)} | uint32_t{load_u16(p + 4 * i + 2)} << 16;
  return {w[0], w[1], w[2], w[3]};
}
// Zero when not wanted.
template <bool kAligned>
__device__ __forceinline__ uint4 load_16(bool wanted, const void* p) {
  if constexpr (kAligned) return ptx::ld_once_if(wanted, p);
  return wanted ? load_bytes(static_cast<const uint8_t*>(p)) : uint4{};
}

__device__ __forceinline__ uint32_t mul_f16x2(uint32_t a, __half2 b) {
  const __half2 product = __hmul2(*reinterpret_cast<const __half2*>(&a), b);
  return *reinterpret_cast<const uint32_t*>(&product);
}

// A bf16 pair times `factor`, a power of two, as fp16.
__device__ __forceinline__ uint32_t bf16x2_to_f16x2(uint32_t pair, float factor) {
  return ptx::cvt_f16x2(__uint_as_float(pair << 16) * factor, __uint_as_float(pair & 0xFFFF0000u) * factor);
}
__device__ __forceinline__ uint4 bf16_to_f16(uint4 v, float factor) {
  return {bf16x2_to_f16x2(v.x, factor), bf16x2_to_f16x2(v.y, factor), bf16x2_to_f16x2(v.z, factor), bf16x2_to_f16x2(v.w, factor)};
}
// The largest |bits| of bf16 values: monotonous in their magnitude.
__device__ __forceinline__ uint32_t max_bf16_bits(uint4 v) {
  constexpr uint32_t kMagnitude = 0x7FFF7FFFu;
  const uint32_t m = __vmaxu2(__vmaxu2(v.x & kMagnitude, v.y & kMagnitude), __vmaxu2(v.z & kMagnitude, v.w & kMagnitude));
  return max(m & 0xFFFFu, m >> 16);
}

// Byte offset of a 16-byte unit in a [64 rows][8 units] chunk.
__device__ __forceinline__ uint32_t unit_offset(int row, int unit) { return static_cast<uint32_t>(row * 128 + ((unit ^ (row & 7)) << 4)); }

// What one half of a tile is made of: blocks of 64 codes, then perhaps the 64 bf16 lanes of the rotated part.
template <KvFormat kFormat, int kHalf>
struct HalfRow {
  static constexpr bool kV4 = kFormat == KvFormat::fp8_ds_mla_v4;
  static constexpr int kFirstChunk = kHalf * kLeftChunks;
  static constexpr int kBlocks = kV4 && kHalf == 1 ? 3 : 4;
  static constexpr bool kRope = kHalf == 1;
  static constexpr int kRopeOffset = kV4 ? kV4NopeDim : kMlaRopeOffset;
  static constexpr int kPieces = kBlocks + (kRope ? 2 : 0);
  static constexpr int kChunksOfHalf = kBlocks + (kRope ? 1 : 0);
};

// A thread's pieces of one row, as they are in memory.
template <KvFormat kFormat, int kHalf>
struct RawRow {
  using Half = HalfRow<kFormat, kHalf>;
  uint4 piece[Half::kPieces];
  uint32_t scale[2];  // V4: four ue8m0 bytes in scale[0]; V3.2: two fp32
  bool attended;

  // `quarter`: which 16 of a block's 64 bytes. Odd rows take the two parts of the rotated lanes in the other order: see the header.
  template <bool kAligned>
  __device__ __forceinline__ void load(const RowAddress<kFormat>& at, int row, int quarter) {
    attended = at.data != nullptr;
#pragma unroll
    for (int i = 0; i < Half::kBlocks; ++i) {
      piece[i] = load_16<kAligned>(attended, at.data + (Half::kFirstChunk + i) * kChunkLanes + quarter * 16);
    }
    if constexpr (Half::kRope) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        piece[Half::kBlocks + i] = load_16<kAligned>(attended, at.data + Half::kRopeOffset + 16 * rope_unit(i, row, quarter));
      }
    }
    const uint8_t* scales = Half::kV4 ? at.scales + 4 * kHalf : at.data + kMlaScaleOffset + 8 * kHalf;
#pragma unroll
    for (int i = 0; i < (Half::kV4 ? 1 : 2); ++i) {
      if constexpr (kAligned) {
        scale[i] = ptx::ld_if(attended, scales + 4 * i, kNeutralScales);
      } else {
        scale[i] = attended ? float_bits(load_f32(scales + 4 * i)) : kNeutralScales;
      }
    }
  }
  // V4: four bytes of 2^-15; V3.2: about 2^-15 too. Anything finite does, as the codes are zero.
  static constexpr uint32_t kNeutralScales = Half::kV4 ? 0x70707070u : 0x38000000u;

  static __device__ __forceinline__ int rope_unit(int i, int row, int quarter) { return quarter + 4 * (i ^ (row & 1)); }
};

// Where converted values go: this block's tile and, in a cluster, the same place of the other block's.
template <bool kCluster>
struct TileWriter {
  uint32_t local, remote, remote_barrier;

  __device__ __forceinline__ void store(uint32_t offset, uint4 v) const {
    ptx::st_shared(local + offset, v);
    if constexpr (kCluster) ptx::store_async(remote + offset, v, remote_barrier);
  }
};

// The first or second pair of four e4m3 codes as fp16.
template <int kPair>
__device__ __forceinline__ uint32_t code_pair(uint32_t codes) {
  return ptx::cvt_f16x2_e4m3x2(static_cast<uint16_t>(codes >> (16 * kPair)));
}
// e4m3 codes times a scale that fp16 holds exactly.
__device__ __forceinline__ uint4 scaled_codes(uint32_t w0, uint32_t w1, __half2 scale) {
  return {mul_f16x2(code_pair<0>(w0), scale), mul_f16x2(code_pair<1>(w0), scale), mul_f16x2(code_pair<0>(w1), scale),
          mul_f16x2(code_pair<1>(w1), scale)};
}
// The same with any scale: the product is rounded to bf16, as MLA 9.1 has it, which fp16 holds exactly.
__device__ __forceinline__ uint32_t rounded_pair(uint32_t codes_f16x2, float scale, float factor) {
  const float2 codes = __half22float2(*reinterpret_cast<const __half2*>(&codes_f16x2));
  return bf16x2_to_f16x2(ptx::cvt_bf16x2(codes.x * scale, codes.y * scale), factor);
}
__device__ __forceinline__ uint4 rounded_codes(uint32_t w0, uint32_t w1, float scale, float factor) {
  return {rounded_pair(code_pair<0>(w0), scale, factor), rounded_pair(code_pair<1>(w0), scale, factor),
          rounded_pair(code_pair<0>(w1), scale, factor), rounded_pair(code_pair<1>(w1), scale, factor)};
}

// V4: true when every scale byte is in 105 .. 126: at the usual shift its power of two is a normal fp16 and products stay below 2^16.
__device__ __forceinline__ bool usual_scales(uint32_t bytes) {
  constexpr uint32_t kTops = 0x80808080u;
  return (((bytes + 0x01010101u) | bytes) & kTops) == 0 && (((bytes | kTops) - 0x69696969u) & kTops) == kTops;
}
// 2^(byte i of `bytes` - 127 + 8) as an fp16 pair, for usual scales: the byte less 104 is the exponent field.
__device__ __forceinline__ uint32_t usual_scale(uint32_t bytes, int i) {
  const uint32_t field = __byte_perm(bytes - 0x68686868u, 0, 0x0404u | static_cast<uint32_t>(i) << 4 | static_cast<uint32_t>(i) << 12);
  return field << 2;
}
static_assert(kUsualKeyShift == 8);

__device__ __forceinline__ __half2 as_half2(uint32_t pair) { return *reinterpret_cast<const __half2*>(&pair); }

// Converts a thread's pieces and stores them. Returns false when a value may not fit fp16: key_factor = 2^key_shift is too large.
template <KvFormat kFormat, int kHalf, bool kCluster>
__device__ __forceinline__ bool store_row(const RawRow<kFormat, kHalf>& raw, int row, int quarter, float key_factor,
                                          const TileWriter<kCluster>& tile) {
  using Half = HalfRow<kFormat, kHalf>;
  bool fits = true;
  const auto store_codes = [&](int i, uint4 first, uint4 second) {
    tile.store(i * kChunkBytes + unit_offset(row, 2 * quarter), first);
    tile.store(i * kChunkBytes + unit_offset(row, 2 * quarter + 1), second);
  };
  if constexpr (Half::kV4) {
    const uint32_t bytes = Half::kBlocks == 4 ? raw.scale[0] : raw.scale[0] & 0x00FFFFFFu | 0x70000000u;
    const bool usual = usual_scales(bytes) && key_factor == pow2(kUsualKeyShift);
    uint32_t scales[Half::kBlocks];
#pragma unroll
    for (int i = 0; i < Half::kBlocks; ++i) scales[i] = usual_scale(bytes, i);
    if (!usual) {
#pragma unroll
      for (int i = 0; i < Half::kBlocks; ++i) {
        // 2^(byte - 127); the byte of NaN makes an infinity here, and then NaN by the second product.
        const float power = __uint_as_float((bytes >> (8 * i) & 0xFFu) << 23);
        const float scale = fmaf(power, key_factor, __fmul_rn(power, 0.0f));
        fits &= scale <= 128.0f;
        scales[i] = ptx::cvt_f16x2(scale, scale);
      }
    }
#pragma unroll
    for (int i = 0; i < Half::kBlocks; ++i) {
      const uint4 v = raw.piece[i];
      store_codes(i, scaled_codes(v.x, v.y, as_half2(scales[i])), scaled_codes(v.z, v.w, as_half2(scales[i])));
    }
  } else {
#pragma unroll
    for (int i = 0; i < Half::kBlocks; ++i) {
      const uint4 v = raw.piece[i];
      const float scale = __uint_as_float(raw.scale[i / 2]), shifted = scale * key_factor;
      fits &= shifted <= 128.0f;
      if ((raw.scale[i / 2] & 0x7FFFFFu) == 0) {
        const __half2 scales = __float2half2_rn(shifted);
        store_codes(i, scaled_codes(v.x, v.y, scales), scaled_codes(v.z, v.w, scales));
      } else {
        store_codes(i, rounded_codes(v.x, v.y, scale, key_factor), rounded_codes(v.z, v.w, scale, key_factor));
      }
    }
  }
  if constexpr (Half::kRope) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 v = raw.piece[Half::kBlocks + i];
      fits &= __uint_as_float(max_bf16_bits(v) << 16) * key_factor < 65504.0f;
      tile.store(Half::kBlocks * kChunkBytes + unit_offset(row, raw.rope_unit(i, row, quarter)), bf16_to_f16(v, key_factor));
    }
  }
  return fits;
}

// A producer thread's rows of one half: the pieces of the tile that is stored next.
template <KvFormat kFormat, int kHalf, int kClusterSize, bool kAligned>
struct HalfProducer {
  using Half = HalfRow<kFormat, kHalf>;
  static constexpr bool kCluster = kClusterSize > 1;
  // In a cluster each block converts its part of a tile's rows, for both.
  static constexpr int kRows = kRowTile / kClusterSize, kRowsPerThread = kRows / 32;
  RawRow<kFormat, kHalf> raw[kRowsPerThread];

  // Stores the tile of `step` and loads `next`, the rows of the one behind it. Returns false when a value may not fit.
  __device__ __forceinline__ bool advance(SharedMemory<kFormat>& shared, uint32_t step, uint32_t rank, float key_factor,
                                          const int (&row)[kRowsPerThread], const RowAddress<kFormat> (&next)[kRowsPerThread]) {
    const int warp = threadIdx.x % kWarpgroup / 32, lane = threadIdx.x % 32, quarter = lane % 4;
    const uint32_t peer = rank ^ 1u, stage = step % kStages, parity = step / kStages & 1u;
    const uint32_t full = ptx::shared_address(&shared.full[stage][kHalf]), target = ptx::shared_address(shared.k[stage][Half::kFirstChunk]);
    TileWriter<kCluster> writer{.local = target, .remote = 0, .remote_barrier = 0};
    if constexpr (kCluster) {
      writer.remote = ptx::map_shared(target, peer);
      writer.remote_barrier = ptx::map_shared(full, peer);
    }
    bool fits = true;
    ptx::mbarrier_wait(ptx::shared_address(&shared.empty[stage][kHalf]), parity ^ 1u);
#pragma unroll
    for (int i = 0; i < kRowsPerThread; ++i) {
      fits &= store_row(raw[i], row[i], quarter, key_factor, writer);
      if constexpr (kHalf == 1) {
        const uint32_t word = __ballot_sync(~0u, raw[i].attended);
        uint32_t* attended = &shared.attended[stage][row[i] / 8];
        if (lane == 0) {
          *attended = word;
          if constexpr (kCluster) ptx::store_async(ptx::map_shared(ptx::shared_address(attended), peer), word, writer.remote_barrier);
        }
      }
      raw[i].template load<kAligned>(next[i], row[i], quarter);
    }
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
      if (kCluster && warp == 0) {
        constexpr uint32_t kRemoteBytes = kRows * Half::kChunksOfHalf * 128 + (kHalf == 1 ? kRows / 8 * 4 : 0);
        ptx::mbarrier_arrive_expect_tx(full, kRemoteBytes);
      } else {
        ptx::mbarrier_arrive(full);
      }
    }
    return fits;
  }
};

// The tiles [first, end), the right half of each before the left; `step` counts the tiles this block has ever filled.
template <KvFormat kFormat, int kClusterSize, bool kAligned>
__device__ __forceinline__ void produce(const DecodeArgs& a, SharedMemory<kFormat>& shared, const RowList& list, int32_t first, int32_t end,
                                        uint32_t& step, uint32_t rank, float key_factor) {
  using Left = HalfProducer<kFormat, 0, kClusterSize, kAligned>;
  using Right = HalfProducer<kFormat, 1, kClusterSize, kAligned>;
  constexpr int kRowsPerThread = Left::kRowsPerThread;
  const int warp = threadIdx.x % kWarpgroup / 32, lane = threadIdx.x % 32;
  int row[kRowsPerThread];
  int32_t slot[kRowsPerThread] = {};
  RowAddress<kFormat> next[kRowsPerThread];
  Left left;
  Right right;
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) row[i] = static_cast<int>(rank) * Left::kRows + (warp * kRowsPerThread + i) * 8 + lane / 4;
  const auto look_up = [&](int32_t tile, int i) { return tile < end ? list.slot(tile * kRowTile + row[i]) : -1; };
  const auto address = [&](int32_t tile, int i) { return RowAddress<kFormat>(a, tile * kRowTile + row[i] < list.main, slot[i]); };
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) slot[i] = look_up(first, i);
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    next[i] = address(first, i);
    slot[i] = look_up(first + 1, i);
    right.raw[i].template load<kAligned>(next[i], row[i], lane % 4);
    left.raw[i].template load<kAligned>(next[i], row[i], lane % 4);
  }
  bool fits = true;
#pragma unroll 1
  for (int32_t tile = first; tile < end; ++tile, ++step) {
    // Slots are looked at a whole tile after they were asked for, and before more loads are: a wait for them is then not one for rows.
#pragma unroll
    for (int i = 0; i < kRowsPerThread; ++i) {
      next[i] = address(tile + 1, i);
      slot[i] = look_up(tile + 2, i);
    }
    fits &= right.advance(shared, step, rank, key_factor, row, next);
    fits &= left.advance(shared, step, rank, key_factor, row, next);
  }
  if (!fits) {
    shared.overflow = 1;
    if constexpr (kClusterSize > 1) ptx::store_cluster_u32(ptx::map_shared(ptx::shared_address(&shared.overflow), rank ^ 1u), 1);
  }
}

// The largest key shift at which every value of the rows fits: the exact way after an overflow. All producer threads; the result is the
// minimum of what they return.
template <KvFormat kFormat>
__device__ __noinline__ int32_t fitting_key_shift(const DecodeArgs& a, const RowList& list, int32_t first, int32_t end) {
  int32_t shift = kUsualKeyShift;
  // value < 2^(exponent + 1) must stay below 2^(15 - slack) with the shift.
  const auto hold = [&](uint32_t fp32_bits, int32_t slack) {
    const int32_t exponent = static_cast<int32_t>(fp32_bits >> 23 & 0xFFu) - 127;
    if (exponent < 128) shift = min(shift, 14 - slack - exponent);  // infinities and NaN do not become anything else
  };
  const int32_t last = min(end * kRowTile, list.total);
  for (int32_t at = first * kRowTile + static_cast<int32_t>(threadIdx.x % kProducerThreads); at < last; at += kProducerThreads) {
    const RowAddress<kFormat> row(a, at < list.main, list.slot(at));
    if (row.data == nullptr) continue;
    // codes are at most 448 < 2^9: 2^e * code < 2^(e + 9), so e + 9 + shift <= 16 as 448 * 2^7 = 57344 fits.
    if constexpr (kFormat == KvFormat::fp8_ds_mla_v4) {
      for (int i = 0; i < kV4NumBlocks; ++i) hold(uint32_t{row.scales[i]} << 23, 7);
    } else {
      for (int i = 0; i < 4; ++i) hold(float_bits(load_f32(row.data + kMlaScaleOffset + 4 * i)) + 0x7FFFFFu, 7);
    }
    constexpr int kRopeOffset = kFormat == KvFormat::fp8_ds_mla_v4 ? kV4NopeDim : kMlaRopeOffset;
    for (int i = 0; i < 64; ++i) hold(uint32_t{load_u16(row.data + kRopeOffset + 2 * i)} << 16, 0);
  }
  return shift;
}

}  // namespace strata::cuda::sparse_decode
