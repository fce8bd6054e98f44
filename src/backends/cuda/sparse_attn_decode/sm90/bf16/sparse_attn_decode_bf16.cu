// sparse_attn_decode over caches of bf16, or of e4m3 with one scale, on Hopper: supported calls and arguments. The kernel is mqa_engine
// with rows from pages. A tile of 64 bf16 rows and 64 heads takes 2600 to 3000 cycles of an SM, so the kernel is bound by the products from
// about 20 heads on. A tile of 48 e4m3 rows takes about 5000, limited by its producer.
#include <algorithm>
#include <limits>
#include <string>

#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/mqa_engine/call.cuh"
#include "backends/cuda/sparse_attn_decode/impls.h"
#include "backends/cuda/sparse_attn_decode/sm90/bf16/paged_rows.cuh"

namespace strata::cuda {
namespace {

using namespace sparse_prefill;

constexpr int64_t kV4Dim = 512;  // rows of this width may have a second cache

bool is_quantized(const PagedCache& cache) { return cache.format == KvFormat::fp8_tensor; }

Support supports_cache(const PagedCache& cache) {
  if (cache.format != KvFormat::bf16 && !is_quantized(cache)) {
    return Support::no("needs caches of bf16 or fp8_tensor, has " + std::string(to_string(cache.format)));
  }
  if (cache.page_stride % 16 != 0) return Support::no("needs a page_stride that is a multiple of 16 bytes");
  if (cache.num_pages * (cache.page_stride / 16) > PagedRows<2, false>::kMaxUnits) return Support::no("needs a cache below 32 GiB");
  return Support::yes();
}

// The distance of query tokens, if all are equally far apart; else 0.
int64_t token_stride(const TensorView& v) {
  if (v.shape[1] == 1) return v.stride[0];
  return v.shape[0] <= 1 || v.stride[0] == v.shape[1] * v.stride[1] ? v.stride[1] : 0;
}

// Factor of e4m3 values of the second cache, relative to the first.
float second_factor(const SparseAttnDecodeParams& p) { return p.extra_cache.present() ? p.extra_cache.scale / p.cache.scale : 1.0f; }

Support supports(const SparseAttnDecodeParams& p, const Capabilities& c) {
  if (Support sm90 = needs_sm90(c); !sm90) return sm90;
  if (Support cache = supports_cache(p.cache); !cache) return cache;
  if (p.out.shape[3] != kValueDim) return Support::no("needs 512 value dimensions, has " + std::to_string(p.out.shape[3]));
  if (token_stride(p.q) <= 0 || token_stride(p.out) <= 0 || token_stride(p.indices) <= 0) return Support::no("needs evenly spaced tokens");
  if (!p.extra_cache.present()) return Support::yes();
  if (p.q.shape[3] != kV4Dim) return Support::no("needs one cache of rows of 576 dimensions, has two");
  if (token_stride(p.extra_indices) <= 0) return Support::no("needs evenly spaced tokens");
  if (p.extra_cache.format != p.cache.format) return Support::no("needs caches of one format");
  if (is_quantized(p.cache) && !(second_factor(p) >= 0x1p-100f && second_factor(p) <= 0x1p100f)) {
    return Support::no("needs scales within 2^100 of one another");
  }
  return supports_cache(p.extra_cache);
}

RowScope scope_of(const PagedCache& cache, const TensorView& indices, const TensorView& lengths) {
  return {.data = static_cast<const uint8_t*>(cache.data),
          .page_units = static_cast<uint32_t>(cache.page_stride / 16),
          .page_size = Divisor(cache.page_size),
          .num_slots = static_cast<uint32_t>(std::min<int64_t>(cache.num_slots(), std::numeric_limits<int32_t>::max())),
          .indices = indices.ptr<int32_t>(),
          .indices_stride = token_stride(indices),
          .lengths = lengths.ptr<int32_t>(),
          .width = static_cast<int32_t>(indices.shape[2])};
}

bool aligned_16(const PagedCache& cache) { return reinterpret_cast<uintptr_t>(cache.data) % 16 == 0; }

template <int kScopes, bool kQuantized>
TokenArgs<PagedRows<kScopes, kQuantized>> args_of(const SparseAttnDecodeParams& p) {
  TokenArgs<PagedRows<kScopes, kQuantized>> a{};
  a.scopes[0] = scope_of(p.cache, p.indices, p.topk_length);
  if (p.extra_cache.present()) a.scopes[kScopes - 1] = scope_of(p.extra_cache, p.extra_indices, p.extra_topk_length);
  a.row_units = static_cast<uint32_t>(p.q.shape[3] / (kQuantized ? 16 : 8));
  a.value_scale = kQuantized ? p.cache.scale : 1.0f, a.second_factor = second_factor(p);
  a.queries = Divisor(static_cast<int32_t>(std::max<int64_t>(p.q.shape[1], 1)));
  a.q = p.q.ptr<uint16_t>();
  a.q_token_stride = token_stride(p.q), a.q_head_stride = p.q.stride[2];
  a.sink = p.attn_sink.ptr<float>();
  a.scale_log2 = a.value_scale * p.softmax_scale * kLog2e;
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
  const int64_t rows_of_tile = is_quantized(p.cache) ? PagedRows<2, true>::kTileRows : PagedRows<2, false>::kTileRows;
  return {p.q.shape[0] * p.q.shape[1], p.q.shape[2], p.q.shape[3], rows, rows_of_tile, 0, c};
}

size_t workspace_bytes(const SparseAttnDecodeParams& p, const Capabilities& c) {
  return sparse_prefill::workspace_bytes(extent_of(p, c), p.batch_invariant);
}

template <bool kQuantized>
void run_rows(const SparseAttnDecodeParams& p, const ExecutionContext& context) {
  const Extent e = extent_of(p, capabilities(context.device));
  e.d512 ? run_call<512>(args_of<2, kQuantized>(p), e, p.batch_invariant, context)
         : run_call<576>(args_of<1, kQuantized>(p), e, p.batch_invariant, context);
}
void run(const SparseAttnDecodeParams& p, const ExecutionContext& context) {
  is_quantized(p.cache) ? run_rows<true>(p, context) : run_rows<false>(p, context);
}

}  // namespace

Implementation<SparseAttnDecodeParams> sparse_attn_decode_bf16_sm90() {
  return implementation<SparseAttnDecodeParams>("cuda/sm90_bf16", {.supports = supports, .workspace_bytes = workspace_bytes, .run = run});
}

}  // namespace strata::cuda
