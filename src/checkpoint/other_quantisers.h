// Matrices written by another quantiser: refused by what they are, not by what is missing or misshapen.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "strata/checkpoint.h"

namespace strata {

// Throws invalid_file when tensors next to matrix `name` (without ".weight") show that the matrix is stored, or its activations are
// quantised, in a way that the loader does not support.
void refuse_other_quantisers(const Checkpoint& checkpoint, int64_t layer, const std::string& name);

// Whether a tensor's name is one of those.
bool is_of_other_quantiser(std::string_view name);

// What weights of an unsupported dtype usually are, as the end of a message; empty when the dtype says everything.
std::string_view usual_content(StoredDType dtype);

}  // namespace strata
