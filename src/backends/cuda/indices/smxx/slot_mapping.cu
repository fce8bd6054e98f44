// Slots of the tokens of a step: a thread per token. Floor: 21 bytes a token and one entry of the block table, negligible compared with the
// launch.
#include "backends/cuda/indices/impls.h"
#include "backends/cuda/indices/smxx/index_rows.cuh"
#include "backends/cuda/runtime/check.h"

namespace strata::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void slot_mapping_kernel(int64_t num_tokens, const int64_t* __restrict__ positions, TokenPages tokens, int32_t page_size,
                                    int32_t ratio, int64_t* __restrict__ slot_mapping) {
  const int64_t t = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (t >= num_tokens) return;
  const int32_t* const pages = tokens.pages(t);
  const int64_t position = positions[t];
  int64_t slot = -1;
  if (tokens.valid(t)) {
    const int64_t entry = position / ratio;
    if (position - entry * ratio == ratio - 1) {
      const int64_t block = entry / page_size;
      slot = int64_t{pages[block]} * page_size + (entry - block * page_size);
    }
  }
  slot_mapping[t] = slot;
}

void run(const SlotMappingParams& p, const ExecutionContext& context) {
  const int64_t num_tokens = p.positions.shape[0];
  if (num_tokens == 0) return;
  slot_mapping_kernel<<<static_cast<uint32_t>((num_tokens + kThreads - 1) / kThreads), kThreads, 0, native(context.stream)>>>(
      num_tokens, p.positions.ptr<int64_t>(), TokenPages(p.token_to_req, p.is_valid_token, p.block_table), p.page_size, p.ratio,
      p.slot_mapping.ptr<int64_t>());
  check_launch("slot_mapping");
}

}  // namespace

Implementation<SlotMappingParams> slot_mapping_smxx() { return smxx_implementation<SlotMappingParams>({.run = run}); }

}  // namespace strata::cuda
