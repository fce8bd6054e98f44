// The benchmark shapes of sparse attention.
#pragma once

#include "testkit/harness/typed_case.h"

namespace strata::testkit {

// Decode of a batch, and prefill straight from the caches.
void add_decode_bench(CaseAdder<SparseAttnDecodeParams>& cases);
// Prefill from gathered rows.
void add_prefill_bench(CaseAdder<SparseAttnPrefillParams>& cases);

}  // namespace strata::testkit
