// A tile of cache rows in shared memory: found through a table, copied unchanged (cp.async, one tile ahead of use), and converted to bf16
// if necessary. ldmatrix reads bf16 rows without bank conflicts: 16-byte chunk c of a row lies at chunk c ^ (row % 8).
#pragma once

#include <type_traits>

#include "backends/cuda/device/pack.cuh"
#include "backends/cuda/portable_attention/row_attention.h"
#include "backends/cuda/ptx/arithmetic.cuh"
#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/mma.cuh"
#include "formats/kv_rows.h"

namespace strata::cuda {

// Byte offset of 16-byte chunk `chunk` of row `row` of a swizzled bf16 tile.
template <int kDim>
__device__ __forceinline__ uint32_t swizzled(uint32_t row, uint32_t chunk) {
  return row * (kDim * 2) + ((chunk ^ (row & 7)) << 4);
}

// Address of the chunk `chunks` further in the same row, from the address of a lane's chunk. The bits of `chunks` below 8 must be 0 in the
// lane's chunk; tiles are aligned to 128 bytes. With a constant argument this is one XOR and an immediate offset.
__device__ __forceinline__ uint32_t advance_chunks(uint32_t address, uint32_t chunks) {
  return (address ^ ((chunks & 7) << 4)) + (chunks & ~7u) * 16;
}

// Layout of the formats with e4m3 values in a tile before conversion: chunks of 16 values, then chunks of 8 bf16 values; scales are
// elsewhere. An odd pitch lets eight rows be read at once.
template <KvFormat kFormat, int kDim>
struct QuantizedRow {
  static constexpr int kQuantizedChunks = kFormat == KvFormat::fp8_ds_mla_v4 ? 28 : kFormat == KvFormat::fp8_ds_mla ? 32 : kDim / 16;
  static constexpr int kChunks = kFormat == KvFormat::fp8_tensor ? kQuantizedChunks : kQuantizedChunks + 8;
  static constexpr int kPitch = kChunks | 1;
};

// Addresses of the rows of a tile in memory.
template <int kRows>
struct RowAddresses {
  const uint8_t* data[kRows];
  int32_t scales[kRows];         // fp8_ds_mla_v4: distance from the row to its scales
  uint32_t present[kRows / 32];  // a bit per row: attended. Other rows' addresses are those of the cache and are not read.

  __device__ bool has(int row) const { return (present[row / 32] >> (row % 32) & 1) != 0; }
};

// Copies bytes of any alignment to shared memory; zeros without a source.
template <int kBytes>
__device__ __forceinline__ void copy_slowly(uint8_t* shared, const uint8_t* global, bool present) {
  uint32_t words[kBytes / 4] = {};
  if (present) load_words(global, words);
#pragma unroll
  for (int i = 0; i < kBytes / 4; ++i) reinterpret_cast<uint32_t*>(shared)[i] = words[i];
}

// Starts the copies of a tile: a warp copies one row at a time. Rows that are not attended become zeros: finite, with weight 0.
template <int kDim, int kRows, int kWarps>
__device__ __forceinline__ void start_rows(const RowScope& s, const RowAddresses<kRows>& rows, uint8_t* tile, uint8_t* scales) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // target(row, c) is where chunk c of a row goes.
  const auto copy = [&](auto chunks, auto&& target) {
    if (s.is_aligned) {
#pragma unroll
      for (int i = 0; i < kRows / kWarps; ++i) {
        const int row = warp + i * kWarps, bytes = rows.has(row) ? 16 : 0;
        const uint8_t* from = rows.data[row] + lane * 16;
#pragma unroll
        for (int c = 0; c < chunks.value; c += 32) {
          if (c + lane < chunks.value) ptx::cp_async_16_or_zero(ptx::shared_address(target(row, c + lane)), from + c * 16, bytes);
        }
      }
    } else {
#pragma unroll 1
      for (int row = warp; row < kRows; row += kWarps) {
#pragma unroll 1
        for (int c = lane; c < chunks.value; c += 32) copy_slowly<16>(target(row, c), rows.data[row] + c * 16, rows.has(row));
      }
    }
  };
  switch (s.format) {
    case KvFormat::bf16:
      copy(std::integral_constant<int, kDim / 8>{}, [&](int row, int c) { return tile + swizzled<kDim>(row, c); });
      return;
    case KvFormat::fp8_ds_mla_v4: {
      using Row = QuantizedRow<KvFormat::fp8_ds_mla_v4, kDim>;
      copy(std::integral_constant<int, Row::kChunks>{}, [&](int row, int c) { return tile + (row * Row::kPitch + c) * 16; });
      if (threadIdx.x < kRows) {
        const int row = threadIdx.x;
        const uint8_t* from = rows.data[row] + rows.scales[row];
        if (s.is_aligned) {
          ptx::cp_async_8_or_zero(ptx::shared_address(scales + row * 16), from, rows.has(row) ? 8 : 0);
        } else {
          copy_slowly<8>(scales + row * 16, from, rows.has(row));
        }
      }
      return;
    }
    case KvFormat::fp8_ds_mla: {
      using Row = QuantizedRow<KvFormat::fp8_ds_mla, kDim>;
      copy(std::integral_constant<int, Row::kChunks + 1>{}, [&](int row, int c) {
        if (c == Row::kQuantizedChunks) return scales + row * 16;  // the four fp32 scales
        return tile + (row * Row::kPitch + c - (c > Row::kQuantizedChunks ? 1 : 0)) * 16;
      });
      return;
    }
    default:
      using Row = QuantizedRow<KvFormat::fp8_tensor, kDim>;
      copy(std::integral_constant<int, Row::kChunks>{}, [&](int row, int c) { return tile + (row * Row::kPitch + c) * 16; });
      return;
  }
}

