// IndexerQuery: rotate, optionally Hadamard, quantise, fold the scales into the head weights: V4 10.1, MLA 11.2-11.5.
//
// Floor: 256 bytes read and 64 to 256 written per head of 128 values. Bit for bit the reference, which rotates and adds in float64 before
// it rounds to bf16. So rotated dimensions and butterflies are float64 vectors here too. A product of a bf16 and an fp32 is exact in
// float64, so fused multiply-adds change nothing. About 100 cycles a head with AVX-512 in addition to the quantiser, 250 with Hadamard.
#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/simd_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/indexer/query.cpp"
#include <hwy/foreach_target.h>

#include "backends/cpu/indexer/rotate-inl.h"
#include "backends/cpu/kv_insert_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu::indexer {
namespace HWY_NAMESPACE {
namespace {

// Head `head` of all tokens' heads; returns the scale to fold into its weight.
HWY_INLINE float store_quantized(const IndexerQueryParams& p, int64_t head, const float* HWY_RESTRICT x, int64_t dim) {
  if (p.q_out.dtype == DType::u8) {
    uint8_t* packed = p.q_out.ptr<uint8_t>() + head * dim / 2;
    uint8_t* scales = p.q_scale_out.ptr<uint8_t>() + head * dim / kMxfp4Block;
    for (int64_t b = 0; b < dim / kMxfp4Block; ++b) scales[b] = store_mxfp4(x + b * kMxfp4Block, packed + b * kMxfp4Block / 2);
    return 1.0f;
  }
  if (p.q_out.dtype == DType::bf16) {
    narrow(x, dim, p.q_out.ptr<Bf16>() + head * dim);
    return 1.0f;
  }
  E4m3* quantized = p.q_out.ptr<E4m3>() + head * dim;
  if (dim == whole(dim)) {
    return to_float(to_e8m0(store_rounded_e4m3(x, dim, p.amax_floor, reinterpret_cast<uint8_t*>(quantized))));
  }
  Bf16 rounded[ops::kMaxIndexerDim];
  narrow(x, dim, rounded);
  return quantize_indexer_fp8(rounded, dim, p.amax_floor, quantized);
}

// Heads [begin, end) of all tokens' heads.
void QueryHeads(const IndexerQueryParams& p, int64_t begin, int64_t end) {
  const int64_t heads = p.q.shape[1], dim = p.q.shape[2];
  const int64_t rotary = p.cos_sin.present() ? p.cos_sin.shape[1] : 0;
  const int64_t first_rotary = p.rope_slice == RopeSlice::last ? dim - rotary : 0;
  alignas(64) float x[ops::kMaxIndexerDim];
  int64_t t = begin / heads, h = begin % heads;
  for (int64_t head = begin; head < end; ++head) {
    widen(p.q.row<Bf16>(t, h), dim, 1.0f, x);
    if (rotary > 0) rotate_slice(x + first_rotary, p.cos_sin.row<float>(p.positions.ptr<int64_t>()[t]), rotary, p.pairing);
    if (p.hadamard) rotate_hadamard(x, dim);
    const float q_scale = store_quantized(p, head, x, dim);
    const float weight = p.weights.dtype == DType::bf16 ? to_float(p.weights.row<Bf16>(t)[h]) : p.weights.row<float>(t)[h];
    p.weights_out.ptr<float>()[head] = ((weight * q_scale) * p.softmax_scale) * p.head_scale;
    if (++h == heads) {
      h = 0;
      ++t;
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu::indexer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

#include "backends/cpu/simd_implementation.h"

namespace strata::cpu {
namespace indexer {
namespace {

HWY_EXPORT(QueryHeads);

void run(const IndexerQueryParams& p, const ExecutionContext& context) {
  constexpr int64_t kHeads = 64;  // of a task
  const auto query_heads = HWY_DISPATCH_TABLE(QueryHeads)[simd_index(context.device)];
  const int64_t total = p.q.shape[0] * p.q.shape[1];
  parallel_for(context.device, (total + kHeads - 1) / kHeads, 1,
               [&](int64_t task) { query_heads(p, task * kHeads, std::min(total, (task + 1) * kHeads)); });
}

}  // namespace
}  // namespace indexer

std::vector<Implementation<IndexerQueryParams>> indexer_query() { return simd_implementation(indexer::run); }

}  // namespace strata::cpu
#endif  // HWY_ONCE
