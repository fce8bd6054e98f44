// A shard of a checkpoint's matrix: checked once, then read row by row in the required form.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/block_scales.h"
#include "strata/dtype.h"
#include "weights/load_weights.h"

namespace strata {

// The shard with its count filled in. Throws invalid_argument when it is not within [0, extent).
Shard resolve(const Shard& shard, int64_t extent, std::string_view what);

class StoredMatrix {
 public:
  // `name` has no ".weight". n and k are the extents of the full tensor. transposed: the shard is read as its transpose, in bf16 only.
  StoredMatrix(const Checkpoint& checkpoint, int64_t layer, const std::string& name, int64_t n, int64_t k, const Shard& rows,
               const Shard& columns, bool transposed = false);

  const std::string& name() const { return weight_->name; }
  const std::string& suffix() const { return suffix_; }  // "wq_a"
  bool is_fp8() const { return scale_ != nullptr && !transposed_; }
  int64_t rows() const { return transposed_ ? columns_.count : rows_.count; }
  int64_t columns() const { return transposed_ ? rows_.count : columns_.count; }
  // Where the shard begins in the full tensor, and the extents of a scale's block there.
  int64_t row_begin() const { return rows_.begin; }
  int64_t column_begin() const { return columns_.begin; }
  int64_t block_n() const { return block_n_; }
  int64_t block_k() const { return block_k_; }

  // From here on rows and columns are relative to the shard. Row-major without gaps:
  void read_bf16(int64_t row, int64_t count, Bf16* out, int threads) const;
  void read_codes(int64_t row, int64_t count, E4m3* out, int threads) const;  // FP8 only
  float scale(int64_t row, int64_t column) const;                             // FP8 only
  bool power_of_two_scales() const;                                           // FP8 only

  // Drops the pages of the file, which are not needed again.
  void release() const;

 private:
  void load_scales(const BlockScales& scales);
  // As stored, never transposed.
  void read_stored(int64_t row, int64_t count, Bf16* out, int threads) const;
  void dequantize(int64_t row, int64_t count, Bf16* out, int threads) const;

  std::string suffix_;
  const Checkpoint* checkpoint_;
  const StoredTensor* weight_ = nullptr;
  const StoredTensor* scale_ = nullptr;  // null: not FP8
  int64_t k_;                            // of the full tensor
  bool transposed_;
  Shard rows_;
  Shard columns_;
  int64_t block_n_ = 1;
  int64_t block_k_ = 1;
  // Scales of the blocks that the part touches, [block rows, scale_columns_].
  std::vector<float> scales_;
  int64_t scale_row_begin_ = 0;
  int64_t scale_column_begin_ = 0;
  int64_t scale_columns_ = 0;
};

}  // namespace strata
