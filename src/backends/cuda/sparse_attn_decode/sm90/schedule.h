// How a call's rows are shared out by the lengths of its tokens (SparseAttnDecodeParams::schedule), where the host knows them: pieces of
// about one size, a block each and for each tile of heads, the largest first. plan.h cuts all tokens alike, by what none of them has more
// of.
//
// A token is b * S + s of the call, and its rows are the entries of both scopes one behind the other, as many as the lengths say. A
// schedule is its pieces, then a row for each token that has several: the parts that are merged.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "backends/cuda/sparse_attn_decode/sm90/plan.h"
#include "contracts/sparse_decode_schedule.h"

namespace strata::cuda::sparse_decode {

// Tiles of a token that calls are expected to have mostly, whatever their bound is: 512 rows, as of 128:1 layers at 49152 positions.
inline constexpr int64_t kUsualTiles = 8;
// From so many tiles on, 1024 rows, a bound tells too little of the lengths below it.
inline constexpr int64_t kFarTiles = 16;

// Pieces beside one for each token: no more blocks than one for each SM. Their parts, of which each has one and the first of each token
// that is cut another, have room in what a plan's would take.
inline int64_t most_further_pieces(const Problem& p, int64_t block_heads) {
  return p.tiles > 1 ? std::min(p.num_sms / ceil_div(p.heads, block_heads), p.tokens * p.tiles / 2) : 0;
}

// The largest piece of a schedule, in tiles, and what the call takes by the costs of plan.h.
struct PieceSize {
  int64_t tiles = 0, time = 0;
};

// Of a call whose tokens have `all` tiles, the longest one `longest`, and are so many pieces as count(size) says.
template <class Count>
PieceSize best_size(const Problem& p, const BlockCost& cost, int64_t all, int64_t longest, const Count& count) {
  const int64_t head_tiles = ceil_div(p.heads, cost.heads), most = p.tokens + most_further_pieces(p, cost.heads);
  // Blocks that do not all run at a time end half of the largest one's time after their mean, as the largest begin first.
  const auto time_of = [&](int64_t size, int64_t pieces) {
    const int64_t blocks = pieces * head_tiles, shared_ways = std::min(std::max<int64_t>(2 * blocks - p.num_sms, 0), p.num_sms);
    const int64_t start = cost.start + cost.crowd * shared_ways / p.num_sms, largest = start + size * cost.tile;
    const int64_t mean = (blocks * start + all * head_tiles * cost.tile) / p.num_sms, parts = 2 * (pieces - p.tokens);
    const int64_t time = blocks <= p.num_sms ? largest : std::max(largest, mean + largest / 2);
    return parts == 0 ? time : time + kMerge + kMergeOf1024Heads * parts * p.heads / 1024;
  };
  PieceSize best;
  // From all tokens whole on to the least cut that makes the largest piece smaller.
  for (int64_t size = longest;;) {
    const int64_t pieces = count(size);
    if (pieces > most) return best;
    const int64_t time = time_of(size, pieces);
    if (best.tiles == 0 || time < best.time) best = {size, time};
    if (size == 1) return best;
    size = ceil_div(longest, ceil_div(longest, size - 1));
  }
}

// Heads of a block, from shapes alone: whoever makes a schedule and whoever runs it agree. They are best for calls whose tokens have what
// is usual, three times of four, and for those with one token as long as the bound. Null: the kernels take no schedule.
inline const BlockCost* block_of_pieces(const Problem& p) {
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

// Whether a schedule is to be expected to be faster where rows may be any up to the bound. Beside many rounds of blocks one long token is
// little.
inline bool far_bound(const Problem& p, const BlockCost* block) {
  return block != nullptr && p.tiles >= kFarTiles && p.tokens * ceil_div(p.heads, block->heads) <= 2 * p.num_sms;
}

// As in memory. First rows are multiples of kRowTile. Every token has a piece, if it has no rows too; its pieces have each row once.
struct PieceRow {
  int32_t token = -1;                         // -1: there is no piece, nor behind it
  int32_t part = -1;                          // of the token's several; -1: it has one piece
  int32_t first_row = 0, end_row = 0;         // the row behind the last
  int32_t main = 0, all = 0, unused[2] = {};  // entries of the first scope, of both
};
struct MergeRow {
  int32_t token = -1;                 // -1: there is none, nor behind it
  int32_t first_part = 0, parts = 0;  // in [0, 2 * further pieces), of one token only, in the order of its rows
  int32_t unused = 0;
};
static_assert(sizeof(PieceRow) == 32 && sizeof(MergeRow) == 16);

// How large a schedule is: of so many tokens and, at most, pieces beside one for each.
struct Sizes {
  int64_t tokens = 0, further = 0;
  int64_t pieces() const { return tokens + further; }
  int64_t merges() const { return std::min(tokens, further); }
  int64_t parts() const { return 2 * further; }
  int64_t bytes_of(int64_t num_merges) const { return pieces() * int64_t{sizeof(PieceRow)} + num_merges * int64_t{sizeof(MergeRow)}; }
  int64_t bytes() const { return bytes_of(merges()); }
  // Rows of merges in a schedule of so many bytes; -1: it is none of these sizes.
  int64_t merges_of(int64_t num_bytes) const {
    const int64_t rest = num_bytes - bytes_of(0), row = sizeof(MergeRow);
    return rest < 0 || rest % row != 0 || rest / row > merges() ? -1 : rest / row;
  }
};

class Schedule {
 public:
  // block: block_of_pieces(p); rows: of p.tokens tokens, at least one.
  Schedule(const Problem& p, const BlockCost& block, std::span<const AttendedRows> rows) : p_(p), rows_(rows) {
    int64_t all = 0, longest = 0;
    for (const AttendedRows& of : rows_) all += tiles_of(of), longest = std::max(longest, tiles_of(of));
    size_ = best_size(p, block, all, longest, [&](int64_t size) {
      int64_t count = 0;
      for (const AttendedRows& of : rows_) count += ceil_div(tiles_of(of), size);
      return count;
    });
  }
  PieceSize size() const { return size_; }
  // By more than these costs are wrong.
  bool is_faster() const { return 5 * size_.time < 4 * plan(p_).time; }

  // How many tokens are cut. `pieces` has room for one for each token and most_further_pieces(), `merges` for as many as may be cut.
  int64_t write(std::span<PieceRow> pieces, std::span<MergeRow> merges) const {
    auto piece = pieces.begin();
    auto merge = merges.begin();
    int32_t part = 0;
    for (int32_t token = 0; token < std::ssize(rows_); ++token) {
      const AttendedRows& of = rows_[static_cast<size_t>(token)];
      const int64_t tiles = tiles_of(of), count = ceil_div(tiles, size_.tiles);
      const auto cut = [&](int64_t i) { return std::min(static_cast<int32_t>(tiles * i / count * kRowTile), of.all); };
      if (count > 1) *merge++ = {token, part, static_cast<int32_t>(count)};
      for (int64_t i = 0; i < count; ++i) *piece++ = {token, count > 1 ? part++ : -1, cut(i), cut(i + 1), of.main, of.all};
    }
    std::stable_sort(pieces.begin(), piece,
                     [](const PieceRow& a, const PieceRow& b) { return a.end_row - a.first_row > b.end_row - b.first_row; });
    std::fill(piece, pieces.end(), PieceRow{});
    std::fill(merge, merges.end(), MergeRow{});
    return merge - merges.begin();
  }

 private:
  // A token without rows has a piece all the same.
  static int64_t tiles_of(const AttendedRows& rows) { return std::max<int64_t>(ceil_div(rows.all, kRowTile), 1); }

  Problem p_;
  std::span<const AttendedRows> rows_;
  PieceSize size_;
};

}  // namespace strata::cuda::sparse_decode
