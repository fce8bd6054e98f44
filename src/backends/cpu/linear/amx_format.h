// The weight layout of "cpu/amx": bf16, or e4m3 unchanged (half the memory, and half the bytes that a decode step reads).
//
// A weight is cut into panels of 32 output features, a panel into steps of 32 input features; rows and columns are padded to whole ones. A
// step is two adjacent AMX B operands of 16 features: row r of an operand holds channels 2r and 2r + 1 of its 16 features.
//   bf16: [2 operands][16 rows][16 features][2 channels], 2048 bytes
//   e4m3: [2 operands][8 pairs of rows][64 values], 1024 bytes. Value 16 * l + i of a pair of rows is, for i < 8, feature 4 * l + i / 2 and
//     channel i % 2 of its first row, for i >= 8 the same of its second: interleaving low and high bytes of the decoded values within
//     128-bit lanes gives the two rows in order.
// A blob is a Header, then per group: scales f32 [panels][scale_steps], masks u16 [panels][steps], the panels. Bit i of a mask marks a pair
// of rows i with a value whose bf16 is not a plain rearrangement of its bits: zeros, subnormals, NaN.
#pragma once

#include <cstddef>
#include <cstdint>

#include "strata/ops/linear.h"

namespace strata::cpu::amx {

inline constexpr int64_t kPanel = 32;  // output features
inline constexpr int64_t kStep = 32;   // input features
inline constexpr int64_t kPairs = 16;  // pairs of rows of a step
inline constexpr int64_t kStepValues = kPanel * kStep;

struct Header {
  int64_t is_e4m3;
  int64_t steps_per_scale;
  int64_t exact_scales;  // e4m3: all scales are powers of two that keep values normal, so bf16 operands may include them
};

struct Geometry {
  int64_t panels = 0, steps = 0, scale_steps = 0;
  bool e4m3 = false;

  static constexpr size_t align(size_t bytes) { return (bytes + 255) / 256 * 256; }
  size_t scale_bytes() const { return e4m3 ? align(static_cast<size_t>(panels * scale_steps) * sizeof(float)) : 0; }
  size_t mask_bytes() const { return e4m3 ? align(static_cast<size_t>(panels * steps) * sizeof(uint16_t)) : 0; }
  size_t step_bytes() const { return static_cast<size_t>(kStepValues) * (e4m3 ? 1 : 2); }
  size_t group_bytes() const { return scale_bytes() + mask_bytes() + static_cast<size_t>(panels * steps) * step_bytes(); }
  static constexpr size_t header_bytes() { return align(sizeof(Header)); }
};

inline Geometry geometry(int64_t n, int64_t k, bool e4m3, int64_t steps_per_scale) {
  Geometry g;
  g.panels = (n + kPanel - 1) / kPanel;
  g.steps = (k + kStep - 1) / kStep;
  g.e4m3 = e4m3;
  g.scale_steps = e4m3 ? (g.steps + steps_per_scale - 1) / steps_per_scale : 0;
  return g;
}

// Throws invalid_argument unless the packed memory has the size of its header and the weight's sizes.
void check_packed(const LinearWeight& weight);

// One group of a packed weight.
struct Group {
  const float* scales = nullptr;    // e4m3 only
  const uint16_t* masks = nullptr;  // e4m3 only
  const std::byte* panels = nullptr;
  Geometry geometry;
  int64_t steps_per_scale = 1;
  bool exact_scales = true;
};
Group group_of(const LinearWeight& weight, int64_t index);

// 0 when the layout does not take the weight: its scale blocks must be whole panels and whole steps.
size_t packed_bytes(const LinearWeight& weight);
void pack(const Device& device, const LinearWeight& weight, std::byte* dst);

}  // namespace strata::cpu::amx
