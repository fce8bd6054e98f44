#include "backends/opencl/kv_insert/insert_rows.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/opencl/runtime/implementation.h"
#include "formats/kv_rows.h"

namespace strata::opencl {
namespace {

// Per-tensor MLA rows are divided by their scale, V4 rows multiplied by its reciprocal.
void run(const QuantizeAndInsertKParams& p, Variant, const ExecutionContext& context) {
  insert_rows({.slots = p.slot_mapping,
               .first = p.k,
               .cache = p.cache,
               .is_ue8m0 = p.ue8m0,
               .is_divided = p.cache.row_dim == fixed_row_dim(KvFormat::fp8_ds_mla)},
              context);
}

}  // namespace

std::vector<Implementation<QuantizeAndInsertKParams>> quantize_and_insert_k() {
  return {implementation<QuantizeAndInsertKParams>(Flavour::basic, {.run = run})};
}

}  // namespace strata::opencl
