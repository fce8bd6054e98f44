// PrefillMode::automatic on CUDA: the times of both modes, interpolated between measured times
// (docs/decisions/0003-one-paged-attention-op.md).
#include <algorithm>
#include <iterator>

#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/runtime/cuda_device.h"
#include "backends/cuda/sparse_attn_prefill/prefill_times.h"

namespace strata::cuda {
namespace {

// Time of each further chunk of requests, in microseconds: the launches of two gathers, the indices and an attention.
constexpr double kChunkTime = 6.0;

PrefillTime interpolate(const PrefillTime& a, const PrefillTime& b, double way) {
  const auto between = [way](double x, double y) { return x + way * (y - x); };
  return {between(a.paged, b.paged), between(a.gathered, b.gathered), between(a.rows, b.rows)};
}

// Interpolates between the measured numbers of tokens, and extrapolates from the last two. Fewer tokens take as long as the smallest
// number.
PrefillTime time_of(const PrefillTimes& times, int64_t tokens) {
  const int64_t* const last = std::end(kTimedTokens) - 1;
  const int64_t* const next = std::clamp(std::lower_bound(std::begin(kTimedTokens), last, tokens), std::begin(kTimedTokens) + 1, last);
  const auto i = static_cast<size_t>(next - std::begin(kTimedTokens));
  const auto from = static_cast<double>(next[-1]), way = (static_cast<double>(tokens) - from) / (static_cast<double>(*next) - from);
  return interpolate(times.at[i - 1], times.at[i], std::max(way, 0.0));
}

// The same over rows, for the smallest measured number of heads that is at least this: kernels pad heads.
PrefillTime time_of(const PrefillWork& work) {
  const PrefillTimes *begin = std::begin(kPrefillTimes), *end = std::end(kPrefillTimes);
  const int64_t heads = std::find_if(begin, end - 1, [&](const PrefillTimes& t) { return t.heads >= work.num_heads; })->heads;
  begin = std::find_if(begin, end, [&](const PrefillTimes& t) { return t.heads == heads; });
  end = std::find_if(begin, end, [&](const PrefillTimes& t) { return t.heads != heads; });
  const PrefillTimes* const next =
      std::find_if(begin + 1, end - 1, [&](const PrefillTimes& t) { return t.rows_per_token >= work.rows_per_token; });
  const auto from = static_cast<double>(next[-1].rows_per_token);
  const double way = (static_cast<double>(work.rows_per_token) - from) / (static_cast<double>(next->rows_per_token) - from);
  return interpolate(time_of(next[-1], work.num_tokens), time_of(*next, work.num_tokens), std::max(way, 0.0));
}

// MLA's rows on Hopper, for up to `heads` heads: microseconds per token and 2048 rows, paged and gathered.
struct MlaTimes {
  int64_t heads;
  double fp8_ds_mla, fp8_tensor, gathered;
};
constexpr MlaTimes kMlaTimes[] = {
    {16, 0.353, 0.635, 0.386}, {32, 0.418, 0.637, 0.391}, {64, 0.603, 0.650, 0.418}, {128, 1.203, 1.264, 0.825}};
constexpr double kMlaGather = 6.0, kMlaGatheredRow = 6.4e-4;  // per launch, and per row

// Rows that are already bf16 are best left in the pages.
bool paged_mla_is_faster(const PrefillWork& work) {
  if (work.format != KvFormat::fp8_ds_mla && work.format != KvFormat::fp8_tensor) return true;
  const MlaTimes& times =
      *std::find_if(std::begin(kMlaTimes), std::end(kMlaTimes) - 1, [&](const MlaTimes& t) { return t.heads >= work.num_heads; });
  const double paged = work.format == KvFormat::fp8_ds_mla ? times.fp8_ds_mla : times.fp8_tensor;
  const double tokens = static_cast<double>(work.num_tokens * work.rows_per_token) / 2048;
  return tokens * (paged - times.gathered) < kMlaGather + static_cast<double>(work.gathered_rows) * kMlaGatheredRow;
}

}  // namespace

bool paged_prefill_is_faster(const PrefillWork& work, const Device& device) {
  if (work.latent) return !capabilities(device).sm90() || paged_mla_is_faster(work);
  // On other GPUs both modes use the portable kernel, whose times have not been compared.
  if (!capabilities(device).sm90() || work.format != KvFormat::fp8_ds_mla_v4) return false;
  const PrefillTime time = time_of(work);
  const double more_rows = static_cast<double>(work.gathered_rows) - time.rows, more_chunks = static_cast<double>(work.num_chunks - 1);
  return time.paged < time.gathered + more_chunks * kChunkTime + more_rows * kGatheredRowTime;
}

}  // namespace strata::cuda
