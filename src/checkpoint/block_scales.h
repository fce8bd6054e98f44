// The scales of an FP8 matrix, in every representation that checkpoints have: MLA specification 3, V4 specification 4.1, docs/formats.md.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "strata/checkpoint.h"

namespace strata {

// Scales multiply: value = e4m3 value * scale, whatever the name suggests ("weight_scale_inv").
//
// Dtype. F32, BF16 and F16 are the numbers themselves, also where config.json has scale_fmt "ue8m0", which describes activations. F8_E8M0
// is 2^(byte - 127). U8 is the same bytes, from writers without that dtype: nothing else is stored as U8 next to F8_E4M3. I32 is refused:
// four ue8m0 exponents per word are DeepGEMM's layout in memory, and no published checkpoint has it.
//
// Shape, for a matrix [n, k]. [] and [1]: one scale. [n]: one per row; no other vector. [a, b], or [a, 1, b, 1] as modelopt writes it: a
// for n rows and b for k columns. These are the config's blocks, ceil(n / block) x ceil(k / block), whose last may be partial; or one for
// the tensor, one per row, or MX groups: per row one per k / b columns. No other shape is accepted, in particular no transposed scales.
class BlockScales {
 public:
  // The scales of matrix `name` (without ".weight"), a tensor [n, k] named `weight`. Throws invalid_file when they are missing or invalid.
  BlockScales(const Checkpoint& checkpoint, int64_t layer, const std::string& name, const StoredTensor& weight);

  const StoredTensor& tensor() const { return *tensor_; }
  int64_t block_n() const { return block_n_; }
  int64_t block_k() const { return block_k_; }
  int64_t columns() const { return columns_; }  // of the tensor of scales

  // Scale of block (i, j). Throws invalid_file unless it is a finite number >= 0.
  float read(int64_t i, int64_t j) const;

  // The scales' tensor in any spelling; null: none.
  static const StoredTensor* find(const Checkpoint& checkpoint, int64_t layer, const std::string& name);

 private:
  void find_blocks(const std::array<int64_t, 2>& configured, const StoredTensor& weight);

  std::string origin_;
  const StoredTensor* tensor_;
  int64_t block_n_ = 1;
  int64_t block_k_ = 1;
  int64_t columns_ = 1;
};

}  // namespace strata
