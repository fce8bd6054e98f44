#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/reference/reference.h"
#include "backends/reference/rotate_row.h"
#include "formats/hadamard.h"
#include "formats/kv_rows.h"
#include "contracts/compressor_window.h"

namespace strata::reference {
namespace {

constexpr int64_t kMaxDim = 512, kMaxRows = 128;

// The state rows of a window, oldest first, and the columns each of them contributes.
struct Rows {
  int64_t count = 0;
  int64_t slot[kMaxRows];
  int64_t column[kMaxRows];
};

Rows find_rows(const CompressNormRopeStoreParams& p, const CompressorWindow& window, int64_t request) {
  Rows rows;
  for (int64_t position = window.begin; position < window.end; ++position) {
    const int64_t page = std::max(p.block_table.row<int32_t>(request)[position / p.state.page_size], 0);
    rows.slot[rows.count] = page * p.state.page_size + position % p.state.page_size;
    rows.column[rows.count] = pooled_column(window, position, p.ratio, p.norm_weight.shape[0]);
    ++rows.count;
  }
  return rows;
}

// Channel c of the entry: the values, weighted by the softmax of their scores over the window.
double pool(const PagedCache& state, const Rows& rows, int64_t c) {
  const int64_t score_offset = state.row_dim / 2;
  double peak = -std::numeric_limits<double>::infinity(), sum = 0.0, weighted = 0.0;
  for (int64_t i = 0; i < rows.count; ++i) {
    peak = std::max(peak, double{load_state(state, rows.slot[i], score_offset + rows.column[i] + c)});
  }
  for (int64_t i = 0; i < rows.count; ++i) {
    const double weight = std::exp(load_state(state, rows.slot[i], score_offset + rows.column[i] + c) - peak);
    sum += weight;
    weighted += weight * load_state(state, rows.slot[i], rows.column[i] + c);
  }
  return weighted / sum;
}

void compress(const CompressNormRopeStoreParams& p, int64_t position, int64_t request, int64_t out_slot) {
  const CompressorWindow window = compressor_window(position, p.ratio);
  const Rows rows = find_rows(p, window, request);
  const int64_t d = p.norm_weight.shape[0];
  double u[kMaxDim] = {};
  double sum = 0.0;
  for (int64_t c = 0; c < d; ++c) {
    u[c] = pool(p.state, rows, c);
    sum += u[c] * u[c];
  }
  const double scale = 1.0 / std::sqrt(sum / static_cast<double>(d) + p.eps);
  float row[kMaxDim] = {};
  rotate_last_lanes(
      d, p.cos_sin.shape[1], p.cos_sin.row<float>(window.rope_position), false,
      [&](int64_t i) { return u[i] * scale * p.norm_weight.ptr<float>()[i]; },
      [&](int64_t i, double v) { row[i] = static_cast<float>(v); });
  if (p.hadamard) {
    for (int64_t i = 0; i < d; ++i) row[i] = round_to_bf16(row[i]);
    hadamard(row, d);
  }
  store_row(p.cache, out_slot, row);
}

void run(const CompressNormRopeStoreParams& p) {
  for (int64_t t = 0; t < p.positions.shape[0]; ++t) {
    const int64_t position = p.positions.ptr<int64_t>()[t];
    const int64_t out_slot = p.out_slots.ptr<int64_t>()[t];
    if (p.state_slots.ptr<int64_t>()[t] < 0 || out_slot < 0 || !completes_entry(position, p.ratio)) continue;
    compress(p, position, p.token_to_req.ptr<int32_t>()[t], out_slot);
  }
}

}  // namespace

std::vector<Implementation<CompressNormRopeStoreParams>> compress_norm_rope_store() { return always(run); }

}  // namespace strata::reference
