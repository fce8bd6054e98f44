#include "checkpoint/stored_value.h"

#include <algorithm>
#include <cstring>

#include "checkpoint/other_quantisers.h"
#include "core/check.h"
#include "formats/bf16.h"
#include "formats/fp16.h"

namespace strata {
namespace {

template <class T>
T load_unaligned(const std::byte* at, int64_t i) {
  T value;
  std::memcpy(&value, at + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

}  // namespace

const StoredTensor& require_tensor(const Checkpoint& checkpoint, int64_t layer, std::string_view suffix,
                                   std::initializer_list<DType> dtypes, const std::vector<int64_t>& shape) {
  const StoredTensor& tensor = checkpoint.require(layer, suffix);
  if (std::find(dtypes.begin(), dtypes.end(), tensor.dtype) == dtypes.end()) {
    std::vector<std::string_view> names;
    for (const StoredDType dtype : dtypes) names.push_back(dtype.name());
    fail(ErrorCode::invalid_file, "{}: tensor {}: dtype: expected {}, is {}{}", checkpoint.directory().string(), tensor.name,
         fmt::join(names, " or "), tensor.dtype.name(), usual_content(tensor.dtype));
  }
  if (tensor.shape != shape) {
    fail(ErrorCode::invalid_file, "{}: tensor {}: shape: expected [{}], is [{}]", checkpoint.directory().string(), tensor.name,
         fmt::join(shape, ", "), fmt::join(tensor.shape, ", "));
  }
  return tensor;
}

float stored_value(const StoredTensor& tensor, int64_t i) {
  if (tensor.dtype == DType::bf16) return to_float(load_unaligned<Bf16>(tensor.data, i));
  if (tensor.dtype == DType::f16) return to_float(load_unaligned<Fp16>(tensor.data, i));
  return load_unaligned<float>(tensor.data, i);
}

}  // namespace strata
