#include "backends/opencl/kv_insert/insert_rows.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/opencl/runtime/implementation.h"
#include "formats/kv_rows.h"

namespace strata::opencl {
namespace {

// MLA rows with a per-tensor scale are divided by it; V4 rows are multiplied by its reciprocal.
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
