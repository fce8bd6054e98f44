#include <cmath>

#include "checkpoint/stored_value.h"
#include "core/check.h"
#include "strata/checkpoint.h"

namespace strata {

float Checkpoint::kv_scale(int64_t layer) const {
  const StoredTensor* scale = nullptr;
  // compressed-tensors, modelopt, vLLM, and older exporters.
  for (const char* suffix : {"k_scale", "k_proj.k_scale", "attn.k_scale", "kv_scale"}) {
    const StoredTensor* found = find(layer, suffix);
    if (found != nullptr && scale != nullptr) {
      fail(ErrorCode::invalid_file, "{}: tensor {}: expected one scale of the cache, {} is there too", directory().string(), scale->name,
           found->name);
    }
    if (found != nullptr) scale = found;
  }
  if (scale == nullptr) return 1.0f;
  const bool number = scale->dtype == StoredDType::f32 || scale->dtype == StoredDType::bf16 || scale->dtype == StoredDType::f16;
  if (!number || scale->numel() != 1) {
    fail(ErrorCode::invalid_file, "{}: tensor {}: expected one F32, BF16 or F16 number, is {}[{}]", directory().string(), scale->name,
         scale->dtype.name(), fmt::join(scale->shape, ", "));
  }
  const float value = stored_value(*scale, 0);
  if (!std::isfinite(value) || value <= 0.0f) {
    fail(ErrorCode::invalid_file, "{}: tensor {}: expected a finite number > 0, is {}", directory().string(), scale->name, value);
  }
  return value;
}

}  // namespace strata
