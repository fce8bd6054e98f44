#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/kv_insert/row_checks.h"

namespace strata::ops {
namespace {

void check(const QuantizeAndInsertKParams& p, DeviceId device) {
  ParamCheck c("quantize_and_insert_k", device);
  c.view("k", p.k, DType::bf16, {kAny, kAny});
  c.view("slot_mapping", p.slot_mapping, DType::i64, {kAny});
  c.require(p.slot_mapping.shape[0] <= p.k.shape[0], "slot_mapping must have at most the {} rows of k, has {}", p.k.shape[0],
            p.slot_mapping.shape[0]);
  check_rows(
      c, "cache", p.cache,
      {KvFormat::fp8_ds_mla_v4, KvFormat::bf16, KvFormat::fp8_tensor, KvFormat::indexer_fp8, KvFormat::indexer_mxfp4, KvFormat::fp8_ds_mla},
      p.k.shape[1]);
  c.require(!p.ue8m0 || p.cache.format == KvFormat::fp8_ds_mla, "ue8m0 must be false with a cache of format {}, is true",
            to_string(p.cache.format));
  c.values_in("slot_mapping", p.slot_mapping, 0, p.cache.num_slots(), true);
}

}  // namespace

Op<QuantizeAndInsertKParams> make_quantize_and_insert_k() {
  return {"quantize_and_insert_k", check,
          join(cuda::quantize_and_insert_k(), opencl::quantize_and_insert_k(), cpu::quantize_and_insert_k(),
               reference::quantize_and_insert_k())};
}

}  // namespace strata::ops
