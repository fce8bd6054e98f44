#include "checkpoint/stored_matrix.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "checkpoint/safetensors_header.h"
#include "core/ceil_div.h"
#include "core/check.h"
#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "formats/fp16.h"
#include "formats/ue8m0.h"

namespace strata {
namespace {

constexpr int64_t kElementsWorthThreads = 1 << 18;

template <class T>
T load_unaligned(const std::byte* at, int64_t i) {
  T value;
  std::memcpy(&value, at + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

std::string describe(DType dtype, const std::vector<int64_t>& shape) {
  return fmt::format("{}[{}]", safetensors_name(dtype), fmt::join(shape, ", "));
}

}  // namespace

const StoredTensor& require_tensor(const Checkpoint& checkpoint, int64_t layer, std::string_view suffix,
                                   std::initializer_list<DType> dtypes, const std::vector<int64_t>& shape) {
  const StoredTensor& tensor = checkpoint.require(layer, suffix);
  if (std::find(dtypes.begin(), dtypes.end(), tensor.dtype) == dtypes.end()) {
    std::vector<std::string_view> names;
    for (const DType dtype : dtypes) names.push_back(safetensors_name(dtype));
    fail(ErrorCode::invalid_file, "{}: tensor {}: dtype: expected {}, is {}", checkpoint.directory().string(), tensor.name,
         fmt::join(names, " or "), safetensors_name(tensor.dtype));
  }
  if (tensor.shape != shape) {
    fail(ErrorCode::invalid_file, "{}: tensor {}: shape: expected [{}], is [{}]", checkpoint.directory().string(), tensor.name,
         fmt::join(shape, ", "), fmt::join(tensor.shape, ", "));
  }
  return tensor;
}

Shard resolve(const Shard& shard, int64_t extent, std::string_view what) {
  const int64_t count = shard.count < 0 ? extent - shard.begin : shard.count;
  require(shard.begin >= 0 && count > 0 && count <= extent - shard.begin, "{}: expected a part of [0, {}), is [{}, {})", what, extent,
          shard.begin, shard.begin + count);
  return {shard.begin, count};
}

float stored_value(const StoredTensor& tensor, int64_t i) {
  switch (tensor.dtype) {
    case DType::bf16: return to_float(load_unaligned<Bf16>(tensor.data, i));
    case DType::f16: return to_float(load_unaligned<Fp16>(tensor.data, i));
    default: return load_unaligned<float>(tensor.data, i);
  }
}

StoredMatrix::StoredMatrix(const Checkpoint& checkpoint, int64_t layer, const std::string& name, int64_t n, int64_t k, const Shard& rows,
                           const Shard& columns, bool transposed)
    : checkpoint_(&checkpoint),
      weight_(&require_tensor(checkpoint, layer, name + ".weight", {DType::e4m3, DType::bf16, DType::f16, DType::f32}, {n, k})),
      scale_(checkpoint.find(layer, name + ".scale")),
      k_(k),
      transposed_(transposed),
      rows_(resolve(rows, n, weight_->name + ": rows")),
      columns_(resolve(columns, k, weight_->name + ": columns")) {
  const std::string origin = checkpoint.directory().string();
  if (weight_->dtype != DType::e4m3) {
    if (scale_ == nullptr) return;
    fail(ErrorCode::invalid_file, "{}: tensor {}: dtype: expected F8_E4M3, as there is a {}, is {}", origin, weight_->name, scale_->name,
         safetensors_name(weight_->dtype));
  }
  if (scale_ == nullptr) scale_ = &checkpoint.require(layer, name + ".scale");
  find_blocks(origin, n, k);
  load_scales(origin);
}

void StoredMatrix::find_blocks(std::string_view origin, int64_t n, int64_t k) {
  const std::array<int64_t, 2> block = checkpoint_->config().weight_block_size;
  if (scale_->dtype != DType::e8m0 && scale_->dtype != DType::f32 && scale_->dtype != DType::bf16) {
    fail(ErrorCode::invalid_file, "{}: tensor {}: dtype: expected F8_E8M0, F32 or BF16, is {}", origin, scale_->name,
         safetensors_name(scale_->dtype));
  }
  // One scale for the whole tensor, one per row, or one per block.
  const std::vector<int64_t>& shape = scale_->shape;
  int64_t scale_rows = 1;
  int64_t scale_columns = 1;
  if (shape.size() == 1 && shape[0] != 1) scale_rows = shape[0];
  if (shape.size() == 2) std::tie(scale_rows, scale_columns) = std::pair(shape[0], shape[1]);
  // The config's block where it fits, as the last one may be partial; else whatever divides evenly (MX and per-row re-quantisations).
  const auto block_of = [](int64_t extent, int64_t scales, int64_t configured) -> int64_t {
    if (scales == ceil_div(extent, configured)) return configured;
    return scales > 0 && extent % scales == 0 ? extent / scales : 0;
  };
  block_n_ = block_of(n, scale_rows, block[0]);
  block_k_ = block_of(k, scale_columns, block[1]);
  if (shape.size() > 2 || block_n_ == 0 || block_k_ == 0) {
    fail(ErrorCode::invalid_file, "{}: tensor {}: shape: expected [{}, {}], one scale per {}x{} block of {}, is [{}]", origin, scale_->name,
         ceil_div(n, block[0]), ceil_div(k, block[1]), block[0], block[1], describe(weight_->dtype, weight_->shape),
         fmt::join(shape, ", "));
  }
}

void StoredMatrix::load_scales(std::string_view origin) {
  const int64_t all_columns = ceil_div(k_, block_k_);
  scale_row_begin_ = rows_.begin / block_n_;
  scale_column_begin_ = columns_.begin / block_k_;
  const int64_t row_end = (rows_.begin + rows_.count - 1) / block_n_ + 1;
  const int64_t column_end = (columns_.begin + columns_.count - 1) / block_k_ + 1;
  scale_columns_ = column_end - scale_column_begin_;
  scales_.reserve(static_cast<size_t>((row_end - scale_row_begin_) * scale_columns_));
  for (int64_t i = scale_row_begin_; i < row_end; ++i) {
    for (int64_t j = scale_column_begin_; j < column_end; ++j) {
      const int64_t at = i * all_columns + j;
      const float value = scale_->dtype == DType::e8m0 ? to_float(load_unaligned<E8m0>(scale_->data, at)) : stored_value(*scale_, at);
      if (!std::isfinite(value) || value < 0.0f) {
        fail(ErrorCode::invalid_file, "{}: tensor {}: scale [{}, {}]: expected a finite number >= 0, is {}", origin, scale_->name, i, j,
             value);
      }
      scales_.push_back(value);
    }
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

void StoredMatrix::read_codes(int64_t row, int64_t count, E4m3* out, [[maybe_unused]] int threads) const {
  const std::byte* begin = weight_->data + (rows_.begin + row) * k_ + columns_.begin;
#pragma omp parallel for num_threads(threads) schedule(static) if (count * columns_.count > kElementsWorthThreads)
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(out + i * columns_.count, begin + i * k_, static_cast<size_t>(columns_.count));
  }
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
#pragma omp parallel for num_threads(threads) schedule(static) if (count * columns_.count > kElementsWorthThreads)
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = (rows_.begin + row + i) * k_ + columns_.begin;
    Bf16* to = out + i * columns_.count;
    if (weight_->dtype == DType::bf16) {
      std::memcpy(to, weight_->data + begin * static_cast<int64_t>(sizeof(Bf16)), static_cast<size_t>(columns_.count) * sizeof(Bf16));
    } else {
      for (int64_t j = 0; j < columns_.count; ++j) to[j] = to_bf16(stored_value(*weight_, begin + j));
    }
  }
}

// W = bf16(e4m3 * scale). A block has one scale, so its 256 possible results are made once and the rest is a table look-up.
void StoredMatrix::dequantize(int64_t row, int64_t count, Bf16* out, [[maybe_unused]] int threads) const {
  constexpr int64_t kTableWorthwhile = 1024;  // elements of a block
  const auto* codes = reinterpret_cast<const uint8_t*>(weight_->data);
  const bool tables = block_n_ * block_k_ >= kTableWorthwhile;
  const int64_t first = rows_.begin + row;
  const int64_t last = first + count;
  const int64_t block_begin = first / block_n_;
  const int64_t block_end = (last - 1) / block_n_ + 1;
#pragma omp parallel for num_threads(threads) schedule(static) if (count * columns_.count > kElementsWorthThreads)
  for (int64_t block = block_begin; block < block_end; ++block) {
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
  }
}

void StoredMatrix::release() const {
  checkpoint_->release(*weight_);
  if (scale_ != nullptr) checkpoint_->release(*scale_);
}

}  // namespace strata
