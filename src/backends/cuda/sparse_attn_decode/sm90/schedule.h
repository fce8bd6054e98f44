// Divides a call's rows by the lengths of its tokens (SparseAttnDecodeParams::schedule), where the host knows the lengths. A schedule has
// work items of about equal size, the largest first; each is one CTA per tile of heads. plan.h cuts all tokens alike, by the upper bound of
// their lengths.
//
// A token is b * S + s of the call. Its rows are the entries of both scopes, one after the other, as many as the lengths say. A schedule is
// its work items, then one row per token with several items: the splits to combine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "backends/cuda/sparse_attn_decode/sm90/plan.h"
#include "contracts/sparse_decode_schedule.h"

namespace strata::cuda::sparse_decode {

// Usual number of tiles of a token, whatever the bound is: 512 rows, as in 128:1 layers at 49152 positions.
inline constexpr int64_t kUsualTiles = 8;
// From this many tiles on (1024 rows), a bound says too little about the lengths below it.
inline constexpr int64_t kFarTiles = 16;

// Upper bound of work items in addition to one per token: no more CTAs than one per SM. Each of these has one split, and so has the first
// item of each cut token. All splits fit into the space of a plan's splits.
inline int64_t max_further_work_items(const Problem& p, int64_t block_heads) {
  return p.tiles > 1 ? std::min(p.num_sms / ceil_div(p.heads, block_heads), p.tokens * p.tiles / 2) : 0;
}

// The largest work item of a schedule, in tiles, and the call's time by the costs of plan.h.
struct WorkItemSize {
  int64_t tiles = 0, time = 0;
};

// For a call whose tokens have `all` tiles, the longest `longest` tiles. count(size): work items of at most `size` tiles.
template <class Count>
WorkItemSize best_size(const Problem& p, const BlockCost& cost, int64_t all, int64_t longest, const Count& count) {
  const int64_t head_tiles = ceil_div(p.heads, cost.heads), most = p.tokens + max_further_work_items(p, cost.heads);
  // If not all CTAs run at once, the last ends half of the largest CTA's time after their mean, because the largest start first.
  const auto time_of = [&](int64_t size, int64_t work_items) {
    const int64_t blocks = work_items * head_tiles, shared_ways = std::min(std::max<int64_t>(2 * blocks - p.num_sms, 0), p.num_sms);
    const int64_t start = cost.start + cost.crowd * shared_ways / p.num_sms, largest = start + size * cost.tile;
    const int64_t mean = (blocks * start + all * head_tiles * cost.tile) / p.num_sms, splits = 2 * (work_items - p.tokens);
    const int64_t time = blocks <= p.num_sms ? largest : std::max(largest, mean + largest / 2);
    return splits == 0 ? time : time + kCombine + kCombinePer1024Heads * splits * p.heads / 1024;
  };
  WorkItemSize best;
  // From whole tokens on to the smallest cut that makes the largest work item smaller.
  for (int64_t size = longest;;) {
    const int64_t work_items = count(size);
    if (work_items > most) return best;
    const int64_t time = time_of(size, work_items);
    if (best.tiles == 0 || time < best.time) best = {size, time};
    if (size == 1) return best;
    size = ceil_div(longest, ceil_div(longest, size - 1));
  }
}

// Heads of a CTA, from shapes alone, so that the maker and the user of a schedule agree. Weighted three to one: calls whose tokens have the
// usual tiles, and calls with one token as long as the bound. Null: the kernels take no schedule.
inline const BlockCost* block_of_schedule(const Problem& p) {
  if (p.format != KvFormat::fp8_ds_mla_v4 || p.batch_invariant) return nullptr;
  const int64_t longest = std::max<int64_t>(p.tiles, 1), usual = std::min(longest, kUsualTiles), others = p.tokens - 1;
  const BlockCost* best = nullptr;
  int64_t least = 0;
  for (const BlockCost& cost : kV4Costs) {
    if (cost.heads > 8 && 2 * p.heads <= cost.heads) continue;
    const auto time = [&](int64_t tiles) {
      const auto count = [&](int64_t size) { return ceil_div(tiles, size) + others * ceil_div(usual, size); };
      return best_size(p, cost, tiles + others * usual, tiles, count).time;
    };
    const int64_t sum = 3 * time(usual) + time(longest);
    if (best == nullptr || sum < least) best = &cost, least = sum;
  }
  return best;
}

// Whether a schedule is expected to be faster when lengths may be any number up to the bound. With many waves of CTAs, one long token
// matters little.
inline bool far_bound(const Problem& p, const BlockCost* block) {
  return block != nullptr && p.tiles >= kFarTiles && p.tokens * ceil_div(p.heads, block->heads) <= 2 * p.num_sms;
}

// Layout in memory. First rows are multiples of kRowTile. Every token has a work item, even without rows; its items cover each row once.
struct WorkItemRow {
  int32_t token = -1;                         // -1: no item here or later
  int32_t split = -1;                         // index of the split; -1: the token has one item
  int32_t first_row = 0, end_row = 0;         // end_row is one past the last
  int32_t main = 0, all = 0, unused[2] = {};  // entries of the first scope; of both scopes
};
struct CombineRow {
  int32_t token = -1;                   // -1: no token here or later
  int32_t first_split = 0, splits = 0;  // in [0, 2 * further work items), of one token, in the order of its rows
  int32_t unused = 0;
};
static_assert(sizeof(WorkItemRow) == 32 && sizeof(CombineRow) == 16);

// Sizes of a schedule for `tokens` tokens and at most `further` work items in addition to one per token.
struct Sizes {
  int64_t tokens = 0, further = 0;
  int64_t work_items() const { return tokens + further; }
  int64_t combine_rows() const { return std::min(tokens, further); }
  int64_t splits() const { return 2 * further; }
  int64_t bytes_of(int64_t num_combine_rows) const {
    return work_items() * int64_t{sizeof(WorkItemRow)} + num_combine_rows * int64_t{sizeof(CombineRow)};
  }
  int64_t bytes() const { return bytes_of(combine_rows()); }
  // Rows of CombineRow in a schedule of num_bytes bytes; -1: no schedule of these sizes has that many bytes.
  int64_t combine_rows_of(int64_t num_bytes) const {
    const int64_t rest = num_bytes - bytes_of(0), row = sizeof(CombineRow);
    return rest < 0 || rest % row != 0 || rest / row > combine_rows() ? -1 : rest / row;
  }
};

class Schedule {
 public:
  // block: block_of_schedule(p). rows: of p.tokens tokens, at least one.
  Schedule(const Problem& p, const BlockCost& block, std::span<const AttendedRows> rows) : p_(p), rows_(rows) {
    int64_t all = 0, longest = 0;
    for (const AttendedRows& of : rows_) all += tiles_of(of), longest = std::max(longest, tiles_of(of));
    size_ = best_size(p, block, all, longest, [&](int64_t size) {
      int64_t count = 0;
      for (const AttendedRows& of : rows_) count += ceil_div(tiles_of(of), size);
      return count;
    });
  }
  WorkItemSize size() const { return size_; }
  // By more than the error of these costs.
  bool is_faster() const { return 5 * size_.time < 4 * plan(p_).time; }

