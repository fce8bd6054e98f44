// The inverse rotation of the attention output on the CPU. Floor: in place only the rotary dimensions move (T*H*64*4 bytes; V4-Flash, T =
// 512: 8 MB); out of place or quantised, all dimensions do (67 MB, 50 MB).
#include <cstring>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/simd_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/rope.cpp"
#include <hwy/foreach_target.h>

#include "backends/cpu/rope-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu {
namespace HWY_NAMESPACE {
namespace {

void InverseHead(const InverseRopeParams& p, int64_t t, int64_t h, const float* cos_sin) {
  const Bf16* const o = p.o.row<Bf16>(t, h);
  Bf16* const out = p.out.row<Bf16>(t, h);
  const int64_t rotary = p.cos_sin.shape[1], nope = p.o.shape[2] - rotary;
  if (o != out) std::memcpy(out, o, static_cast<size_t>(nope) * sizeof(Bf16));
  rotate_bf16(o + nope, cos_sin, rotary, true, 1.0f, out + nope);
}

// A block of 128 dimensions: its values after the inverse rotation, then the quantiser of V4 5.2.
void InverseQuantHead(const InverseRopeQuantParams& p, int64_t t, int64_t h, const float* cos_sin) {
  const int64_t heads = p.o.shape[1], dim = p.o.shape[2], rotary = p.cos_sin.shape[1], nope = dim - rotary;
  const int64_t blocks = dim / kActivationBlock;
  const Bf16* const o = p.o.row<Bf16>(t, h);
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t begin = b * kActivationBlock;
    float block[kActivationBlock];
    widen(o + begin, kActivationBlock, 1.0f, block);
    const int64_t plain = nope <= begin ? 0 : nope - begin < kActivationBlock ? nope - begin : kActivationBlock;
    const int64_t rope_begin = begin + plain - nope;  // first rotary dimension of the block
    rotate_pairs(block + plain, cos_sin + rope_begin / 2, cos_sin + rotary / 2 + rope_begin / 2, (kActivationBlock - plain) / 2, true);
    // Groups hold whole heads one after the other, so [G, hpg * D] is [H, D] in memory.
    const int64_t index = (t * heads + h) * blocks + b;
    E4m3* const quantized = p.out.ptr<E4m3>() + index * kActivationBlock;
    const auto value = [&block](int64_t i) HWY_ATTR { return hn::LoadU(F32(), block + i); };
    p.scale.ptr<float>()[index] = to_float(to_e8m0(store_e4m3_pow2(value, kActivationBlock, kActivationAmaxFloor, quantized)));
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "backends/cpu/simd_implementation.h"

namespace strata::cpu {
namespace {

HWY_EXPORT(InverseHead);
HWY_EXPORT(InverseQuantHead);

constexpr int64_t kHeadsPerTask = 64;

template <class Params, class Head>
void for_each_head(const Params& p, const ExecutionContext& context, Head head) {
  const int64_t heads = p.o.shape[1];
  parallel_for(context.device, p.o.shape[0] * heads, kHeadsPerTask, [&](int64_t task) {
    const int64_t t = task / heads;
    head(p, t, task % heads, p.cos_sin.template row<float>(p.positions.template ptr<int64_t>()[t]));
  });
}

void run_inverse(const InverseRopeParams& p, const ExecutionContext& context) {
  for_each_head(p, context, HWY_DISPATCH_TABLE(InverseHead)[simd_index(context.device)]);
}
void run_inverse_quant(const InverseRopeQuantParams& p, const ExecutionContext& context) {
  for_each_head(p, context, HWY_DISPATCH_TABLE(InverseQuantHead)[simd_index(context.device)]);
}

}  // namespace

std::vector<Implementation<InverseRopeParams>> inverse_rope() { return simd_implementation(run_inverse); }
std::vector<Implementation<InverseRopeQuantParams>> inverse_rope_quant() { return simd_implementation(run_inverse_quant); }

}  // namespace strata::cpu
#endif  // HWY_ONCE
