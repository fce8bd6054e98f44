// The arguments of the two query kernels.
#pragma once

#include "backends/cuda/device/pack.cuh"
#include "strata/op.h"
#include "strata/ops/indexer.h"

namespace strata::cuda {

struct IndexerQueryArgs {
  const uint8_t* q;
  int64_t token_stride, head_stride;  // bytes
  int32_t heads, dim;
  const uint8_t* weights;
  int64_t weights_stride;  // bytes
  bool bf16_weights;
  const int64_t* positions;
  const float* cos_sin;  // null: no rotation
  int64_t cos_sin_stride, table_rows;
  int32_t rotary, first_rotary;
  RopePairing pairing;
  bool hadamard;
  float softmax_scale, head_scale, amax_floor;
  uint8_t* q_out;
  uint8_t* q_scale_out;
  float* weights_out;

  __device__ float weight(int64_t t, int32_t head) const {
    const uint8_t* const row = weights + t * weights_stride;
    return bf16_weights ? to_float(reinterpret_cast<const Bf16*>(row)[head]) : reinterpret_cast<const float*>(row)[head];
  }
  // Factors that are not powers of two: multiplied in the order of the specification, every product rounded.
  __device__ float scaled_weight(float weight, float q_scale) const {
    return __fmul_rn(__fmul_rn(__fmul_rn(weight, q_scale), softmax_scale), head_scale);
  }
};

enum class QueryFormat { e4m3, mxfp4, bf16 };

IndexerQueryArgs indexer_query_args(const IndexerQueryParams& p);

// Heads of 128 values of which one half, or nothing, is rotated, everything 16-byte aligned, amax_floor >= 2^-100: the shapes of the
// models.
bool suits_indexer_query_128(const IndexerQueryParams& p);
void launch_indexer_query_128(const IndexerQueryArgs& args, QueryFormat format, int64_t num_tokens, const ExecutionContext& context);

}  // namespace strata::cuda
