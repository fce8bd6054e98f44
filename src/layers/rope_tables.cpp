#include <numeric>
#include <vector>

#include "core/check.h"
#include "strata/attention.h"

namespace strata {

RopeTables::RopeTables(std::shared_ptr<Device> device, int64_t max_positions) : device_(std::move(device)), max_positions_(max_positions) {
  require(device_ != nullptr, "rotary tables: device is required, is null");
  require(max_positions >= 1 && max_positions <= int64_t{1} << 24, "rotary tables: max_positions must be in [1, 2^24], is {}",
          max_positions);
}

TensorView RopeTables::get(const RopeConfig& config) {
  for (const auto& [known, table] : tables_) {
    if (known == config) return table.view();
  }
  tables_.emplace_back(config, build_rope_table(config, max_positions_, device_));
  return tables_.back().second.view();
}

TensorView RopeTables::numbers() {
  if (!numbers_.view().present()) {
    std::vector<int32_t> values(static_cast<size_t>(max_positions_) + 1);
    std::iota(values.begin(), values.end(), 0);
    Tensor numbers(device_, DType::i32, {max_positions_ + 1});
    device_->copy_from_host(numbers.view().data, values.data(), numbers.allocated_bytes(), Stream{});
    device_->synchronize(Stream{});
    numbers_ = std::move(numbers);
  }
  return numbers_.view();
}

int64_t RopeTables::allocated_bytes() const {
  int64_t bytes = numbers_.allocated_bytes();
  for (const auto& entry : tables_) bytes += entry.second.allocated_bytes();
  return bytes;
}

}  // namespace strata
