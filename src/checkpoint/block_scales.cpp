#include "checkpoint/block_scales.h"

#include <cmath>
#include <cstring>
#include <tuple>
#include <utility>

#include "checkpoint/stored_value.h"
#include "core/ceil_div.h"
#include "core/check.h"
#include "formats/ue8m0.h"

namespace strata {
namespace {

bool is_exponent(StoredDType dtype) { return dtype == StoredDType::e8m0 || dtype == StoredDType::u8; }
bool is_number(StoredDType dtype) { return dtype == StoredDType::f32 || dtype == StoredDType::bf16 || dtype == StoredDType::f16; }

}  // namespace

const StoredTensor* BlockScales::find(const Checkpoint& checkpoint, int64_t layer, const std::string& name) {
  return checkpoint.find(layer, name + ".scale");
}

BlockScales::BlockScales(const Checkpoint& checkpoint, int64_t layer, const std::string& name, const StoredTensor& weight)
    : origin_(checkpoint.directory().string()), tensor_(&checkpoint.require(layer, name + ".scale")) {
  if (!is_exponent(tensor_->dtype) && !is_number(tensor_->dtype)) {
    fail(ErrorCode::invalid_file, "{}: tensor {}: dtype: expected F8_E8M0, U8 (of the same bytes), F32, BF16 or F16, is {}{}", origin_,
         tensor_->name, tensor_->dtype.name(),
         tensor_->dtype == StoredDType::i32 ? " (four packed ue8m0 exponents? unpack them to F8_E8M0)" : "");
  }
  find_blocks(checkpoint.config().weight_block_size, weight);
}

void BlockScales::find_blocks(const std::array<int64_t, 2>& configured, const StoredTensor& weight) {
  const int64_t n = weight.shape[0], k = weight.shape[1];
  const std::vector<int64_t>& shape = tensor_->shape;
  int64_t rows = 0, columns = 0;  // 0: no shape of scales
  if (shape.empty() || shape == std::vector<int64_t>{1}) {
    rows = columns = 1;
  } else if (shape == std::vector<int64_t>{n}) {
    std::tie(rows, columns) = std::pair(n, int64_t{1});
  } else if (shape.size() == 2) {
    std::tie(rows, columns) = std::pair(shape[0], shape[1]);
  } else if (shape.size() == 4 && shape[1] == 1 && shape[3] == 1) {
    std::tie(rows, columns) = std::pair(shape[0], shape[2]);
  }
  const auto [block_n, block_k] = configured;
  block_n_ = block_k_ = 0;
  if (rows == ceil_div(n, block_n) && columns == ceil_div(k, block_k)) {
    std::tie(block_n_, block_k_) = std::pair(block_n, block_k);
  } else if ((rows == n || (rows == 1 && columns == 1)) && columns > 0 && k % columns == 0) {
    std::tie(block_n_, block_k_) = std::pair(n / rows, k / columns);
  }
  columns_ = columns;
  if (block_n_ == 0 || block_k_ == 0) {
    fail(ErrorCode::invalid_file,
         "{}: tensor {}: shape: expected [{}, {}], one scale per {}x{} block of {}[{}, {}], or one for the tensor, for each row, or for "
         "each group of a row, is [{}]",
         origin_, tensor_->name, ceil_div(n, configured[0]), ceil_div(k, configured[1]), configured[0], configured[1], weight.dtype.name(),
         n, k, fmt::join(shape, ", "));
  }
}

float BlockScales::read(int64_t i, int64_t j) const {
  const int64_t at = i * columns_ + j;
  const float value =
      is_exponent(tensor_->dtype) ? to_float(E8m0{std::to_integer<uint8_t>(tensor_->data[at])}) : stored_value(*tensor_, at);
  if (!std::isfinite(value) || value < 0.0f) {
    fail(ErrorCode::invalid_file, "{}: tensor {}: scale [{}, {}]: expected a finite number >= 0, is {}", origin_, tensor_->name, i, j,
         value);
  }
  return value;
}

}  // namespace strata
