// Which tokens complete a compressed entry, and the state rows of the entry: V4 specification 9.1 and 9.2.
#pragma once

#include <cstdint>

#include "formats/macros.h"

namespace strata {

// Ratio 4 pools two windows: the previous one from the first half of the columns, the current one from the second.
STRATA_HOST_DEVICE constexpr int32_t state_width_factor(int32_t ratio) { return ratio == 4 ? 2 : 1; }

struct CompressorWindow {
  int64_t begin;          // first position that is pooled: positions below 0 do not exist
  int64_t end;            // after the last: the boundary token's position + 1
  int64_t entry;          // number of the compressed entry
  int64_t rope_position;  // first position of the current window; the overlap does not shift it
};

STRATA_HOST_DEVICE constexpr bool completes_entry(int64_t position, int32_t ratio) { return position >= 0 && (position + 1) % ratio == 0; }

STRATA_HOST_DEVICE constexpr CompressorWindow compressor_window(int64_t position, int32_t ratio) {
  const int64_t first = position + 1 - int64_t{state_width_factor(ratio)} * ratio;
  return {.begin = first < 0 ? 0 : first, .end = position + 1, .entry = position / ratio, .rope_position = position / ratio * ratio};
}

// Offset of the columns of a pooled row: the second half for the current window of ratio 4.
STRATA_HOST_DEVICE constexpr int64_t pooled_column(const CompressorWindow& window, int64_t position, int32_t ratio, int64_t d) {
  return ratio == 4 && position >= window.rope_position ? d : 0;
}

static_assert(compressor_window(3, 4).begin == 0 && compressor_window(3, 4).rope_position == 0, "V4 specification 19");
static_assert(compressor_window(7, 4).begin == 0 && compressor_window(7, 4).end == 8 && compressor_window(7, 4).rope_position == 4);
static_assert(compressor_window(127, 128).begin == 0 && compressor_window(255, 128).begin == 128 && compressor_window(131, 4).entry == 32);

}  // namespace strata
