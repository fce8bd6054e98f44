#include "backends/reference/reference.h"

namespace strata::reference {
namespace {

void run(const ComputeGlobalTopkParams& p) {
  for (int64_t t = 0; t < p.topk_indices.shape[0]; ++t) {
    const bool valid = !p.is_valid_token.present() || p.is_valid_token.ptr<uint8_t>()[t] != 0;
    const int32_t* local = p.topk_indices.row<int32_t>(t);
    int32_t* global = p.global_indices.row<int32_t>(t);
    int32_t count = 0;
    for (int64_t i = 0; i < p.topk_indices.shape[1]; ++i) {
      const int32_t entry = local[i];
      const int32_t block = entry / p.page_size;
      if (!valid || entry < 0) {
        global[i] = -1;
        continue;
      }
      ++count;
      const bool in_table = block < p.block_table.shape[1];
      const int64_t page = in_table ? p.block_table.row<int32_t>(p.token_to_req.ptr<int32_t>()[t])[block] : 0;
      global[i] = in_table ? static_cast<int32_t>(page * p.page_size + entry % p.page_size) : -1;
    }
    p.lens.ptr<int32_t>()[t] = count;
  }
}

}  // namespace

std::vector<Implementation<ComputeGlobalTopkParams>> compute_global_topk() { return always(run); }

}  // namespace strata::reference
