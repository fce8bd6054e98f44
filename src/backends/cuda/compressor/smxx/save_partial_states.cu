// The compressor's state of every token: V4 9.2 "save". Floor: 8 * width bytes per token, read and written once; the few rows of ape come
// from L1. 4096 tokens of width 2048 on an H200: 19.9 us, floor 15.6.
#include "backends/cuda/compressor/entry.cuh"
#include "backends/cuda/compressor/impls.h"
#include "backends/cuda/device/store_row.cuh"
#include "backends/cuda/runtime/early_launch.cuh"
#include "backends/cuda/runtime/implementation.h"

namespace strata::cuda {
namespace {

// A CTA writes the row of one token, kWords consecutive columns of both halves per thread. `half` is a multiple of kWords.
template <int kWords>
__global__ void save_partial_states_kernel(const float* kv_score, int64_t kv_score_stride, const float* ape, int64_t ape_stride,
                                           int32_t ratio, int32_t half, const int64_t* positions, const int64_t* state_slots,
                                           CacheRows state) {
  start_early();
  const int64_t t = blockIdx.x;
  const int32_t column = static_cast<int32_t>(threadIdx.x) * kWords;
  if (column >= half) return;
  // The values load while the slot is looked up: few tokens have none.
  const float* const in = kv_score + t * kv_score_stride + column;
  uint32_t kv[kWords], score[kWords], bias[kWords];
  load_words(reinterpret_cast<const uint8_t*>(in), kv);
  load_words(reinterpret_cast<const uint8_t*>(in + half), score);
  const int64_t slot = state_slots[t];
  if (slot < 0) return;
  load_words(reinterpret_cast<const uint8_t*>(ape + positions[t] % ratio * ape_stride + column), bias);
#pragma unroll
  for (int i = 0; i < kWords; ++i) score[i] = __float_as_uint(__uint_as_float(score[i]) + __uint_as_float(bias[i]));
  uint8_t* const out = state.row(slot).data;
  store_words(out + int64_t{column} * 4, kv);
  store_words(out + (int64_t{column} + half) * 4, score);
}

template <int kWords>
void launch(const SavePartialStatesParams& p, const ExecutionContext& context) {
  const int64_t half = p.ape.shape[1];
  static_assert(kMaxRowDim / 2 <= 1024, "a thread for every column");
  const LaunchShape shape{static_cast<uint32_t>(p.kv_score.shape[0]), static_cast<uint32_t>((half / kWords + 31) / 32 * 32)};
  // In a layer its CTAs wait on SMs that no other kernel uses yet: a product's CTAs fit on these SMs too.
  all_shared_memory(save_partial_states_kernel<kWords>);
  launch_early("save_partial_states", save_partial_states_kernel<kWords>, shape, context, p.kv_score.ptr<float>(), p.kv_score.stride[0],
               p.ape.ptr<float>(), p.ape.stride[0], static_cast<int32_t>(p.ape.shape[0]), static_cast<int32_t>(half),
               p.positions.ptr<int64_t>(), p.state_slots.ptr<int64_t>(), CacheRows(p.state));
}

}  // namespace

void smxx::save(const SavePartialStatesParams& p, const ExecutionContext& context) {
  if (p.kv_score.shape[0] == 0) return;
  if (p.ape.shape[1] % 4 == 0) {
    launch<4>(p, context);
  } else {
    launch<1>(p, context);
  }
}

Implementation<SavePartialStatesParams> save_partial_states_smxx() {
  return smxx_implementation<SavePartialStatesParams>({.run = smxx::save});
}

}  // namespace strata::cuda
