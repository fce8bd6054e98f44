// Format of the activations that enter a product with a weight. V4 specification 5.2, MLA specification 3.1.
#pragma once

#include <cstdint>

namespace strata {

// Format of x in a product x W^T. Scales belong to the activations; weights have their own (LinearWeight::scale).
enum class ActivationFormat : uint8_t {
  bf16,       // unquantised bf16
  fp8_ue8m0,  // e4m3 with one power-of-two scale per token and 128 channels: s = 2^ceil_log2(max(amax, 1e-10) / 448)
  fp8_f32,    // e4m3 with one fp32 scale per token and 128 channels: s = max(amax, 1e-10) / 448
};

}  // namespace strata