// Factor of e4m3 values that were shifted into bf16 (see widen): 2^120 times the scale. One bf16 factor where that is representable, else
// two.
struct DequantFactor {
  uint32_t first = 0x7B807B80u;   // pairs of bf16; 2^120
  uint32_t second = 0x3F803F80u;  // 1
  float scale = 1.0f;             // fp8_ds_mla: any fp32 number, so the product is rounded
};

// 2^(ue8m0 - 7) is a bf16.
inline constexpr uint32_t kLargestOneFactor = 134;

template <bool kTwoFactors>
__device__ __forceinline__ DequantFactor power_factor(uint32_t ue8m0) {
  DequantFactor f;
  if (!kTwoFactors || ue8m0 <= kLargestOneFactor) {
    f.first = ((ue8m0 + 120) << 7) * 0x00010001u;
  } else {
    f.second = (ue8m0 == 255 ? 0x7FC0u : ue8m0 << 7) * 0x00010001u;
  }
  return f;
}

// Converts two e4m3 values in the upper bytes of 16-bit halves to bf16. Exponent and mantissa move to their bf16 positions, which divides
// by 2^120. The product with the factor is exact in bf16, also for subnormal values.
template <KvFormat kFormat, bool kTwoFactors>
__device__ __forceinline__ uint32_t widen(uint32_t quantized, const DequantFactor& f) {
  const uint32_t small = (quantized & 0x80008000u) | ((quantized >> 4) & 0x07F007F0u);
  if constexpr (kFormat == KvFormat::fp8_ds_mla) {
    const float first = kTwoFactors ? 0x1p120f : f.scale, second = kTwoFactors ? f.scale : 1.0f;
    return ptx::cvt_bf16x2(bf16_low(small) * first * second, bf16_high(small) * first * second);
  } else {
    const uint32_t product = ptx::mul_bf16x2(small, f.first);
    return kTwoFactors ? ptx::mul_bf16x2(product, f.second) : product;
  }
}

// Converts sixteen e4m3 values.
template <KvFormat kFormat, bool kTwoFactors>
__device__ __forceinline__ void widen_chunk(const uint4& quantized, const DequantFactor& f, uint32_t (&words)[8]) {
  const uint32_t in[4] = {quantized.x, quantized.y, quantized.z, quantized.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[2 * i] = widen<kFormat, kTwoFactors>(__byte_perm(in[i], 0, 0x1404), f);
    words[2 * i + 1] = widen<kFormat, kTwoFactors>(__byte_perm(in[i], 0, 0x3424), f);
  }
}

// Not zero: at least one of the values is NaN (0x7F carries into bit 7 of its byte).
__device__ __forceinline__ uint32_t nan_values(const uint4& v) {
  return (((v.x & 0x7F7F7F7Fu) + 0x01010101u) | ((v.y & 0x7F7F7F7Fu) + 0x01010101u) | ((v.z & 0x7F7F7F7Fu) + 0x01010101u) |
          ((v.w & 0x7F7F7F7Fu) + 0x01010101u)) &
         0x80808080u;
}

