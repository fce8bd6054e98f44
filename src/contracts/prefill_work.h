// What is known of prefill attention when its mode is selected (ops/sparse_attention/prefill_choice.h).
#pragma once

#include "strata/kv_format.h"

namespace strata {

// The prefill tokens of one step, or of one request of it, as the host knows them.
struct PrefillWork {
  KvFormat format = KvFormat::bf16;  // of the caches
  bool latent = false;               // true: MLA; false: V4
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t rows_per_token = 0;  // upper bound
  int64_t num_chunks = 0;      // calls that gathered prefill is divided into
  int64_t gathered_rows = 0;   // of all chunks
};

}  // namespace strata
