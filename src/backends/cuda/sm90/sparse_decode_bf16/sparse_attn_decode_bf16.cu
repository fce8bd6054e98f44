// sparse_attn_decode over bf16 caches on Hopper: what it takes, its arguments. The kernel is that of sm90/sparse_prefill with rows from
// pages: a tile of 64 rows and 64 heads takes 2600 to 3000 cycles of an SM there, so it is bound by the products from about 20 heads on.
#include <algorithm>
#include <limits>
#include <string>

#include "backends/cuda/common/rows.cuh"
#include "backends/cuda/sm90/sparse_decode_bf16/paged_rows.cuh"
#include "backends/cuda/sm90/sparse_decode_bf16/sparse_decode_bf16.h"
#include "backends/cuda/sm90/sparse_prefill/call.cuh"

namespace strata::cuda {
namespace {

using namespace sparse_prefill;

constexpr int64_t kV4Dim = 512;  // which may have a second cache

Support supports_cache(const PagedCache& cache) {
  if (cache.format != KvFormat::bf16) return Support::no("needs caches of bf16, has " + std::string(to_string(cache.format)));
  if (cache.page_stride % 16 != 0) return Support::no("needs a page_stride that is a multiple of 16 bytes");
  if (cache.num_pages * (cache.page_stride / 16) > PagedRows<2>::kMostUnits) return Support::no("needs a cache below 32 GiB");
  return Support::yes();
}

// The distance of query tokens, if all are equally far apart; 0 otherwise.
int64_t token_stride(const TensorView& v) {
  if (v.shape[1] == 1) return v.stride[0];
  return v.shape[0] <= 1 || v.stride[0] == v.shape[1] * v.stride[1] ? v.stride[1] : 0;
}

Support supports(const SparseAttnDecodeParams& p, const Capabilities& c) {
  if (Support sm90 = needs_sm90(c); !sm90) return sm90;
  if (Support cache = supports_cache(p.cache); !cache) return cache;
  if (p.out.shape[3] != kValueDim) return Support::no("needs 512 value lanes, has " + std::to_string(p.out.shape[3]));
  if (token_stride(p.q) <= 0 || token_stride(p.out) <= 0 || token_stride(p.indices) <= 0) return Support::no("needs evenly spaced tokens");
  if (!p.extra_cache.present()) return Support::yes();
  if (p.q.shape[3] != kV4Dim) return Support::no("needs one cache of rows of 576 lanes, has two");
  if (token_stride(p.extra_indices) <= 0) return Support::no("needs evenly spaced tokens");
  return supports_cache(p.extra_cache);
}

RowScope scope_of(const PagedCache& cache, const TensorView& indices, const TensorView& lengths) {
  return {.data = static_cast<const uint16_t*>(cache.data),
          .page_units = static_cast<uint32_t>(cache.page_stride / 16),
          .page_size = Divisor(cache.page_size),
          .num_slots = static_cast<uint32_t>(std::min<int64_t>(cache.num_slots(), std::numeric_limits<int32_t>::max())),
          .indices = indices.ptr<int32_t>(),
          .indices_stride = token_stride(indices),
          .lengths = lengths.ptr<int32_t>(),
          .width = static_cast<int32_t>(indices.shape[2])};
}

bool aligned_16(const PagedCache& cache) { return reinterpret_cast<uintptr_t>(cache.data) % 16 == 0; }

template <int kScopes>
TokenArgs<PagedRows<kScopes>> args_of(const SparseAttnDecodeParams& p) {
  TokenArgs<PagedRows<kScopes>> a{};
  a.scopes[0] = scope_of(p.cache, p.indices, p.topk_length);
  if (p.extra_cache.present()) a.scopes[kScopes - 1] = scope_of(p.extra_cache, p.extra_indices, p.extra_topk_length);
  a.row_units = static_cast<uint32_t>(p.q.shape[3] / 8);
  a.queries = Divisor(static_cast<int32_t>(std::max<int64_t>(p.q.shape[1], 1)));
  a.q = p.q.ptr<uint16_t>();
  a.q_token_stride = token_stride(p.q), a.q_head_stride = p.q.stride[2];
  a.sink = p.attn_sink.ptr<float>();
  a.scale_log2 = p.softmax_scale * kLog2e;
  a.out = p.out.ptr<uint16_t>();
  a.out_token_stride = token_stride(p.out), a.out_head_stride = p.out.stride[2];
  a.lse = p.lse.ptr<float>();
  a.lse_stride = {p.lse.stride[0], p.lse.stride[2]}, a.lse_head_stride = p.lse.stride[1];
  a.max_logits = p.max_logits.ptr<float>();
  a.max_stride = {p.max_logits.stride[0], p.max_logits.stride[2]}, a.max_head_stride = p.max_logits.stride[1];
  a.rows_aligned = rows_aligned(p.q) && aligned_16(p.cache) && (!p.extra_cache.present() || aligned_16(p.extra_cache));
  a.out_aligned = begins_aligned(p.out.data) && strides_aligned(p.out);
  return a;
}

Extent extent_of(const SparseAttnDecodeParams& p, const Capabilities& c) {
  const int64_t rows = p.indices.shape[2] + (p.extra_cache.present() ? p.extra_indices.shape[2] : 0);
  return {p.q.shape[0] * p.q.shape[1], p.q.shape[2], p.q.shape[3], rows, 0, c};
}

size_t workspace_bytes(const SparseAttnDecodeParams& p, const Capabilities& c) {
  return sparse_prefill::workspace_bytes(extent_of(p, c), p.batch_invariant);
}

void run(const SparseAttnDecodeParams& p, const ExecutionContext& context) {
  const Extent e = extent_of(p, capabilities(context.device));
  e.d512 ? run_call<512>(args_of<2>(p), e, p.batch_invariant, context) : run_call<576>(args_of<1>(p), e, p.batch_invariant, context);
}

}  // namespace

Implementation<SparseAttnDecodeParams> sparse_attn_decode_bf16_sm90() {
  return implementation<SparseAttnDecodeParams>("cuda/sm90_bf16", {.supports = supports, .workspace_bytes = workspace_bytes, .run = run});
}

}  // namespace strata::cuda
