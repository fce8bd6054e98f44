// bfloat16: the public conversions, which are constexpr so that CUDA code can call them, and what else the formats need.
#pragma once

#include "formats/macros.h"
#include "strata/bf16.h"

namespace strata {

// The bf16 nearest to v, as fp32.
STRATA_HOST_DEVICE constexpr float round_to_bf16(float v) { return to_float(to_bf16(v)); }

static_assert(to_bf16(1.0f).bits == 0x3F80);
static_assert(to_bf16(1.00390625f).bits == 0x3F80 && to_bf16(1.01171875f).bits == 0x3F82, "ties to even");

}  // namespace strata
