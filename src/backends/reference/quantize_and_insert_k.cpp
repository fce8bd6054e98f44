#include "backends/reference/reference.h"
#include "formats/kv_rows.h"

namespace strata::reference {
namespace {

void run(const QuantizeAndInsertKParams& p) {
  // Per-tensor MLA rows are divided by their scale, V4 rows multiplied by its reciprocal: the two specifications differ.
  const StoreOptions options{.ue8m0 = p.ue8m0, .divide = p.cache.row_dim == fixed_row_dim(KvFormat::fp8_ds_mla)};
  for (int64_t n = 0; n < p.slot_mapping.shape[0]; ++n) {
    const int64_t slot = p.slot_mapping.ptr<int64_t>()[n];
    if (slot < 0) continue;
    float row[kMaxRowDim] = {};
    for (int64_t i = 0; i < p.k.shape[1]; ++i) row[i] = to_float(p.k.row<Bf16>(n)[i]);
    store_row(p.cache, slot, row, options);
  }
}

}  // namespace

std::vector<Implementation<QuantizeAndInsertKParams>> quantize_and_insert_k() { return always(run); }

}  // namespace strata::reference
