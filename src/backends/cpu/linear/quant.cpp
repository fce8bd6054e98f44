#include "backends/cpu/linear/quant.h"

#include "backends/cpu/simd_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/linear/quant.cpp"
#include <hwy/foreach_target.h>

#include "backends/cpu/linear/e4m3_groups-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu {
namespace HWY_NAMESPACE {
namespace {

// Stored as the destination's type.
HWY_INLINE void store_values(VF v, Bf16* p) { store_bf16(v, p); }
HWY_INLINE void store_values(VF v, float* p) { hn::StoreU(v, F32(), p); }
void store_one(float v, Bf16* p) { *p = to_bf16(v); }
void store_one(float v, float* p) { *p = v; }

template <class T>
void fake_quantize_rest(const Bf16* x, int64_t n, bool ue8m0, T* out) {
  E4m3 quantized[kActivationBlock];
  const float scale = quantize_activation(x, n, ue8m0, quantized);
  for (int64_t i = 0; i < n; ++i) store_one(to_float(quantized[i]) * scale, out + i);
}

// One group of 128 under the scale 2^exponent. Quantising to e4m3 and back is rounding to four significant bits, or to multiples of
// 2^-9 * scale for what is subnormal in e4m3; nothing saturates, because the scale holds the absmax. Zeros lose their sign.
HWY_INLINE VF fake_quantize_lanes(VF v, VF smallest_normal, VF magic) {
  const F32 df;
  const U32 du;
  const VU u = hn::BitCast(du, v);
  const VU lowest = hn::And(hn::ShiftRight<20>(u), hn::Set(du, 1u));
  const VU normal = hn::And(hn::Add(u, hn::Add(lowest, hn::Set(du, 0x7FFFFu))), hn::Set(du, 0xFFF00000u));
  const VF subnormal = hn::Sub(hn::Add(v, magic), magic);
  return hn::IfThenElse(hn::Lt(hn::Abs(v), smallest_normal), subnormal, hn::BitCast(df, normal));
}

// Results have at most four significant bits: truncation to bf16 is exact.
HWY_INLINE void store_fake(VF even, VF odd, Bf16* p) {
  const U32 du;
  const VU high = hn::And(hn::BitCast(du, odd), hn::Set(du, 0xFFFF0000u));
  hn::StoreU(hn::Or(hn::ShiftRight<16>(hn::BitCast(du, even)), high), du, reinterpret_cast<uint32_t*>(p));
}
HWY_INLINE void store_fake(VF even, VF odd, float* p) { hn::StoreInterleaved2(even, odd, F32(), p); }

template <class T>
HWY_INLINE void fake_quantize_pow2(const Bf16* x, int exponent, T* out) {
  const F32 df;
  const VF smallest_normal = hn::Set(df, pow2(exponent - 6));
  const VF magic = hn::Set(df, 1.5f * pow2(exponent - 9 + 23));  // where fp32 has steps of 2^-9 * scale
  for (int64_t i = 0; i < kActivationBlock; i += 2 * kLanes) {
    VF even, odd;
    load_bf16_pairs(x + i, even, odd);
    store_fake(fake_quantize_lanes(even, smallest_normal, magic), fake_quantize_lanes(odd, smallest_normal, magic), out + i);
  }
}

template <class T>
void fake_quantize(const Bf16* x, int64_t k, bool ue8m0, T* out) {
  int64_t i = 0;
  for (; i + kActivationBlock <= k; i += kActivationBlock) {
    // The bits of magnitudes order like their values, infinities and NaN above all others.
    const U32 du;
    VU peak = hn::Set(du, float_bits(kActivationAmaxFloor));
    for (int64_t j = 0; j < kActivationBlock; j += 2 * kLanes) {
      VF even, odd;
      load_bf16_pairs(x + i + j, even, odd);
      peak = hn::Max(peak, hn::Max(hn::BitCast(du, hn::Abs(even)), hn::BitCast(du, hn::Abs(odd))));
    }
    const float a = float_from_bits(hn::GetLane(hn::MaxOfLanes(du, peak)));
    if (!(a < 0x1p100f)) {  // quantised by the scalar code if it is not finite; below, nothing overflows
      fake_quantize_rest(x + i, kActivationBlock, ue8m0, out + i);
    } else if (ue8m0) {
      fake_quantize_pow2(x + i, e4m3_exponent(a), out + i);
    } else {
      const VF scale = hn::Set(F32(), a / kE4m3Max);
      for (int64_t j = 0; j < kActivationBlock; j += kLanes) {
        store_values(hn::Mul(e4m3_values(e4m3_bits(hn::Div(load_bf16(x + i + j), scale))), scale), out + i + j);
      }
    }
  }
  if (i < k) fake_quantize_rest(x + i, k - i, ue8m0, out + i);
}

void QuantizeRow(const Bf16* x, int64_t k, bool ue8m0, E4m3* quantized, float* scale) {
  for (int64_t i = 0; i < k; i += kActivationBlock, ++scale) {
    const auto value = [x, i](int64_t j) HWY_ATTR { return load_bf16(x + i + j); };
    if (ue8m0) {
      *scale = to_float(to_e8m0(store_e4m3_pow2(value, kActivationBlock, kActivationAmaxFloor, quantized + i)));
    } else {
      *scale = amax_of(value, kActivationBlock, kActivationAmaxFloor) / kE4m3Max;
      store_e4m3_divided(value, kActivationBlock, *scale, quantized + i);
    }
  }
}

template <class T>
void dequantize(const E4m3* quantized, const float* scale, int64_t k, int64_t block, T* out) {
  for (int64_t begin = 0; begin < k; begin += block, ++scale) {
    const int64_t end = begin + block < k ? begin + block : k;
    const VF s = hn::Set(F32(), *scale);
    int64_t i = begin;
    if (scales_e4m3_pairs(*scale)) {
      const VF times = hn::Set(F32(), *scale * kE4m3Unit);
      for (; i + kGroup <= end; i += kGroup) {
        VF values[kGroupVectors];
        load_e4m3_group(quantized + i, values);
        for (int64_t v = 0; v < kGroupVectors; ++v) store_values(hn::Mul(values[v], times), out + i + v * kLanes);
      }
    }
    for (; i + kLanes <= end; i += kLanes) store_values(hn::Mul(load_e4m3(quantized + i), s), out + i);
    for (; i < end; ++i) store_one(to_float(quantized[i]) * *scale, out + i);
  }
}

void FakeQuantizeBf16(const Bf16* x, int64_t k, bool ue8m0, Bf16* out) { fake_quantize(x, k, ue8m0, out); }
void FakeQuantizeF32(const Bf16* x, int64_t k, bool ue8m0, float* out) { fake_quantize(x, k, ue8m0, out); }
void DequantizeBf16(const E4m3* quantized, const float* scale, int64_t k, int64_t block, Bf16* out) {
  dequantize(quantized, scale, k, block, out);
}
void DequantizeF32(const E4m3* quantized, const float* scale, int64_t k, int64_t block, float* out) {
  dequantize(quantized, scale, k, block, out);
}
void WidenRow(const Bf16* x, int64_t k, float* out) {
  int64_t i = 0;
  for (; i < whole(k); i += kLanes) store_values(load_bf16(x + i), out + i);
  for (; i < k; ++i) out[i] = to_float(x[i]);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cstring>

namespace strata::cpu {
namespace {

HWY_EXPORT(FakeQuantizeBf16);
HWY_EXPORT(FakeQuantizeF32);
HWY_EXPORT(QuantizeRow);
HWY_EXPORT(DequantizeBf16);
HWY_EXPORT(DequantizeF32);
HWY_EXPORT(WidenRow);

void copy_row(const Device&, const Bf16* x, int64_t k, Bf16* out) {
  if (x != out) std::memcpy(out, x, static_cast<size_t>(k) * sizeof(Bf16));
}
void copy_row(const Device& device, const Bf16* x, int64_t k, float* out) { HWY_DISPATCH_TABLE(WidenRow)[simd_index(device)](x, k, out); }

template <class T>
void weight_columns(const Device& device, const LinearWeight& w, int64_t row, int64_t first, int64_t n, T* out) {
  if (w.weight.dtype == DType::bf16) return copy_row(device, w.weight.row<Bf16>(row) + first, n, out);
  const E4m3* quantized = w.weight.row<E4m3>(row) + first;
  const float* scale = w.scale.row<float>(row / w.block_n) + first / w.block_k;
  if (const int64_t before = first % w.block_k; before != 0) {  // the rest of the block that `first` is in
    const int64_t rest = n < w.block_k - before ? n : w.block_k - before;
    dequantize_row(device, quantized, scale++, rest, w.block_k, out);
    quantized += rest;
    out += rest;
    n -= rest;
  }
  dequantize_row(device, quantized, scale, n, w.block_k, out);
}

}  // namespace

void fake_quantize_row(const Device& device, const Bf16* x, int64_t k, ActivationFormat format, Bf16* out) {
  if (format == ActivationFormat::bf16) return copy_row(device, x, k, out);
  HWY_DISPATCH_TABLE(FakeQuantizeBf16)[simd_index(device)](x, k, format == ActivationFormat::fp8_ue8m0, out);
}
void fake_quantize_row(const Device& device, const Bf16* x, int64_t k, ActivationFormat format, float* out) {
  if (format == ActivationFormat::bf16) return copy_row(device, x, k, out);
  HWY_DISPATCH_TABLE(FakeQuantizeF32)[simd_index(device)](x, k, format == ActivationFormat::fp8_ue8m0, out);
}

void quantize_row(const Device& device, const Bf16* x, int64_t k, ActivationFormat format, E4m3* quantized, float* scale) {
  HWY_DISPATCH_TABLE(QuantizeRow)[simd_index(device)](x, k, format == ActivationFormat::fp8_ue8m0, quantized, scale);
}

void dequantize_row(const Device& device, const E4m3* quantized, const float* scale, int64_t k, int64_t block, Bf16* out) {
  HWY_DISPATCH_TABLE(DequantizeBf16)[simd_index(device)](quantized, scale, k, block, out);
}
void dequantize_row(const Device& device, const E4m3* quantized, const float* scale, int64_t k, int64_t block, float* out) {
  HWY_DISPATCH_TABLE(DequantizeF32)[simd_index(device)](quantized, scale, k, block, out);
}

void load_unscaled_activations(const Device& device, const TensorView& x, const TensorView& x_scale, ActivationFormat format, int64_t t,
                               int64_t first, int64_t n, Bf16* values, float* scales) {
  constexpr float kOne = 1;
  if (x.dtype == DType::e4m3) {
    std::copy_n(x_scale.row<float>(t) + first / kActivationBlock, activation_blocks(n), scales);
    return dequantize_row(device, x.row<E4m3>(t) + first, &kOne, n, n, values);
  }
  const Bf16* const row = x.row<Bf16>(t) + first;
  const int64_t whole = n / kActivationBlock * kActivationBlock;
  constexpr int64_t kChunk = 1024;
  for (int64_t i = 0; i < n; i += kChunk) {
    E4m3 quantized[kChunk];
    const int64_t count = std::min(kChunk, n - i), blocks = std::clamp<int64_t>(whole - i, 0, count);
    if (blocks > 0) quantize_row(device, row + i, blocks, format, quantized, scales + i / kActivationBlock);
    if (blocks < count) {
      scales[whole / kActivationBlock] =
          quantize_activation(row + whole, n - whole, format == ActivationFormat::fp8_ue8m0, quantized + blocks);
    }
    dequantize_row(device, quantized, &kOne, count, count, values + i);
  }
}

void load_weight_columns(const Device& device, const LinearWeight& weight, int64_t row, int64_t first, int64_t n, Bf16* out) {
  weight_columns(device, weight, row, first, n, out);
}
void load_weight_columns(const Device& device, const LinearWeight& weight, int64_t row, int64_t first, int64_t n, float* out) {
  weight_columns(device, weight, row, first, n, out);
}

}  // namespace strata::cpu
#endif  // HWY_ONCE
