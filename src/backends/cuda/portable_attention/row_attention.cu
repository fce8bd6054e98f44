#include "backends/cuda/portable_attention/row_attention.h"

#include <algorithm>
#include <array>
#include <limits>

#include "backends/cuda/portable_attention/row_attention_plan.h"
#include "core/ceil_div.h"

namespace strata::cuda {
namespace {

constexpr int64_t kNarrowestRows = 32, kWidestRows = 64;  // of any tile

int64_t max_tiles(const RowAttention& a, int64_t rows) { return ceil_div(a.max_rows[0], rows) + ceil_div(a.max_rows[1], rows); }

// Instantiations by ascending number of heads; of equals the faster one first.
std::array<RowAttentionTile, 7> tiles() {
  return {row_attention_d512_heads16(), row_attention_d512_heads32(), row_attention_d512_heads64(), row_attention_d512_heads64_narrow(),
          row_attention_d576_heads16(), row_attention_d576_heads32(), row_attention_d576_heads64()};
}

bool fits(const RowAttentionTile& tile, const RowAttention& a, const Capabilities& c) {
  return tile.head_dim == a.head_dim && tile.shared_bytes <= c.max_shared_bytes;
}

// The fewest heads that hold all pairs of a unit, else the most there are. A call that would leave SMs idle uses small tiles.
RowAttentionTile choose_tile(const RowAttention& a, const Capabilities& c) {
  const int64_t pairs = a.batch_invariant ? a.num_heads : a.num_heads * a.max_queries;
  RowAttentionTile smallest, chosen;
  for (const RowAttentionTile& tile : tiles()) {
    if (!fits(tile, a, c)) continue;
    if (smallest.launch == nullptr) smallest = tile;
    if (chosen.heads < pairs && tile.heads > chosen.heads) chosen = tile;
  }
  const int64_t blocks = a.num_units * ceil_div(pairs, chosen.heads) * max_tiles(a, chosen.rows);
  return !a.batch_invariant && blocks < c.num_sms ? smallest : chosen;
}

constexpr int64_t kMaxSplits = 256;

// Splits cost their combination: about one tile, and a little per split.
int32_t choose_splits(int64_t blocks, int64_t num_tiles, int64_t resident_blocks) {
  int64_t best = 1;
  double best_cost = std::numeric_limits<double>::infinity();
  for (int64_t n = 1; n <= std::min(num_tiles, kMaxSplits) && (n == 1 || blocks * n <= 2 * resident_blocks); ++n) {
    constexpr double kBlockStart = 1.0;
    const double waves = static_cast<double>(ceil_div(blocks * n, resident_blocks));
    const double cost =
        waves * (static_cast<double>(ceil_div(num_tiles, n)) + kBlockStart) + (n > 1 ? 1.0 + 0.05 * static_cast<double>(n) : 0.0);
    if (cost < best_cost) {
      best_cost = cost;
      best = n;
    }
  }
  return static_cast<int32_t>(best);
}

// batch_invariant: where a token's rows are cut depends on their number alone.
constexpr int64_t kInvariantRows = 256;

// Rows of partial results, per (token, head, split): an upper bound that does not shrink when the call grows, although its splits do.
int64_t partial_rows(const RowAttention& a, const Capabilities& c) {
  const int64_t rows = a.num_tokens * a.num_heads;
  if (a.batch_invariant) {
    const int64_t splits = std::min(a.invariant_splits, max_tiles(a, kWidestRows) * kWidestRows / kInvariantRows);
    return splits > 1 ? rows * splits : 0;
  }
  const int64_t num_tiles = max_tiles(a, kNarrowestRows);
  int64_t most = 0;
  for (const RowAttentionTile& tile : tiles()) {
    if (fits(tile, a, c)) most = std::max<int64_t>(most, int64_t{2} * c.num_sms * tile.blocks_per_sm * tile.heads);
  }
  return num_tiles > 1 ? std::min(rows * std::min(num_tiles, kMaxSplits), most) : 0;
}

}  // namespace

RowScope row_scope(const PagedCache& cache) {
  RowScope s;
  s.data = static_cast<const uint8_t*>(cache.data);
  s.page_stride = cache.page_stride;
  s.scale_offset = cache.page_size * row_data_bytes(cache.format, cache.row_dim);
  s.num_rows = static_cast<int32_t>(std::min<int64_t>(cache.num_slots(), std::numeric_limits<int32_t>::max()));
  s.row_bytes = row_data_bytes(cache.format, cache.row_dim);
  s.page_size = Divisor(cache.page_size);
  s.format = cache.format;
  s.scale = cache.format == KvFormat::fp8_tensor ? cache.scale : 1.0f;
  find_alignment(s);
  return s;
}

void find_alignment(RowScope& s) {
  const auto multiples = [](int64_t a, int64_t b, int64_t c) { return (a | b | c) % 16 == 0; };
  // Scales of fp8_ds_mla_v4, the only ones outside their rows, begin 8-byte aligned after a number of rows of 576 bytes.
  s.is_aligned = multiples(static_cast<int64_t>(reinterpret_cast<uintptr_t>(s.data)), s.page_stride, s.row_bytes);
}

Support row_attention_supports(int64_t head_dim, int64_t value_dim) {
  if (head_dim != 512 && head_dim != 576) return Support::no("needs a head dimension of 512 or 576");
  if (value_dim > kRowValueDim) return Support::no("needs at most 512 value dimensions");
  return Support::yes();
}

RowAttentionPlan plan_row_attention(const RowAttention& a, const Capabilities& c) {
  RowAttentionPlan plan;
  plan.tile = choose_tile(a, c);
  const int64_t heads = plan.tile.heads, num_tiles = max_tiles(a, plan.tile.rows);
  const int64_t head_rows = a.batch_invariant ? ceil_div(a.num_heads, heads) * heads : a.num_heads;
  const int64_t blocks_per_unit = std::max<int64_t>(ceil_div(a.max_queries * head_rows, heads), 1);
  plan.head_rows = Divisor(static_cast<int32_t>(head_rows));
  plan.blocks_per_unit = Divisor(static_cast<int32_t>(blocks_per_unit));
  plan.num_blocks = a.num_units * blocks_per_unit;
  if (a.batch_invariant) {
    plan.min_tiles = static_cast<int32_t>(kInvariantRows / plan.tile.rows);
    plan.num_splits = static_cast<int32_t>(std::clamp<int64_t>(num_tiles / plan.min_tiles, 1, a.invariant_splits));
  } else {
    plan.num_splits = choose_splits(plan.num_blocks, num_tiles, int64_t{c.num_sms} * plan.tile.blocks_per_sm);
  }
  return plan;
}

size_t row_attention_workspace_bytes(const RowAttention& a, const Capabilities& c) {
  return static_cast<size_t>(partial_rows(a, c)) * (kRowValueDim + 2) * sizeof(float);
}

void row_attention_run(const RowAttention& a, const ExecutionContext& context) {
  if (a.num_tokens == 0 || a.num_units == 0) return;
  const Capabilities& c = capabilities(context.device);
  RowAttentionPlan plan = plan_row_attention(a, c);
  if (plan.num_splits > 1) {
    const int64_t rows = a.num_tokens * a.num_heads * plan.num_splits;
    plan.partial_out = static_cast<float*>(context.workspace.data);
    plan.partial_lse = plan.partial_out + rows * kRowValueDim;
    plan.partial_max = plan.partial_lse + rows;
  }
  plan.tile.launch(a, plan, native(context.stream));
  if (plan.num_splits > 1) combine_row_attention(a, plan, native(context.stream));
}

}  // namespace strata::cuda
