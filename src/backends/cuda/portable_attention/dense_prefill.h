// Multi-head attention over keys and values in memory: the arguments of its kernels.
#pragma once

#include "backends/cuda/device/divisor.h"
#include "strata/dtype.h"
#include "strata/op.h"
#include "strata/ops/dense_attention.h"

namespace strata::cuda {

// Elements between tokens and between heads.
struct HeadStrides {
  int64_t token = 0, head = 0;
};

struct DensePrefill {
  const Bf16 *q = nullptr, *k_nope = nullptr, *k_pe = nullptr, *v = nullptr;
  Bf16* out_bf16 = nullptr;  // one of the two is null
  float* out_f32 = nullptr;
  float* lse = nullptr;  // null: not written
  HeadStrides q_stride, k_nope_stride, v_stride, out_stride, lse_stride;
  int64_t k_pe_stride = 0;
  bool is_aligned = false;                   // all rows of keys and values are 16-byte aligned
  bool out_aligned = false;                  // rows of out are 16-byte aligned
  const int32_t* query_start_loc = nullptr;  // [num_requests + 1]; null: one request with all rows
  const int32_t* key_start_loc = nullptr;
  int32_t num_requests = 1, num_queries = 0, num_keys = 0, num_heads = 0;
  int32_t nope_dim = 0, rotary_dim = 0, value_dim = 0;
  int64_t max_query_len = 0;
  float softmax_scale = 0;
  bool causal = true;
};

// The queries and keys of a request.
struct RequestRange {
  int32_t first_query = 0, num_queries = 0, first_key = 0, num_keys = 0;
};

#ifdef __CUDACC__
__device__ __forceinline__ RequestRange request_range(const DensePrefill& a, int32_t request) {
  if (a.query_start_loc == nullptr) return {0, a.num_queries, 0, a.num_keys};
  const int32_t *q = a.query_start_loc, *k = a.key_start_loc;
  return {q[request] - q[0], q[request + 1] - q[request], k[request] - k[0], k[request + 1] - k[request]};
}
#endif

DensePrefill dense_prefill_of(const DenseAttnPrefillParams& p);

void dense_prefill_run(const DensePrefill& a, const ExecutionContext& context);          // P + R <= 192, V <= 128, multiples of 8
void generic_dense_prefill_run(const DensePrefill& a, const ExecutionContext& context);  // any shape

}  // namespace strata::cuda
