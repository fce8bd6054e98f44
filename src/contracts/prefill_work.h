// What is known of prefill attention when its way is chosen (ops/sparse_attention/prefill_choice.h).
#pragma once

#include "strata/kv_format.h"

namespace strata {

// The prefill tokens of one step, or of one request of it, as the host knows them.
struct PrefillWork {
  KvFormat format = KvFormat::bf16;  // of the caches
  bool latent = false;               // of MLA, otherwise V4's
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t rows_per_token = 0;  // at most
  int64_t num_chunks = 0;      // calls that the gathered way is cut into
  int64_t gathered_rows = 0;   // of all of them
};

}  // namespace strata
