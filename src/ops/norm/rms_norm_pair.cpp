#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "core/check.h"
#include "formats/quantize.h"
#include "ops/factories.h"
#include "ops/kv_insert/row_checks.h"
#include "ops/norm/fusions.h"

namespace strata::ops {
namespace {

void check(const RmsNormPairParams& p, DeviceId device) {
  ParamCheck c("rms_norm_pair", device);
  check_eps(c, p.eps);
  if (p.q.present()) {
    c.view("q", p.q, DType::bf16, {kAny, kAny});
    c.view("q_weight", p.q_weight, DType::f32, {p.q.shape[1]});
    const bool codes = p.q_format != ActivationFormat::bf16;
    c.view("q_out", p.q_out, codes ? DType::e4m3 : DType::bf16, {p.q.shape[0], p.q.shape[1]});
    check_output(c, "q_out", p.q_out);
    if (codes) {
      c.require(p.q.shape[0] == 0 || p.q_out.data == nullptr || p.q_out.data != p.q.data,
                "q_out must not be the input q when it holds codes, is {}", p.q_out);
      c.view("q_scale", p.q_scale, DType::f32, {p.q.shape[0], activation_blocks(p.q.shape[1])});
      check_output(c, "q_scale", p.q_scale);
    } else {
      c.require(!p.q_scale.present(), "q_scale must be absent with a bf16 q_out, is {}", p.q_scale);
    }
  } else {
    c.require(!p.q_scale.present() && p.q_format == ActivationFormat::bf16, "q_scale and an fp8 q_format need q, which is absent");
  }
  c.view("kv", p.kv, DType::bf16, {p.q.present() ? p.q.shape[0] : kAny, kAny});
  c.view("kv_weight", p.kv_weight, DType::f32, {p.kv.shape[1]});
  if (p.insert_epilogue) {
    c.require(!p.kv_out.present(), "kv_out must be absent with insert_epilogue, is {}", p.kv_out);
    const KeyInsert& insert = *p.insert_epilogue;
    ParamCheck e("rms_norm_pair: insert_epilogue", device);
    check_rotary_views(e, insert.positions, insert.cos_sin, p.kv.shape[0], p.kv.shape[1]);
    check_key_insert(e, insert.slot_mapping, insert.cache, insert.cos_sin, p.kv.shape[0], p.kv.shape[1]);
    e.values_in("positions", insert.positions, 0, insert.cos_sin.shape[0], false);
  } else {
    c.view("kv_out", p.kv_out, DType::bf16, {p.kv.shape[0], p.kv.shape[1]});
    check_output(c, "kv_out", p.kv_out);
  }
}

}  // namespace

Op<RmsNormPairParams> make_rms_norm_pair() {
  return {"rms_norm_pair", check, join(cuda::rms_norm_pair(), opencl::rms_norm_pair(), cpu::rms_norm_pair(), reference::rms_norm_pair()),
          with_norm_fusions};
}

}  // namespace strata::ops
