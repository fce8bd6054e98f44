// grouped_linear whose results are wanted as codes, for implementations that leave bf16 (docs/decisions/0005).
#pragma once

#include <functional>
#include <vector>

#include "strata/op.h"
#include "strata/ops/linear.h"

namespace strata::ops {

// x: bf16 [T, K]; codes: e4m3 [T, K]; scale: f32 [T, K / 128]; all contiguous, K a multiple of 128.
using QuantizeRows = std::function<void(const TensorView& x, ActivationFormat format, const TensorView& codes, const TensorView& scale,
                                        const ExecutionContext& context)>;

// Whether a product makes the codes of this call itself.
using LeavesCodes = std::function<bool(const GroupedLinearParams& p, const Device& device)>;

// Each of `products` with `quantize`, of the same backend, behind it where a call wants codes that it does not make itself; the values are
// in its workspace.
std::vector<Implementation<GroupedLinearParams>> codes_behind(std::vector<Implementation<GroupedLinearParams>> products,
                                                              const QuantizeRows& quantize, const LeavesCodes& leaves_codes = nullptr);

}  // namespace strata::ops
