// The choice behind PrefillMode::automatic: gather bf16 rows and attend to them, or attend to the paged caches.
#pragma once

#include "strata/device.h"
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

namespace ops {

// By the measured rule of the device's backend. Where there is none V4's rows are gathered, MLA's are not.
bool paged_prefill_is_faster(const PrefillWork& work, const Device& device);

}  // namespace ops
}  // namespace strata
