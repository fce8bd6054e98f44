// A weight of 0 does not stop a NaN of a value that a query does not see but whose tile it shares. So results that are NaN are computed
// once more, from what their query sees.
#pragma once

#include "backends/cuda/portable_attention/warp_attention.cuh"

namespace strata::cuda {

// Not inlined, because hardly any call needs it. Static to the including file: a call of unknown registers would prevent wgmma from
// continuing across it.
static __device__ __noinline__ void prefill_query_again(const DensePrefill& a, const RequestRange& r, int64_t token, int64_t head) {
  prefill_query(a, r, token, head);
}

}  // namespace strata::cuda
