#include "batch/chunk_plan.h"

#include <algorithm>
#include <limits>

#include "batch/group_spec.h"
#include "batch/request_check.h"
#include "core/check.h"

namespace strata {
namespace {

constexpr int64_t kRequestsPerFixedChunk = 4;

int64_t query_len(const ChunkPlanInput& in, int64_t request) {
  const auto i = static_cast<size_t>(request);
  return int64_t{in.query_start_loc[i + 1]} - in.query_start_loc[i];
}

int64_t longest_compressed(const BatchLimits& limits, int32_t ratio) { return ratio == 1 ? 0 : ceil_div(limits.max_model_len, ratio); }

}  // namespace

int64_t gather_len(int64_t query_len, int64_t seq_len, int64_t window) {
  return query_len + std::min(seq_len - query_len, std::max<int64_t>(window - 1, 0));
}

int64_t prefill_workspace_rows(const BatchLimits& limits, int32_t ratio, int64_t window) {
  require(ratio == 1 || ratio == 4 || ratio == 128, "prefill_workspace_rows: ratio must be 1, 4 or 128, is {}", ratio);
  check_limits(limits);
  require(window >= 0 && window <= std::numeric_limits<int32_t>::max(), "prefill_workspace_rows: window must be in [0, 2^31), is {}",
          window);
  return kRequestsPerFixedChunk * (longest_compressed(limits, ratio) + window + limits.max_num_batched_tokens);
}

void plan_chunks(const ChunkPlanInput& in, std::vector<PrefillChunk>& chunks) {
  chunks.clear();
  const int64_t capacity = prefill_workspace_rows(in.limits, in.ratio, in.window);
  PrefillChunk open;  // num_requests 0: no open chunk
  int64_t longest_gather = 0;
  const auto close = [&] {
    if (open.num_requests > 0) chunks.push_back(open);
    open = {};
    longest_gather = 0;
  };
  for (int64_t r = in.first_prefill; r < static_cast<int64_t>(in.seq_lens.size()); ++r) {
    const int64_t seq_len = in.seq_lens[static_cast<size_t>(r)];
    const int64_t tokens = query_len(in, r);
    if (tokens == 0) {
      close();
      continue;
    }
    const int64_t compressed = in.ratio == 1 ? 0 : seq_len / in.ratio;
    const int64_t gather = gather_len(tokens, seq_len, in.window);
    const int64_t rows = std::max(open.max_compressed, compressed) + std::max(longest_gather, gather);
    if (open.num_requests > 0 && (open.num_requests + 1) * rows > capacity) close();
    if (open.num_requests == 0) {
      open.first_request = r;
      open.first_token = in.query_start_loc[static_cast<size_t>(r)];
    }
    ++open.num_requests;
    open.num_tokens += tokens;
    open.max_compressed = std::max(open.max_compressed, compressed);
    longest_gather = std::max(longest_gather, gather);
    open.max_rows = open.max_compressed + longest_gather;
  }
  close();
}

std::vector<PrefillChunk> plan_chunks_fixed(const ChunkPlanInput& in) {
  std::vector<PrefillChunk> chunks;
  const auto num_requests = static_cast<int64_t>(in.seq_lens.size());
  for (int64_t r = in.first_prefill; r < num_requests; r += kRequestsPerFixedChunk) {
    PrefillChunk chunk;
    chunk.first_request = r;
    chunk.num_requests = std::min(kRequestsPerFixedChunk, num_requests - r);
    chunk.first_token = in.query_start_loc[static_cast<size_t>(r)];
    chunk.num_tokens = in.query_start_loc[static_cast<size_t>(r + chunk.num_requests)] - chunk.first_token;
    chunk.max_compressed = longest_compressed(in.limits, in.ratio);
    chunk.max_rows = prefill_workspace_rows(in.limits, in.ratio, in.window) / kRequestsPerFixedChunk;
    chunks.push_back(chunk);
  }
  return chunks;
}

const std::vector<PrefillChunk>& Batch::prefill_chunks(int32_t ratio) const {
  require(ratio == 1 || ratio == 4 || ratio == 128, "prefill_chunks: ratio must be 1, 4 or 128, is {}", ratio);
  return chunks[ratio == 1 ? 0 : ratio == 4 ? 1 : 2];
}

}  // namespace strata
