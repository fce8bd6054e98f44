// "cuda/smxx" and "cuda/generic" of an op whose calls are row attention.
#pragma once

#include "backends/cuda/portable_attention/generic_attention.h"
#include "backends/cuda/portable_attention/row_attention.h"
#include "backends/cuda/runtime/implementation.h"

namespace strata::cuda {

// kCall: converts a call to row attention. The last dimensions of q and out are a head's.
template <class Params, RowAttention (*kCall)(const Params&)>
Implementation<Params> row_attention_smxx() {
  return smxx_implementation<Params>(
      {.supports =
           [](const Params& p, const Capabilities&) {
             return row_attention_supports(p.q.shape[static_cast<size_t>(p.q.rank - 1)], p.out.shape[static_cast<size_t>(p.out.rank - 1)]);
           },
       .workspace_bytes = [](const Params& p, const Capabilities& c) { return row_attention_workspace_bytes(kCall(p), c); },
       .run = [](const Params& p, const ExecutionContext& context) { row_attention_run(kCall(p), context); }});
}
template <class Params, RowAttention (*kCall)(const Params&)>
Implementation<Params> row_attention_generic() {
  return implementation<Params>(
      "cuda/generic", {.run = [](const Params& p, const ExecutionContext& context) { generic_row_attention_run(kCall(p), context); }});
}

}  // namespace strata::cuda
