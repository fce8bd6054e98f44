// Format of the activations that enter a product with a weight. V4 specification 5.2, MLA specification 3.1.
#ifndef STRATA_C_OPS_ACTIVATION_FORMAT_H
#define STRATA_C_OPS_ACTIVATION_FORMAT_H

#include <stdint.h>

// Format of x in a product x W^T. Scales belong to the activations; weights have their own (strata_linear_weight).
typedef int32_t strata_activation_format;
enum {
  STRATA_ACTIVATION_BF16 = 0,       // unquantised bf16
  STRATA_ACTIVATION_FP8_UE8M0 = 1,  // e4m3 with one power-of-two scale per token and 128 channels: s = 2^ceil_log2(max(amax, 1e-10) / 448)
  STRATA_ACTIVATION_FP8_F32 = 2     // e4m3 with one fp32 scale per token and 128 channels: s = max(amax, 1e-10) / 448
};

#endif
