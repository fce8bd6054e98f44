#include "strata/attention.h"

namespace strata {

RopeTables::RopeTables(std::shared_ptr<Device> device, int64_t max_positions)
    : device_(std::move(device)), max_positions_(max_positions) {}

const TensorView& RopeTables::get(const RopeConfig& config) {
  for (const auto& [known, table] : tables_) {
    if (known == config) return table.view();
  }
  tables_.emplace_back(config, build_rope_table(config, max_positions_, device_));
  return tables_.back().second.view();
}

size_t RopeTables::allocated_bytes() const {
  size_t bytes = 0;
  for (const auto& entry : tables_) bytes += entry.second.allocated_bytes();
  return bytes;
}

}  // namespace strata
