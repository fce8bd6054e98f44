#include "backends/cpu/linear_quant.h"

#include "backends/cpu/simd_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/linear_quant.cpp"
#include <hwy/foreach_target.h>

#include "backends/cpu/simd_formats-inl.h"

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
  E4m3 codes[kActivationBlock];
  const float scale = quantize_activation(x, n, ue8m0, codes);
  for (int64_t i = 0; i < n; ++i) store_one(to_float(codes[i]) * scale, out + i);
}

template <class T>
void fake_quantize(const Bf16* x, int64_t k, bool ue8m0, T* out) {
  const F32 df;
  int64_t i = 0;
  for (; i + kActivationBlock <= k; i += kActivationBlock) {
    const float a = amax_of([&](size_t j) HWY_ATTR { return load_bf16(x + i + j); }, kActivationBlock, kActivationAmaxFloor);
    if (!(a <= 3.3e38f)) {  // infinities: as the scalar code has them
      fake_quantize_rest(x + i, kActivationBlock, ue8m0, out + i);
      continue;
    }
    const float scale = ue8m0 ? pow2(e4m3_exponent(a)) : a / kE4m3Max;
    const VF s = hn::Set(df, scale);
    // The reciprocal of a power of two is exact; of another scale it is not.
    const VF inverse = hn::Set(df, ue8m0 ? pow2(-e4m3_exponent(a)) : 1.0f);
    for (size_t j = 0; j < kActivationBlock; j += kLanes) {
      const VF v = load_bf16(x + i + j);
      const VF scaled = ue8m0 ? hn::Mul(v, inverse) : hn::Div(v, s);
      store_values(hn::Mul(e4m3_values(e4m3_bits(scaled)), s), out + i + j);
    }
  }
  if (i < k) fake_quantize_rest(x + i, k - i, ue8m0, out + i);
}

template <class T>
void dequantize(const E4m3* codes, const float* scale, int64_t k, int64_t block, T* out) {
  for (int64_t begin = 0; begin < k; begin += block, ++scale) {
    const int64_t end = begin + block < k ? begin + block : k;
    const VF s = hn::Set(F32(), *scale);
    int64_t i = begin;
    for (; i + static_cast<int64_t>(kLanes) <= end; i += kLanes) store_values(hn::Mul(load_e4m3(codes + i), s), out + i);
    for (; i < end; ++i) store_one(to_float(codes[i]) * *scale, out + i);
  }
}

void FakeQuantizeBf16(const Bf16* x, int64_t k, bool ue8m0, Bf16* out) { fake_quantize(x, k, ue8m0, out); }
void FakeQuantizeF32(const Bf16* x, int64_t k, bool ue8m0, float* out) { fake_quantize(x, k, ue8m0, out); }
void DequantizeBf16(const E4m3* codes, const float* scale, int64_t k, int64_t block, Bf16* out) { dequantize(codes, scale, k, block, out); }
void DequantizeF32(const E4m3* codes, const float* scale, int64_t k, int64_t block, float* out) { dequantize(codes, scale, k, block, out); }
void WidenRow(const Bf16* x, int64_t k, float* out) {
  int64_t i = 0;
  for (; i + static_cast<int64_t>(kLanes) <= k; i += kLanes) store_values(load_bf16(x + i), out + i);
  for (; i < k; ++i) out[i] = to_float(x[i]);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cstring>

namespace strata::cpu {
namespace {

HWY_EXPORT(FakeQuantizeBf16);
HWY_EXPORT(FakeQuantizeF32);
HWY_EXPORT(DequantizeBf16);
HWY_EXPORT(DequantizeF32);
HWY_EXPORT(WidenRow);

void copy_row(const Device&, const Bf16* x, int64_t k, Bf16* out) {
  if (x != out) std::memcpy(out, x, static_cast<size_t>(k) * sizeof(Bf16));
}
void copy_row(const Device& device, const Bf16* x, int64_t k, float* out) {
  HWY_DISPATCH_TABLE(WidenRow)[simd_index(device)](x, k, out);
}

template <class T>
void weight_columns(const Device& device, const LinearWeight& w, int64_t row, int64_t first, int64_t n, T* out) {
  if (w.weight.dtype == DType::bf16) return copy_row(device, w.weight.row<Bf16>(row) + first, n, out);
  const float* scale = w.scale.row<float>(row / w.block_n) + first / w.block_k;
  dequantize_row(device, w.weight.row<E4m3>(row) + first, scale, n, w.block_k, out);
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

void dequantize_row(const Device& device, const E4m3* codes, const float* scale, int64_t k, int64_t block, Bf16* out) {
  HWY_DISPATCH_TABLE(DequantizeBf16)[simd_index(device)](codes, scale, k, block, out);
}
void dequantize_row(const Device& device, const E4m3* codes, const float* scale, int64_t k, int64_t block, float* out) {
  HWY_DISPATCH_TABLE(DequantizeF32)[simd_index(device)](codes, scale, k, block, out);
}

void load_weight_columns(const Device& device, const LinearWeight& weight, int64_t row, int64_t first, int64_t n, Bf16* out) {
  weight_columns(device, weight, row, first, n, out);
}
void load_weight_columns(const Device& device, const LinearWeight& weight, int64_t row, int64_t first, int64_t n, float* out) {
  weight_columns(device, weight, row, first, n, out);
}

}  // namespace strata::cpu
#endif  // HWY_ONCE
