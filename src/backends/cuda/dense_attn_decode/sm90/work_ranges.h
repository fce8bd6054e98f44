// Divides the rows of all sequences among the CTAs of a call, by the sequences' lengths, on the device (schedule.h: by the host, where it
// knows them). A work range is the work of one CTA, or of a gang of CTAs where the same rows serve several tiles of queries. There
// are two ways to cut:
// - Splits: each sequence in splits of one size, one per range. The longest sequence has as many splits as there are ranges per sequence.
// - A line of all sequences, one after the other. A sequence's length on the line is its tiles plus the fixed cost of a split. The line is
// cut into equal ranges at any position. It is used where lengths differ so much that splits would be longer. A sequence's remainder may
// then share a CTA with other sequences.
#pragma once

#include <algorithm>
#include <cstdint>

namespace strata::cuda::dense_decode {

// In tiles. kSplitCost: beginning and end of a split. kMinRemainder: never cut off less than this from a sequence's beginning or end.
// kCombineCost: cost of having anything to combine, 4 to 8 us, as a schedule counts it.
inline constexpr int32_t kSplitCost = 3, kMinRemainder = 2, kCombineCost = 4;

constexpr int32_t ceil_div32(int32_t whole, int32_t size) { return (whole + size - 1) / size; }

class Partition {
 public:
  constexpr Partition() = default;
  // tiles: in all; longest: of the longest sequence; sequences: those with tiles; work_ranges: their number.
  constexpr Partition(int32_t tiles, int32_t longest, int32_t sequences, int32_t work_ranges)
      : work_range_tiles_(std::max(ceil_div32(tiles + kSplitCost * sequences, work_ranges), 1)) {
    if (sequences == 0 || sequences > work_ranges) return;
    // The line costs a bit more than its length: a CTA whose work begins inside a sequence has one more split.
    const int32_t tiles_per_split = ceil_div32(longest, work_ranges / sequences);
    if (tiles_per_split <= work_range_tiles_ + kMinRemainder + work_range_tiles_ / 16) split_tiles_ = tiles_per_split;
  }
  constexpr bool in_splits() const { return split_tiles_ > 0; }

  // Length of a sequence on the line; with splits the line counts splits. 0: it has no tiles.
  constexpr int32_t length(int32_t tiles) const {
    return tiles == 0 ? 0 : in_splits() ? ceil_div32(tiles, split_tiles_) : tiles + kSplitCost;
  }
  // Where a range begins on the line.
  constexpr int32_t begin(int32_t work_range) const { return in_splits() ? work_range : work_range * work_range_tiles_; }
  // Number of tiles of a sequence before a position, counted from where the sequence begins.
  constexpr int32_t tiles_before(int32_t position, int32_t tiles) const {
    if (in_splits()) return std::min(position * split_tiles_, tiles);
    const int32_t before = position - kSplitCost;
    return before <= kMinRemainder ? 0 : before >= tiles - kMinRemainder ? tiles : before;
  }
  // The last range with tiles of a sequence that begins at `position` and is cut.
  constexpr int32_t last_work_range(int32_t position, int32_t tiles) const {
    return in_splits() ? position + ceil_div32(tiles, split_tiles_) - 1
                       : ceil_div32(position + kSplitCost + tiles - kMinRemainder, work_range_tiles_) - 1;
  }

 private:
  int32_t work_range_tiles_ = 1, split_tiles_ = 0;
};

}  // namespace strata::cuda::dense_decode
