#include "backends/reference/reference.h"
#include "backends/reference/rotate_row.h"
#include "formats/bf16.h"

namespace strata::reference {
namespace {

void run(const InverseRopeParams& p) {
  for (int64_t t = 0; t < p.o.shape[0]; ++t) {
    const float* cos_sin = p.cos_sin.row<float>(p.positions.ptr<int64_t>()[t]);
    for (int64_t h = 0; h < p.o.shape[1]; ++h) {
      const Bf16* o = p.o.row<Bf16>(t, h);
      Bf16* out = p.out.row<Bf16>(t, h);
      rotate_last_lanes(
          p.o.shape[2], p.cos_sin.shape[1], cos_sin, true, [&](int64_t i) { return double{to_float(o[i])}; },
          [&](int64_t i, double value) { out[i] = to_bf16(static_cast<float>(value)); });
    }
  }
}

}  // namespace

std::vector<Implementation<InverseRopeParams>> inverse_rope() { return always(run); }

}  // namespace strata::reference
