#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/kv_insert/row_checks.h"
#include "ops/alignment_checks.h"
#include "ops/schedule_check.h"
#include "ops/sparse_attention/attention_checks.h"
#include "ops/sparse_attention/fusions.h"

namespace strata::ops {
namespace {

// A cache with the index rows that address it.
struct Scope {
  std::string_view cache_name, indices_name, length_name;
  const PagedCache& cache;
  const TensorView& indices;
  const TensorView& topk_length;
};

void check_scope_views(ParamCheck& c, const Scope& s, const TensorView& q) {
  c.cache(s.cache_name, s.cache, {KvFormat::fp8_ds_mla_v4, KvFormat::fp8_ds_mla, KvFormat::bf16, KvFormat::fp8_tensor}, q.shape[3]);
  c.require(s.cache.format != KvFormat::fp8_ds_mla_v4 || q.shape[3] == 512, "{} of format {} must have row_dim 512, has {}", s.cache_name,
            to_string(s.cache.format), s.cache.row_dim);
  c.require(s.cache.format != KvFormat::fp8_ds_mla || q.shape[3] == 576, "{} of format {} must have row_dim 576, has {}", s.cache_name,
            to_string(s.cache.format), s.cache.row_dim);
  if (s.cache.format == KvFormat::fp8_tensor) {
    check_positive(c, s.cache_name == "cache" ? "cache.scale" : "extra_cache.scale", s.cache.scale);
  }
  c.view(s.indices_name, s.indices, DType::i32, {q.shape[0], q.shape[1], kAny});
  c.optional(s.length_name, s.topk_length, DType::i32, {q.shape[0]});
}

// Every entry inside the length is -1 or a row of the cache. Entries after the length may be anything.
void check_scope_values(ParamCheck& c, const Scope& s) {
  if (!host_visible(s.topk_length.present() ? s.topk_length : s.indices)) return;
  const int64_t width = s.indices.shape[2];
  for (int64_t b = 0; b < s.indices.shape[0]; ++b) {
    const int64_t length = s.topk_length.present() ? s.topk_length.ptr<int32_t>()[b] : width;
    c.require(length >= 0 && length <= width, "{}[{}] must be in [0, {}], is {}", s.length_name, b, width, length);
    if (!host_visible(s.indices)) continue;
    for (int64_t i = 0; i < s.indices.shape[1]; ++i) {
      const int32_t* slots = s.indices.row<int32_t>(b, i);
      for (int64_t j = 0; j < length; ++j) {
        c.require(slots[j] >= -1 && slots[j] < s.cache.num_slots(), "{}[{}, {}, {}] must be -1 or in [0, {}), is {}", s.indices_name, b, i,
                  j, s.cache.num_slots(), slots[j]);
      }
    }
  }
}

template <class Rotation>
void check_rotation(ParamCheck& c, const Rotation& rotation, int64_t tokens, int64_t dim) {
  check_rotary_views(c, rotation.positions, rotation.cos_sin, tokens, dim);
  c.values_in("positions", rotation.positions, 0, rotation.cos_sin.shape[0], false);
}

void check(const SparseAttnDecodeParams& p, DeviceId device) {
  ParamCheck c("sparse_attn_decode", device);
  c.view("q", p.q, DType::bf16, {kAny, kAny, kAny, kAny});
  const int64_t batch = p.q.shape[0], queries = p.q.shape[1], heads = p.q.shape[2];
  check_head_shape(c, heads, p.q.shape[3]);
  const Scope main{"cache", "indices", "topk_length", p.cache, p.indices, p.topk_length};
  const Scope extra{"extra_cache", "extra_indices", "extra_topk_length", p.extra_cache, p.extra_indices, p.extra_topk_length};
  check_scope_views(c, main, p.q);
  if (p.extra_cache.present()) {
    check_scope_views(c, extra, p.q);
  } else {
    c.require(!p.extra_indices.present(), "extra_indices must be absent without extra_cache, is {}", p.extra_indices);
    c.require(!p.extra_topk_length.present(), "extra_topk_length must be absent without extra_cache, is {}", p.extra_topk_length);
  }
  check_sink(c, p.attn_sink, heads);
  check_positive(c, "softmax_scale", p.softmax_scale);
  check_schedule(c, p.schedule);
  c.view("out", p.out, DType::bf16, {batch, queries, heads, kAny});
  check_value_dim(c, p.out.shape[3], p.q.shape[3]);
  check_output(c, "out", p.out);
  check_row_alignment(c, "q", p.q);
  check_row_alignment(c, "out", p.out);
  check_page_alignment(c, "cache", p.cache);
  check_page_alignment(c, "extra_cache", p.extra_cache);
  if (p.query_prologue) {
    ParamCheck prologue("sparse_attn_decode: query_prologue", device);
    check_eps(prologue, p.query_prologue->eps);
    check_rotation(prologue, *p.query_prologue, batch * queries, p.q.shape[3]);
  }
  if (p.out_epilogue) {
    ParamCheck epilogue("sparse_attn_decode: out_epilogue", device);
    check_rotation(epilogue, *p.out_epilogue, batch * queries, p.out.shape[3]);
  }
  c.optional("lse", p.lse, DType::f32, {batch, heads, queries});
  check_output(c, "lse", p.lse);
  c.optional("max_logits", p.max_logits, DType::f32, {batch, heads, queries});
  check_output(c, "max_logits", p.max_logits);
  check_scope_values(c, main);
  if (p.extra_cache.present()) check_scope_values(c, extra);
}

}  // namespace

Op<SparseAttnDecodeParams> make_sparse_attn_decode() {
  return {"sparse_attn_decode", check,
          join(cuda::sparse_attn_decode(), opencl::sparse_attn_decode(), cpu::sparse_attn_decode(), reference::sparse_attn_decode()),
          with_decode_fusions};
}

std::vector<SparseDecodePlanner> make_sparse_decode_planners() { return cuda::sparse_decode_planners(); }

}  // namespace strata::ops
