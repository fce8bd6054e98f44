// The scales of an FP8 matrix, in every representation that checkpoints have: MLA specification 3, V4 specification 4.1, docs/formats.md.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "strata/checkpoint.h"

namespace strata {

// Scales multiply: value = code * scale, whatever the name says ("weight_scale_inv").
//
// Dtype. F32, BF16 and F16 are the numbers themselves, also where config.json has scale_fmt "ue8m0", which is about activations.
// F8_E8M0 is 2^(byte - 127). U8 is the same bytes, from writers without that dtype: nothing else is stored as U8 next to F8_E4M3. I32 is
// refused: four ue8m0 exponents to a word are DeepGEMM's layout in memory, and no published checkpoint has it.
//
// Shape, for a matrix [n, k]. [] and [1]: one scale. [n]: one a row; no other vector. [a, b], or [a, 1, b, 1] as modelopt writes it: a of
// n rows and b of k columns. They are the config's blocks, ceil(n / block) x ceil(k / block), whose last may be partial; or one for the
// tensor, one for each row, or MX groups: for each row one for each k / b columns. No other shape: transposed scales are one.
class BlockScales {
 public:
  // The scales of matrix `name` (without ".weight"), a tensor [n, k] that is called `weight`. Throws invalid_file when they are missing,
  // or cannot be.
  BlockScales(const Checkpoint& checkpoint, int64_t layer, const std::string& name, const StoredTensor& weight);

  const StoredTensor& tensor() const { return *tensor_; }
  int64_t block_n() const { return block_n_; }
  int64_t block_k() const { return block_k_; }
  int64_t columns() const { return columns_; }  // of the tensor of scales

  // Scale of block (i, j). Throws invalid_file unless it is a finite number >= 0.
  float read(int64_t i, int64_t j) const;

  // The scales' tensor in whichever spelling; null: none.
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
