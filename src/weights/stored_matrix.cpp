#include "weights/stored_matrix.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "checkpoint/other_quantisers.h"
#include "checkpoint/stored_value.h"
#include "core/ceil_div.h"
#include "core/check.h"
#include "core/thread_team.h"
#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "formats/fp16.h"

namespace strata {
namespace {

constexpr int64_t kElementsWorthThreads = 1 << 18;
constexpr int64_t kElementsOfTask = 1 << 16;

// Calls f(i) for the rows [0, count) of `columns` elements each, on several threads where that is worth it.
template <class F>
void for_rows(int64_t count, int64_t columns, int threads, const F& f) {
  const int64_t rows = std::max<int64_t>(kElementsOfTask / std::max<int64_t>(columns, 1), 1);
  for_each_of(ceil_div(count, rows), count * columns > kElementsWorthThreads ? threads : 1, [&](int64_t task) {
    for (int64_t i = task * rows; i < std::min(count, (task + 1) * rows); ++i) f(i);
  });
}

}  // namespace

Shard resolve(const Shard& shard, int64_t extent, std::string_view what) {
  const int64_t count = shard.count < 0 ? extent - shard.begin : shard.count;
  require(shard.begin >= 0 && count > 0 && count <= extent - shard.begin, "{}: expected a part of [0, {}), is [{}, {})", what, extent,
          shard.begin, shard.begin + count);
  return {shard.begin, count};
}

StoredMatrix::StoredMatrix(const Checkpoint& checkpoint, int64_t layer, const std::string& name, int64_t n, int64_t k, const Shard& rows,
                           const Shard& columns, bool transposed)
    : suffix_(name), checkpoint_(&checkpoint), k_(k), transposed_(transposed) {
  refuse_other_quantisers(checkpoint, layer, name);
  weight_ = &require_tensor(checkpoint, layer, name + ".weight", {DType::e4m3, DType::bf16, DType::f16, DType::f32}, {n, k});
  rows_ = resolve(rows, n, weight_->name + ": rows");
  columns_ = resolve(columns, k, weight_->name + ": columns");
  const std::string& quantiser = checkpoint.config().other_quant_method;
  if (weight_->dtype == DType::e4m3 && !quantiser.empty()) {
    fail(ErrorCode::invalid_file,
         "{}: tensor {}: dtype: expected BF16, F16 or F32, as config.json says that {} quantised with other products than block FP8, is {}",
         checkpoint.directory().string(), weight_->name, quantiser, weight_->dtype.name());
  }
  if (weight_->dtype == DType::e4m3) {
    load_scales(BlockScales(checkpoint, layer, name, *weight_));
    return;
  }
  if (const StoredTensor* scale = BlockScales::find(checkpoint, layer, name)) {
    fail(ErrorCode::invalid_file, "{}: tensor {}: dtype: expected F8_E4M3, as there is a {}, is {}", checkpoint.directory().string(),
         weight_->name, scale->name, weight_->dtype.name());
  }
}

void StoredMatrix::load_scales(const BlockScales& scales) {
  scale_ = &scales.tensor();
  block_n_ = scales.block_n();
  block_k_ = scales.block_k();
  scale_row_begin_ = rows_.begin / block_n_;
  scale_column_begin_ = columns_.begin / block_k_;
  const int64_t row_end = (rows_.begin + rows_.count - 1) / block_n_ + 1;
  const int64_t column_end = (columns_.begin + columns_.count - 1) / block_k_ + 1;
  scale_columns_ = column_end - scale_column_begin_;
  scales_.reserve(static_cast<size_t>((row_end - scale_row_begin_) * scale_columns_));
  for (int64_t i = scale_row_begin_; i < row_end; ++i) {
    for (int64_t j = scale_column_begin_; j < column_end; ++j) scales_.push_back(scales.read(i, j));
  }
}

float StoredMatrix::scale(int64_t row, int64_t column) const {
  const int64_t i = (rows_.begin + row) / block_n_ - scale_row_begin_;
  const int64_t j = (columns_.begin + column) / block_k_ - scale_column_begin_;
  return scales_[static_cast<size_t>(i * scale_columns_ + j)];
}

bool StoredMatrix::power_of_two_scales() const {
  return std::all_of(scales_.begin(), scales_.end(), [](float scale) {
    int exponent = 0;
    return std::frexp(scale, &exponent) == 0.5f;
  });
}

void StoredMatrix::read_codes(int64_t row, int64_t count, E4m3* out, int threads) const {
  const std::byte* begin = weight_->data + (rows_.begin + row) * k_ + columns_.begin;
  for_rows(count, columns_.count, threads,
           [&](int64_t i) { std::memcpy(out + i * columns_.count, begin + i * k_, static_cast<size_t>(columns_.count)); });
}

void StoredMatrix::read_bf16(int64_t row, int64_t count, Bf16* out, int threads) const {
  if (!transposed_) return read_stored(row, count, out, threads);
  std::vector<Bf16> stored(static_cast<size_t>(rows_.count * columns_.count));
  read_stored(0, rows_.count, stored.data(), threads);
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < rows_.count; ++j) out[i * rows_.count + j] = stored[static_cast<size_t>(j * columns_.count + row + i)];
  }
}

