#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "ops/dense_attention/dense_checks.h"
#include "ops/factories.h"

namespace strata::ops {
namespace {

void check_requests(ParamCheck& c, const DenseAttnPrefillParams& p, int64_t queries, int64_t keys) {
  check_longest(c, "max_query_len", p.max_query_len);
  check_longest(c, "max_key_len", p.max_key_len);
  c.require(p.query_start_loc.present() == p.key_start_loc.present(), "key_start_loc must be {} with query_start_loc, is {}",
            p.query_start_loc.present() ? "present" : "absent", p.key_start_loc.present() ? "present" : "absent");
  if (!p.query_start_loc.present()) {
    check_room(c, queries, 1, p.max_query_len);
    c.require(keys <= p.max_key_len, "k_nope must have at most max_key_len = {} rows, has {}", p.max_key_len, keys);
    return;
  }
  c.view("query_start_loc", p.query_start_loc, DType::i32, {kAny});
  c.require(p.query_start_loc.shape[0] >= 1, "query_start_loc must have at least 1 entry, has {}", p.query_start_loc.shape[0]);
  c.view("key_start_loc", p.key_start_loc, DType::i32, {p.query_start_loc.shape[0]});
  check_start_loc(c, "query_start_loc", p.query_start_loc, queries, "max_query_len", p.max_query_len);
  check_start_loc(c, "key_start_loc", p.key_start_loc, keys, "max_key_len", p.max_key_len);
  check_room(c, queries, p.query_start_loc.shape[0] - 1, p.max_query_len);
}

void check(const DenseAttnPrefillParams& p, DeviceId device) {
  ParamCheck c("dense_attn_prefill", device);
  c.view("q", p.q, DType::bf16, {kAny, kAny, kAny});
  const int64_t queries = p.q.shape[0], heads = p.q.shape[1], dim = p.q.shape[2];
  c.require(heads >= 1, "q must have at least 1 head, has {}", heads);
  c.require(dim >= 2 && dim <= kMaxDenseHeadDim, "q must have a head dimension of 2 to {}, has {}", kMaxDenseHeadDim, dim);
  c.view("k_nope", p.k_nope, DType::bf16, {kAny, heads, kAny});
  const int64_t keys = p.k_nope.shape[0];
  c.view("k_pe", p.k_pe, DType::bf16, {keys, kAny});
  c.require(p.k_nope.shape[2] + p.k_pe.shape[1] == dim, "k_nope and k_pe must have the {} dimensions of q together, have {} and {}", dim,
            p.k_nope.shape[2], p.k_pe.shape[1]);
  c.view("v", p.v, DType::bf16, {keys, heads, kAny});
  const int64_t value_dim = p.v.shape[2];
  c.require(value_dim >= 1 && value_dim <= kMaxDenseHeadDim, "v must have 1 to {} dimensions, has {}", kMaxDenseHeadDim, value_dim);
  check_positive(c, "softmax_scale", p.softmax_scale);
  c.view("out", p.out, {DType::bf16, DType::f32}, {queries, heads, value_dim});
  check_output(c, "out", p.out);
  c.optional("lse", p.lse, DType::f32, {queries, heads});
  check_output(c, "lse", p.lse);
  check_requests(c, p, queries, keys);
}

}  // namespace

Op<DenseAttnPrefillParams> make_dense_attn_prefill() {
  return {"dense_attn_prefill", check,
          join(cuda::dense_attn_prefill(), opencl::dense_attn_prefill(), cpu::dense_attn_prefill(), reference::dense_attn_prefill())};
}

}  // namespace strata::ops
