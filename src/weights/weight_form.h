// How a matrix is kept on a device: FP8 or bf16, row-major or packed for one implementation.
#pragma once

#include <optional>

#include "weights/load_weights.h"

namespace strata {

struct WeightFormChoice {
  bool fp8 = false;
  const WeightPacking* packing = nullptr;  // null: row-major
  size_t packed_bytes = 0;
};

// Chooses among the forms given (shapes only, null data). The best is the one whose slowest implementation, over a decode and a prefill
// number of tokens, is earliest in the op's list: a form that is fast for one token and falls back to the reference for many is not fast.
// Among equals: the one that is earlier for few tokens, then packed, then not rounded (a bf16 copy of codes whose scales are no powers
// of two is), then fewer bytes, then bf16, because a packing that makes as many bytes of either has to dequantise. Throws unsupported
// naming `name` when no implementation takes any of them.
WeightFormChoice choose_weight_form(const OpSet& ops, const Device& device, const LinearRequest& request,
                                    const std::optional<LinearWeight>& fp8, const std::optional<LinearWeight>& bf16,
                                    const std::string& name);

}  // namespace strata