void StoredMatrix::read_stored(int64_t row, int64_t count, Bf16* out, int threads) const {
  if (scale_ != nullptr) return dequantize(row, count, out, threads);
  for_rows(count, columns_.count, threads, [&](int64_t i) {
    const int64_t begin = (rows_.begin + row + i) * k_ + columns_.begin;
    Bf16* to = out + i * columns_.count;
    if (weight_->dtype == DType::bf16) {
      std::memcpy(to, weight_->data + begin * static_cast<int64_t>(sizeof(Bf16)), static_cast<size_t>(columns_.count) * sizeof(Bf16));
    } else {
      for (int64_t j = 0; j < columns_.count; ++j) to[j] = to_bf16(stored_value(*weight_, begin + j));
    }
  });
}

// W = bf16(e4m3 * scale). A block has one scale, so its 256 possible results are computed once; the rest is table look-ups.
void StoredMatrix::dequantize(int64_t row, int64_t count, Bf16* out, int threads) const {
  constexpr int64_t kTableWorthwhile = 1024;  // elements of a block
  const auto* codes = reinterpret_cast<const uint8_t*>(weight_->data);
  const bool tables = block_n_ * block_k_ >= kTableWorthwhile;
  const int64_t first = rows_.begin + row;
  const int64_t last = first + count;
  const int64_t block_begin = first / block_n_;
  const int64_t block_end = (last - 1) / block_n_ + 1;
  for_each_of(block_end - block_begin, count * columns_.count > kElementsWorthThreads ? threads : 1, [&](int64_t index) {
    const int64_t block = block_begin + index;
    const int64_t row_begin = std::max(first, block * block_n_);
    const int64_t row_end = std::min(last, (block + 1) * block_n_);
    std::array<Bf16, 256> table;
    for (int64_t column = columns_.begin; column < columns_.begin + columns_.count;) {
      const int64_t column_end = std::min(columns_.begin + columns_.count, (column / block_k_ + 1) * block_k_);
      const float s = scale(row_begin - rows_.begin, column - columns_.begin);
      if (tables) {
        for (size_t i = 0; i < table.size(); ++i) table[i] = to_bf16(kE4m3Values[i] * s);
      }
      for (int64_t i = row_begin; i < row_end; ++i) {
        const uint8_t* from = codes + i * k_;
        Bf16* to = out + (i - first) * columns_.count - columns_.begin;
        if (tables) {
          for (int64_t j = column; j < column_end; ++j) to[j] = table[from[j]];
        } else {
          for (int64_t j = column; j < column_end; ++j) to[j] = to_bf16(kE4m3Values[from[j]] * s);
        }
      }
      column = column_end;
    }
  });
}

void StoredMatrix::release() const {
  checkpoint_->release(*weight_);
  if (scale_ != nullptr) checkpoint_->release(*scale_);
}

}  // namespace strata
