// Required tensors of a checkpoint, and their values.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "strata/checkpoint.h"

namespace strata {

// A tensor that must have this shape and one of these dtypes. Throws invalid_file naming tensor, expected and actual value.
const StoredTensor& require_tensor(const Checkpoint& checkpoint, int64_t layer, std::string_view suffix,
                                   std::initializer_list<DType> dtypes, const std::vector<int64_t>& shape);

// Element i of BF16, F16 or F32 data at any alignment.
float stored_value(const StoredTensor& tensor, int64_t i);

}  // namespace strata