  // Writes the schedule and returns the number of cut tokens. `work_items` has room for one item per token and max_further_work_items(),
  // `combine_rows` for as many tokens as may be cut.
  int64_t write(std::span<WorkItemRow> work_items, std::span<CombineRow> combine_rows) const {
    auto work_item = work_items.begin();
    auto combine_row = combine_rows.begin();
    int32_t split = 0;
    for (int32_t token = 0; token < std::ssize(rows_); ++token) {
      const AttendedRows& of = rows_[static_cast<size_t>(token)];
      const int64_t tiles = tiles_of(of), count = ceil_div(tiles, size_.tiles);
      const auto cut = [&](int64_t i) { return std::min(static_cast<int32_t>(tiles * i / count * kRowTile), of.all); };
      if (count > 1) *combine_row++ = {token, split, static_cast<int32_t>(count)};
      for (int64_t i = 0; i < count; ++i) *work_item++ = {token, count > 1 ? split++ : -1, cut(i), cut(i + 1), of.main, of.all};
    }
    std::stable_sort(work_items.begin(), work_item,
                     [](const WorkItemRow& a, const WorkItemRow& b) { return a.end_row - a.first_row > b.end_row - b.first_row; });
    std::fill(work_item, work_items.end(), WorkItemRow{});
    std::fill(combine_row, combine_rows.end(), CombineRow{});
    return combine_row - combine_rows.begin();
  }

 private:
  // A token without rows still has a work item.
  static int64_t tiles_of(const AttendedRows& rows) { return std::max<int64_t>(ceil_div(rows.all, kRowTile), 1); }

  Problem p_;
  std::span<const AttendedRows> rows_;
  WorkItemSize size_;
};

}  // namespace strata::cuda::sparse_decode