// Converts a tile of start_rows to bf16. A thread converts every (kThreads / kRows)-th chunk of one row. A NaN value makes its row NaN,
// because it makes every logit of the row NaN.
template <KvFormat kFormat, int kDim, int kRows, int kThreads, bool kTwoFactors>
__device__ __forceinline__ void convert_quantized_rows(const uint8_t* from, const uint8_t* scales, uint8_t* to) {
  using Row = QuantizedRow<kFormat, kDim>;
  constexpr int kStep = kThreads / kRows;
  static_assert(2 * kStep % 8 == 0, "from chunk to chunk the swizzle stays the same");
  const int row = threadIdx.x % kRows, first = threadIdx.x / kRows;
  const uint8_t* quantized = from + (row * Row::kPitch + first) * 16;
  const uint32_t low = swizzled<kDim>(row, 2 * first), high = low ^ 16;
  uint64_t bytes = 0;  // fp8_ds_mla_v4: scale bytes from that of the first chunk on
  if constexpr (kFormat == KvFormat::fp8_ds_mla_v4) bytes = *reinterpret_cast<const uint64_t*>(scales + row * 16) >> (first / 4 * 8);
  uint32_t nan = 0;
#pragma unroll
  for (int i = 0; i < (Row::kChunks + kStep - 1) / kStep; ++i) {
    const int c = first + i * kStep;
    if (c >= Row::kChunks) continue;
    const uint4 chunk = *reinterpret_cast<const uint4*>(quantized + i * kStep * 16);
    if (c >= Row::kQuantizedChunks) {
      *reinterpret_cast<uint4*>(to + swizzled<kDim>(row, Row::kQuantizedChunks + c)) =
          chunk;  // 2 kQuantizedChunks + (c - kQuantizedChunks)
      continue;
    }
    DequantFactor f;
    if constexpr (kFormat == KvFormat::fp8_ds_mla_v4) f = power_factor<kTwoFactors>(static_cast<uint8_t>(bytes >> (i * kStep / 4 * 8)));
    if constexpr (kFormat == KvFormat::fp8_ds_mla) {
      f.scale = reinterpret_cast<const float*>(scales)[row * 4 + c / 8] * (kTwoFactors ? 1.0f : 0x1p120f);
    }
    uint32_t words[8];
    widen_chunk<kFormat, kTwoFactors>(chunk, f, words);
    *reinterpret_cast<uint4*>(to + low + i * kStep * 32) = make_uint4(words[0], words[1], words[2], words[3]);
    *reinterpret_cast<uint4*>(to + high + i * kStep * 32) = make_uint4(words[4], words[5], words[6], words[7]);
    nan |= nan_values(chunk);
  }
  // The thread's own first chunk, which has e4m3 values in every format.
  if (nan != 0) *reinterpret_cast<uint32_t*>(to + low) = 0x7FC07FC0u;
}

// No model has scales that need two factors (keys of 57344 and more): the usual loop has no branches for them.
template <KvFormat kFormat>
__device__ __forceinline__ bool needs_two_factors(const uint8_t* scales) {
  if constexpr (kFormat == KvFormat::fp8_ds_mla_v4) {
    const uint2 bytes = *reinterpret_cast<const uint2*>(scales);
    return (__vcmpgtu4(bytes.x, kLargestOneFactor * 0x01010101u) | __vcmpgtu4(bytes.y, kLargestOneFactor * 0x01010101u)) != 0;
  } else if constexpr (kFormat == KvFormat::fp8_ds_mla) {
    const float4 s = *reinterpret_cast<const float4*>(scales);
    return !(fmaxf(fmaxf(fabsf(s.x), fabsf(s.y)), fmaxf(fabsf(s.z), fabsf(s.w))) < 0x1p7f);
  } else {
    return false;
  }
}

template <int kDim, int kRows, int kThreads>
__device__ __forceinline__ void convert_rows(KvFormat format, const uint8_t* from, const uint8_t* scales, uint8_t* to) {
  constexpr KvFormat kRecord = kDim == 512 ? KvFormat::fp8_ds_mla_v4 : KvFormat::fp8_ds_mla;  // the format of this dimension
  if (format != kRecord) {
    convert_quantized_rows<KvFormat::fp8_tensor, kDim, kRows, kThreads, false>(from, scales, to);
  } else if (needs_two_factors<kRecord>(scales + threadIdx.x % kRows * 16)) {
    convert_quantized_rows<kRecord, kDim, kRows, kThreads, true>(from, scales, to);
  } else {
    convert_quantized_rows<kRecord, kDim, kRows, kThreads, false>(from, scales, to);
  }
}

}  // namespace strata::cuda
