// Quantised queries and cache rows as 16-bit tensor-core operands, exactly: every e4m3 value is an fp16 value, and an MXFP4 value (two
// significant bits times a power of two) is a bf16 value.
#pragma once

#include <cuda_fp8.h>

#include "backends/cuda/device/pack.cuh"
#include "backends/cuda/ptx/mma.cuh"
#include "backends/cuda/ptx/mma_f16.cuh"
#include "formats/e2m1.h"
#include "formats/quantize.h"
#include "formats/ue8m0.h"
#include "strata/kv_format.h"

namespace strata::cuda {

__device__ __forceinline__ uint32_t e4m3x2_to_half2(uint32_t quantized) {
  const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(quantized), __NV_E4M3);
  return pair.x | uint32_t{pair.y} << 16;
}

// Values [first, first + 8) of a vector of `dim`, first a multiple of 8; 0 after its end. `scales`: of MXFP4 blocks.
template <KvFormat kFormat>
__device__ __forceinline__ uint4 load_operand(const uint8_t* data, const uint8_t* scales, int first, int dim) {
  uint32_t v[4];
  if constexpr (kFormat == KvFormat::indexer_fp8) {
    uint32_t quantized[2];
    load_words(data + first, quantized);
    v[0] = e4m3x2_to_half2(quantized[0] & 0xFFFFu);
    v[1] = e4m3x2_to_half2(quantized[0] >> 16);
    v[2] = e4m3x2_to_half2(quantized[1] & 0xFFFFu);
    v[3] = e4m3x2_to_half2(quantized[1] >> 16);
  } else if constexpr (kFormat == KvFormat::indexer_mxfp4) {
    uint32_t quantized[1];
    load_words(data + first / 2, quantized);
    const float scale = to_float(E8m0{scales[first / kMxfp4Block]});
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] = pack_bf16(e2m1_to_float(static_cast<uint8_t>(quantized[0] >> 8 * i)) * scale,
                       e2m1_to_float(static_cast<uint8_t>(quantized[0] >> (8 * i + 4))) * scale);
    }
  } else {
    if (first + 8 <= dim) {
      load_words(data + 2 * first, v);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int d = first + 2 * i;
        v[i] = (d < dim ? uint32_t{load_u16(data + 2 * d)} : 0u) | (d + 1 < dim ? uint32_t{load_u16(data + 2 * d + 2)} << 16 : 0u);
      }
    }
  }
  return make_uint4(v[0], v[1], v[2], v[3]);
}

template <KvFormat kFormat>
__device__ __forceinline__ void mma_operands(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kFormat == KvFormat::indexer_fp8) {
    ptx::mma_m16n8k16_f16(d, a, b0, b1);
  } else {
    ptx::mma_m16n8k16_bf16(d, a, b0, b1);
  }
}

}  // namespace strata::cuda
