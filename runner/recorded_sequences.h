// Files of recorded sequences, by their tensors' names: layerL.seqS.x, layerL.seqS.num_prefill and what else was recorded of a sequence.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "strata/checkpoint.h"

namespace strata::runner {

// S of every tensor "{prefix}S.x", ascending.
std::vector<int64_t> sequence_numbers(const SafetensorsFile& file, std::string_view prefix);

// An extent that may be any.
inline constexpr int64_t kAny = -1;

// Null: not in the file. Throws invalid_file for a dtype that is none of `dtypes`, or another shape.
const StoredTensor* find_recorded(const SafetensorsFile& file, const std::string& name, std::initializer_list<DType> dtypes,
                                  const std::vector<int64_t>& shape);

// A sequence's hidden states: bf16 [at least one token, hidden]. Null: not in the file. Throws invalid_file for anything else.
const StoredTensor* find_input(const SafetensorsFile& file, const std::string& name, int64_t hidden);

// "{prefix}num_prefill": how many of the tokens were given in one prefill; all of them where it is not recorded.
int64_t recorded_prefill(const SafetensorsFile& file, const std::string& prefix, int64_t num_tokens);

}  // namespace strata::runner
