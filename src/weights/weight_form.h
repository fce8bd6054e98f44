// Selects how a matrix is stored on a device: FP8 or bf16, row-major or packed for one implementation.
#pragma once

#include <optional>

#include "weights/load_weights.h"

namespace strata {

struct WeightFormChoice {
  bool fp8 = false;
  const WeightPacking* packing = nullptr;  // null: row-major
  size_t packed_bytes = 0;
};

// Selects one of the given forms (shapes only, null data). The best form is the one whose slowest implementation, over a decode and a
// prefill number of tokens, is earliest in the op's list: a form that is fast for one token and uses the reference for many is not fast.
// Among equals: the form that is earlier for few tokens, then packed, then not rounded (a bf16 copy of e4m3 whose scales are not powers of
// two is rounded), then fewer bytes, then bf16, because a packing with as many bytes for either has to dequantise. Throws unsupported
// naming `name` when no implementation takes any form.
WeightFormChoice choose_weight_form(const OpSet& ops, const Device& device, const LinearRequest& request,
                                    const std::optional<LinearWeight>& fp8, const std::optional<LinearWeight>& bf16,
                                    const std::string& name);

}  // namespace strata
