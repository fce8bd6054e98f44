#include <algorithm>

#include "backends/cuda/dense_attn_prefill/impls.h"
#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/portable_attention/dense_prefill.h"

namespace strata::cuda {

DensePrefill dense_prefill_of(const DenseAttnPrefillParams& p) {
  DensePrefill a;
  a.q = p.q.ptr<Bf16>();
  a.k_nope = p.k_nope.ptr<Bf16>();
  a.k_pe = p.k_pe.ptr<Bf16>();
  a.v = p.v.ptr<Bf16>();
  if (p.out.dtype == DType::f32) {
    a.out_f32 = p.out.ptr<float>();
  } else {
    a.out_bf16 = p.out.ptr<Bf16>();
  }
  a.lse = p.lse.ptr<float>();
  a.q_stride = {p.q.stride[0], p.q.stride[1]};
  a.k_nope_stride = {p.k_nope.stride[0], p.k_nope.stride[1]};
  a.k_pe_stride = p.k_pe.stride[0];
  a.v_stride = {p.v.stride[0], p.v.stride[1]};
  a.out_stride = {p.out.stride[0], p.out.stride[1]};
  a.is_aligned = rows_aligned(p.k_nope) && rows_aligned(p.k_pe) && rows_aligned(p.v);
  a.out_aligned = rows_aligned(p.out);
  a.lse_stride = {p.lse.stride[0], p.lse.stride[1]};
  if (p.query_start_loc.present()) {
    a.query_start_loc = p.query_start_loc.ptr<int32_t>();
    a.key_start_loc = p.key_start_loc.ptr<int32_t>();
    a.num_requests = static_cast<int32_t>(p.query_start_loc.shape[0] - 1);
  }
  a.num_queries = static_cast<int32_t>(p.q.shape[0]);
  a.num_keys = static_cast<int32_t>(p.k_nope.shape[0]);
  a.num_heads = static_cast<int32_t>(p.q.shape[1]);
  a.nope_dim = static_cast<int32_t>(p.k_nope.shape[2]);
  a.rotary_dim = static_cast<int32_t>(p.k_pe.shape[1]);
  a.value_dim = static_cast<int32_t>(p.v.shape[2]);
  a.max_query_len = std::min(p.max_query_len, p.q.shape[0]);
  a.softmax_scale = p.softmax_scale;
  a.causal = p.causal;
  return a;
}

namespace {

Support supports(const DenseAttnPrefillParams& p, const Capabilities&) {
  const int64_t nope = p.k_nope.shape[2], rotary = p.k_pe.shape[1], value = p.v.shape[2];
  if (nope % 8 != 0 || rotary % 8 != 0 || value % 8 != 0) return Support::no("needs head dimensions that are multiples of 8");
  if (nope + rotary > 192 || value > 128) return Support::no("needs at most 192 key dimensions and 128 value dimensions");
  return Support::yes();
}

constexpr Traits<DenseAttnPrefillParams> kTensorCores{
    .supports = supports,
    .run = [](const DenseAttnPrefillParams& p, const ExecutionContext& context) { dense_prefill_run(dense_prefill_of(p), context); },
};

constexpr Traits<DenseAttnPrefillParams> kGeneric{
    .run = [](const DenseAttnPrefillParams& p,
              const ExecutionContext& context) { generic_dense_prefill_run(dense_prefill_of(p), context); },
};

}  // namespace

Implementation<DenseAttnPrefillParams> dense_attn_prefill_smxx() {
  return implementation<DenseAttnPrefillParams>("cuda/smxx", kTensorCores);
}
Implementation<DenseAttnPrefillParams> dense_attn_prefill_generic() {
  return implementation<DenseAttnPrefillParams>("cuda/generic", kGeneric);
}

}  // namespace strata::cuda
