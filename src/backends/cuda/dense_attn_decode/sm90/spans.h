// How the rows of all sequences are shared out to the blocks of a call: by the sequences' own lengths, on the device (schedule.h: by the
// host, where it knows them). A span is what one block does (a gang of blocks, where the same rows are several tiles of queries'). Two ways
// to cut:
// - Parts: each sequence in parts of one size, a span each: as many of the longest as there are spans for each sequence.
// - A line on which the sequences lie one behind the other, each with its tiles and what a piece costs beside them, cut into equal spans
//   wherever that is: where sequences differ so much that parts would be longer. What is left of a sequence may then be one block's with
//   other sequences.
#pragma once

#include <algorithm>
#include <cstdint>

namespace strata::cuda::dense_decode {

// In tiles: what a piece's beginning and end cost; what is not cut off from a sequence's beginning or end; and what it costs a call that
// there is something to merge, 4 to 8 us, as a schedule counts it.
inline constexpr int32_t kPieceCost = 3, kCrumb = 2, kMergeCost = 4;

constexpr int32_t pieces_of(int32_t whole, int32_t piece) { return (whole + piece - 1) / piece; }

class Cutting {
 public:
  constexpr Cutting() = default;
  // Of so many tiles in all, and in the longest one of the sequences that have any.
  constexpr Cutting(int32_t tiles, int32_t longest, int32_t sequences, int32_t spans)
      : span_(std::max(pieces_of(tiles + kPieceCost * sequences, spans), 1)) {
    if (sequences == 0 || sequences > spans) return;
    // The line costs a bit more than it says: where a block's work begins inside a sequence it has a piece more.
    const int32_t part = pieces_of(longest, spans / sequences);
    if (part <= span_ + kCrumb + span_ / 16) part_ = part;
  }
  constexpr bool in_parts() const { return part_ > 0; }

  // How long a sequence is on the line; of parts the line is their numbers. 0: it has no tiles.
  constexpr int32_t length(int32_t tiles) const { return tiles == 0 ? 0 : in_parts() ? pieces_of(tiles, part_) : tiles + kPieceCost; }
  // Where a span begins on the line.
  constexpr int32_t begin(int32_t span) const { return in_parts() ? span : span * span_; }
  // How many tiles of a sequence lie before a place, counted from where the sequence begins.
  constexpr int32_t tiles_before(int32_t place, int32_t tiles) const {
    if (in_parts()) return std::min(place * part_, tiles);
    const int32_t before = place - kPieceCost;
    return before <= kCrumb ? 0 : before >= tiles - kCrumb ? tiles : before;
  }
  // The last span that has tiles of a sequence that begins at `place` and is cut.
  constexpr int32_t last_span(int32_t place, int32_t tiles) const {
    return in_parts() ? place + pieces_of(tiles, part_) - 1 : pieces_of(place + kPieceCost + tiles - kCrumb, span_) - 1;
  }

 private:
  int32_t span_ = 1, part_ = 0;
};

}  // namespace strata::cuda::dense_decode
