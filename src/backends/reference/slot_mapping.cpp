#include "backends/reference/reference.h"

namespace strata::reference {
namespace {

void run(const SlotMappingParams& p) {
  for (int64_t t = 0; t < p.positions.shape[0]; ++t) {
    int64_t& slot = p.slot_mapping.ptr<int64_t>()[t];
    slot = -1;
    if (p.is_valid_token.present() && p.is_valid_token.ptr<uint8_t>()[t] == 0) continue;
    const int64_t position = p.positions.ptr<int64_t>()[t];
    if ((position + 1) % p.ratio != 0) continue;
    const int64_t entry = position / p.ratio;
    const int32_t* pages = p.block_table.row<int32_t>(p.token_to_req.ptr<int32_t>()[t]);
    slot = int64_t{pages[entry / p.page_size]} * p.page_size + entry % p.page_size;
  }
}

}  // namespace

std::vector<Implementation<SlotMappingParams>> slot_mapping() { return always(run); }

}  // namespace strata::reference
