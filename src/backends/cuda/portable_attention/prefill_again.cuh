// A weight of 0 does not stop a NaN of a value that a query does not see but whose tile it shares: what is NaN is computed once more, from
// what its query sees.
#pragma once

#include "backends/cuda/portable_attention/warp_attention.cuh"

namespace strata::cuda {

// Not inlined, as hardly any call needs it; of the file that includes this, for a call of unknown registers would keep wgmma from running
// on.
static __device__ __noinline__ void prefill_query_again(const DensePrefill& a, const RequestRange& r, int64_t token, int64_t head) {
  prefill_query(a, r, token, head);
}

}  // namespace strata::cuda
