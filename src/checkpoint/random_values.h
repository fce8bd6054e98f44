// Random tensors: the same values for a seed and name, for any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "checkpoint/tensor_plan.h"

namespace strata {

class RandomTensor {
 public:
  RandomTensor(const PlannedTensor& plan, bool power_of_two_scales, uint64_t seed);

  // Elements [begin, begin + count) at out, in the tensor's dtype. begin is a multiple of kChunk.
  static constexpr int64_t kChunk = 1 << 14;
  void generate(int64_t begin, int64_t count, void* out) const;

 private:
  void fill_scales(int64_t begin, int64_t count, void* out) const;
  template <class T>
  void fill_values(int64_t begin, int64_t count, T* out) const;
  template <class T>
  void fill_table();
  float value(size_t quantile) const;

  const PlannedTensor& plan_;
  bool power_of_two_scales_;
  uint64_t key_;
  double base_scale_ = 1.0;       // of e4m3 values and scales
  std::vector<std::byte> table_;  // the values of every quantile in the tensor's dtype; empty for small tensors
};

}  // namespace strata
