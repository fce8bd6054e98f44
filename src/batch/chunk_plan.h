// Splits the prefill requests of a step into chunks that share one gathered workspace: V4 specification 13.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strata/batch.h"

namespace strata {

// The input of a plan: the step's requests, prefill requests starting at first_prefill.
struct ChunkPlanInput {
  std::span<const int32_t> query_start_loc;  // [R + 1]
  std::span<const int32_t> seq_lens;         // [R]
  int64_t first_prefill = 0;
  BatchLimits limits;
  int32_t ratio = 1;
  int64_t window = 0;
};

// Grows a chunk while count * (longest compressed rows + longest gather_len) fits prefill_workspace_rows. Requests without new tokens are
// in no chunk. `chunks` is cleared and refilled; a capacity of the number of requests is enough.
void plan_chunks(const ChunkPlanInput& input, std::vector<PrefillChunk>& chunks);

// The reference plan: four consecutive requests per chunk, each with the most rows. Attention results are the same; kept to test this.
std::vector<PrefillChunk> plan_chunks_fixed(const ChunkPlanInput& input);

// Window positions of a request: its new tokens, and what the first of them still sees.
int64_t gather_len(int64_t query_len, int64_t seq_len, int64_t window);

}  // namespace strata
