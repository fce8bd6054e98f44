// Linear layers: y = x W^T. V4 specification 5.1, 5.2 and 15 (step 3, grouped); MLA specification 3.1.
#ifndef STRATA_C_OPS_LINEAR_H
#define STRATA_C_OPS_LINEAR_H

#include "strata/c/op.h"
#include "strata/c/ops/activation_format.h"

#if defined(__cplusplus)
extern "C" {
#endif

// A weight matrix as a layer stores it. Exactly one of `weight` (row-major) and `packed` is present.
typedef struct strata_linear_weight {
  size_t struct_size;           // sizeof(strata_linear_weight)
  int64_t n;                    // output features per group
  int64_t k;                    // input features per group
  int64_t groups;               // grouped linear: rows [g*n, (g+1)*n) of `weight` belong to group g
  strata_tensor_view weight;    // bf16 or e4m3 [groups*n, k], row-major contiguous; absent when packed
  strata_tensor_view scale;     // e4m3 only: f32 [ceil(groups*n / block_n), ceil(k / block_k)], factors of the values
  int64_t block_n;              // rows of `weight` per scale
  int64_t block_k;              // columns of `weight` per scale
  int32_t power_of_two_scales;  // flag: e4m3 only: all scales are powers of two (F8_E8M0), so values times scales are exact in bf16
  int32_t from_e4m3;          // flag: bf16 only: dequantised e4m3, rounded unless scales are powers of two; the matrix may be kept as e4m3
  strata_tensor_view packed;  // u8 [bytes], in the private layout of the implementation `packing`; absent when not packed
  const char* packing;        // name of the implementation that packed it; null when not packed
  // Products of this weight run concurrently with other work, so they are planned for a part of the device. This fixes the order of sums:
  // the same weight gives the same bits, whether or not other work runs.
  int32_t shares_device;  // flag
  const char* name;       // for messages: "wq_a + wkv". Never changes a result; may be null
} strata_linear_weight;
// The defaults: groups 1, block_n 128, block_k 128; otherwise zeros.
static inline strata_linear_weight strata_linear_weight_default(void) {
  strata_linear_weight weight;
  memset(&weight, 0, sizeof weight);
  weight.struct_size = sizeof weight;
  weight.groups = 1;
  weight.block_n = 128;
  weight.block_k = 128;
  return weight;
}

// linear: y[t, o] = sum_i x[t, i] * W[o, i], accumulated in fp32, rounded once when y is bf16.
// With an fp8 activation format: y[t, o] = sum_g sx[t, g] * sw[o, g] * sum_{i in g} xq[t, i] * wq[o, i] (V4 5.2). The op quantises x. An x
// that several products read may be given already quantised, with its scales.
// Errors: STRATA_INVALID_ARGUMENT for shapes, dtypes, devices, strides, addresses; STRATA_UNSUPPORTED when no implementation takes the
// weight's layout.
typedef struct strata_linear_params {
  size_t struct_size;                  // sizeof(strata_linear_params)
  strata_tensor_view x;                // bf16 [T, K]; or e4m3 [T, K] with x_scale. Rows contiguous, any row stride
  strata_tensor_view x_scale;          // e4m3 x only: f32 [T, ceil(K / 128)], rows contiguous, any row stride; fp8_ue8m0: powers of two
  const strata_linear_weight* weight;  // groups == 1
  strata_tensor_view y;                // bf16 or f32 [T, N], rows contiguous, any row stride
  // bf16 x: the op quantises x in this format, bf16: not at all. e4m3 x: its fp8 format; bf16 is refused.
  strata_activation_format activation;
} strata_linear_params;
// A struct of zeros but struct_size.
static inline strata_linear_params strata_linear_params_default(void) {
  strata_linear_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  return params;
}
// Runs linear.
STRATA_API strata_status strata_linear(strata_device device, const strata_linear_params* params,
                                       const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_linear needs.
STRATA_API strata_status strata_linear_workspace_bytes(strata_device device, const strata_linear_params* params,
                                                       int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_linear selects.
STRATA_API strata_status strata_linear_implementation(strata_device device, const strata_linear_params* params,
                                                      const char** name) STRATA_NOEXCEPT;

// grouped_linear: y[t, g, o] = sum_i x[t, g, i] * W[g*n + o, i]. The einsum "bhr,hdr->bhd" of the output path (V4 15, step 3). Errors: as
// of linear.
typedef struct strata_grouped_linear_params {
  size_t struct_size;                  // sizeof(strata_grouped_linear_params)
  strata_tensor_view x;                // bf16 [T, G, K]; or e4m3 [T, G, K] with x_scale; last dimension contiguous
  strata_tensor_view x_scale;          // e4m3 x only: f32 [T, G, K/128]; absent for bf16 x
  const strata_linear_weight* weight;  // groups == G
  // bf16 [T, G, N], last dimension contiguous. Or e4m3 [T, G, N], contiguous, N a multiple of 128: the bf16 result, quantised as linear
  // quantises x.
  strata_tensor_view y;
  strata_tensor_view y_scale;         // e4m3 y only: f32 [T, G, N / 128], contiguous
  strata_activation_format y_format;  // e4m3 y only: the fp8 format
} strata_grouped_linear_params;
// A struct of zeros but struct_size.
static inline strata_grouped_linear_params strata_grouped_linear_params_default(void) {
  strata_grouped_linear_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  return params;
}
// Runs grouped_linear.
STRATA_API strata_status strata_grouped_linear(strata_device device, const strata_grouped_linear_params* params,
                                               const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_grouped_linear needs.
STRATA_API strata_status strata_grouped_linear_workspace_bytes(strata_device device, const strata_grouped_linear_params* params,
                                                               int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_grouped_linear selects.
STRATA_API strata_status strata_grouped_linear_implementation(strata_device device, const strata_grouped_linear_params* params,
                                                              const char** name) STRATA_NOEXCEPT;

// Weight packings: load-time conversions of a row-major weight into an implementation's private layout. A packing has the name of the
// implementation of linear or grouped_linear that reads the layout. The packed weight has the n, k, groups, shares_device and name of the
// row-major one; `packed` and `packing` take the place of `weight` and `scale`.
// Errors: STRATA_INVALID_ARGUMENT for an unknown packing, and for a weight that breaks the contract of strata_linear_weight or is packed.

// The number of packings of this build.
STRATA_API int64_t strata_weight_packing_count(void) STRATA_NOEXCEPT;
// The name of packing `index`, "cpu/amx"; null for index < 0 and from strata_weight_packing_count() on. Valid as long as the library is
// loaded.
STRATA_API const char* strata_weight_packing_name(int64_t index) STRATA_NOEXCEPT;
// Bytes of the packed weight; 0 when this packing does not take the weight on this device. Data may be null.
STRATA_API strata_status strata_weight_packed_bytes(const char* packing, strata_device device, const strata_linear_weight* weight,
                                                    int64_t* bytes) STRATA_NOEXCEPT;
// Packs the weight, which is on the device and complete, into device memory of `bytes` bytes, aligned to 256. The work is done on return;
// `weight` and `scale` are then no longer needed. Errors also: STRATA_INVALID_ARGUMENT for fewer bytes than strata_weight_packed_bytes says
// and for null or unaligned memory; STRATA_UNSUPPORTED when this packing does not take the weight.
STRATA_API strata_status strata_weight_pack(const char* packing, strata_device device, const strata_linear_weight* weight, void* packed,
                                            int64_t bytes) STRATA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif
