// One task of the AMX matrix product: a block of token rows times one panel of 32 output features, all input features.
#pragma once

#include <cstddef>
#include <cstdint>

namespace strata::cpu::amx {

// Token rows are packed as A operands: [tiles][steps][rows][32 channels] bf16, with zeros after the last token and channel.
inline constexpr int64_t kTileRows = 16;

struct Task {
  const std::byte* a = nullptr;
  int64_t tiles = 0;  // of this block
  int rows = 16;      // token rows per tile: fewer than 16 only when there is one tile
  int64_t steps = 0;

  const std::byte* panel = nullptr;  // bf16 operands, or e4m3 values
  const uint16_t* masks = nullptr;   // e4m3, else null
  const float* scales = nullptr;     // e4m3: their scales
  int64_t steps_per_scale = 1;
  std::byte* decoded = nullptr;  // e4m3: steps * 2048 bytes, aligned to 64

  // Scaled sums, because bf16 operands would round scales that are not powers of two. Operands are then unscaled values (weights) or what A
  // holds, and the fp32 sum of each steps_per_sum steps is multiplied by the scales. 0: operands include their scales, one sum of all
  // steps.
  int64_t steps_per_sum = 0;
  const float* token_scales = nullptr;  // [tokens of the block], null when A includes its scales; one per 4 steps (128 channels)
  int64_t token_scale_stride = 0;       // floats

  // The result: rows of the block's tokens, `features` (at most 32) values each.
  std::byte* y = nullptr;
  int64_t y_stride = 0;  // bytes
  bool y_f32 = false;    // else bf16
  int64_t tokens = 0;
  int64_t features = 0;
};

// Needs CpuIsa::amx. Changes the thread's tile configuration and releases it.
void multiply(const Task& task);

}  // namespace strata::cpu::amx
