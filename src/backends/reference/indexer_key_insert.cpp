#include <array>
#include <cmath>

#include "backends/reference/indexer_vector.h"
#include "backends/reference/reference.h"
#include "formats/hadamard.h"
#include "formats/kv_rows.h"
#include "formats/rope.h"

namespace strata::reference {
namespace {

// A true LayerNorm: the mean is taken out, the variance is the biased one, the bias comes last.
void layer_norm(const Bf16* k, const float* weight, const float* bias, float eps, int64_t n, IndexerVector& out) {
  double mean = 0.0;
  for (int64_t d = 0; d < n; ++d) mean += to_float(k[d]);
  mean /= static_cast<double>(n);
  double variance = 0.0;
  for (int64_t d = 0; d < n; ++d) variance += (to_float(k[d]) - mean) * (to_float(k[d]) - mean);
  variance /= static_cast<double>(n);
  for (int64_t d = 0; d < n; ++d) out[d] = (to_float(k[d]) - mean) / std::sqrt(variance + eps) * weight[d] + bias[d];
}

void run(const IndexerKeyInsertParams& p) {
  const int64_t dim = p.k.shape[1];
  for (int64_t t = 0; t < p.slot_mapping.shape[0]; ++t) {
    const int64_t slot = p.slot_mapping.ptr<int64_t>()[t];
    if (slot < 0) continue;
    IndexerVector x;
    layer_norm(p.k.row<Bf16>(t), p.weight.ptr<float>(), p.bias.ptr<float>(), p.eps, dim, x);
    round_to_bf16(x, dim);
    if (p.cos_sin.present()) {
      const int64_t rotary = p.cos_sin.shape[1];
      const int64_t first = p.rope_slice == RopeSlice::last ? dim - rotary : 0;
      rotate(x.data() + first, p.cos_sin.row<float>(p.positions.ptr<int64_t>()[t]), rotary, p.pairing);
      round_to_bf16(x, dim);
    }
    if (p.hadamard) hadamard(x.data(), dim);  // store_row rounds its result to bf16
    std::array<float, ops::kMaxIndexerDim> row;
    for (int64_t d = 0; d < dim; ++d) row[d] = static_cast<float>(x[d]);
    store_row(p.cache, slot, row.data());
  }
}

}  // namespace

std::vector<Implementation<IndexerKeyInsertParams>> indexer_key_insert() { return always(run); }

}  // namespace strata::reference
