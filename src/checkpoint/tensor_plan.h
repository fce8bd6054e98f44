// The attention tensors of a model: names, dtypes, shapes, and the distribution of random values for them.
#pragma once

#include <string>
#include <vector>

#include "strata/checkpoint.h"

namespace strata {

struct PlannedTensor {
  enum class Content : uint8_t {
    normal,  // normally distributed
    codes,   // e4m3 values of a normally distributed matrix
    scales,  // their block scales
  };
  StoredTensor stored;  // without data
  Content content = Content::normal;
  double mean = 0.0;
  double stddev = 1.0;  // of the values that e4m3 values times scales represent
};

// Every attention tensor of `config`, in file order: wide elements first, so that each begins at a multiple of its size.
std::vector<PlannedTensor> plan_tensors(const ModelConfig& config);

// The tensors that a layer may read where its weights are bf16, without the layer's prefix: "wq_a.weight".
std::vector<std::string> layer_suffixes(const ModelConfig& config, int64_t layer);

}  // namespace strata
