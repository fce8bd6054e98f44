#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/kv_insert/row_checks.h"
#include "ops/mla/token_checks.h"

namespace strata::ops {
namespace {

void check(const MlaRopeKvInsertParams& p, DeviceId device) {
  ParamCheck c("mla_rope_kv_insert", device);
  c.view("q", p.q, DType::bf16, {kAny, kAny, kAny});
  const int64_t tokens = p.q.shape[0], heads = p.q.shape[1];
  c.view("c", p.c, DType::bf16, {tokens, kAny});
  c.view("k_pe", p.k_pe, DType::bf16, {tokens, kAny});
  const int64_t rotary = p.k_pe.shape[1];
  c.require(rotary >= 2 && rotary % 2 == 0 && rotary <= p.q.shape[2], "k_pe must have an even number of dimensions in [2, {}], has {}",
            p.q.shape[2], rotary);
  check_output(c, "q", p.q);
  check_output(c, "k_pe", p.k_pe);
  check_rotation(c, p.positions, p.cos_sin, tokens);
  if (p.cos_sin.present())
    c.require(p.cos_sin.shape[1] == rotary, "cos_sin must have the {} columns of k_pe, has {}", rotary, p.cos_sin.shape[1]);
  c.optional("llama_4_scaling", p.llama_4_scaling, DType::f32, {tokens});
  if (p.q_pe_out.present()) {
    c.view("q_pe_out", p.q_pe_out, DType::bf16, {kAny, heads, rotary});
    c.require(p.q_pe_out.shape[0] <= tokens, "q_pe_out must have at most the {} rows of q, has {}", tokens, p.q_pe_out.shape[0]);
    check_output(c, "q_pe_out", p.q_pe_out);
  }
  if (p.slot_mapping.present()) {
    check_rows(c, "cache", p.cache, {KvFormat::bf16, KvFormat::fp8_tensor, KvFormat::fp8_ds_mla}, p.c.shape[1] + rotary);
    c.require(p.cache.format != KvFormat::fp8_ds_mla || rotary == kMlaRopeDim,
              "k_pe must have {} dimensions with a cache of format {}, has {}", int{kMlaRopeDim}, to_string(p.cache.format), rotary);
    check_slots(c, p.slot_mapping, tokens, p.cache);
  }
  c.require(!p.ue8m0 || p.cache.format == KvFormat::fp8_ds_mla, "ue8m0 must be false with a cache of format {}, is true",
            to_string(p.cache.format));
}

}  // namespace

Op<MlaRopeKvInsertParams> make_mla_rope_kv_insert() {
  return {"mla_rope_kv_insert", check,
          join(cuda::mla_rope_kv_insert(), opencl::mla_rope_kv_insert(), cpu::mla_rope_kv_insert(), reference::mla_rope_kv_insert())};
}

}  // namespace strata::ops
