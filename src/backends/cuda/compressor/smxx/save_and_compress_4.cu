// The state rows of a step of few tokens, and the entries of ratio 4 that it completes: V4 9.1 and 9.2, "save" and "compress" in one
// kernel. Floor: 16 bytes a channel and token to save, and the seven rows before an entry's last, 8 bytes a channel each. In practice the
// time is that of a launch and of its dependencies. The time of the two separate kernels in a layer of one request:
// docs/kernels/compressor.md.
//
// Design: like compress_4_kernel for few tokens, one CTA per token. The token's own row never comes from the state: it is saved and pooled
// from the projection's output. So are the rows of earlier tokens in its window and this step; other CTAs save them, and need not have done
// so yet.
#include "backends/cuda/compressor/entry.cuh"
#include "backends/cuda/compressor/impls.h"
#include "backends/cuda/compressor/pooling.cuh"
#include "backends/cuda/compressor/smxx/step_token.cuh"
#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/runtime/early_launch.cuh"
#include "contracts/fused_calls.h"

namespace strata::cuda {
namespace {

constexpr int64_t kMaxTokens = 64;

template <int kDim>
constexpr int kThreads = kDim == 512 ? 256 : 32;

// The step's data: a token's values of the previous and of the current window, then its scores of both.
struct StepRows {
  const float* kv_score;
  int64_t kv_score_stride;
  const float* ape;  // ratio rows of both windows
  int64_t ape_stride;
  CacheRows state;

  __device__ __forceinline__ const uint8_t* row(int64_t token) const {
    return reinterpret_cast<const uint8_t*>(kv_score + token * kv_score_stride);
  }
  __device__ __forceinline__ const uint8_t* ape_row(int64_t position) const {
    return reinterpret_cast<const uint8_t*>(ape + position % kRatio4 * ape_stride);
  }
};

template <int kChannels>
__device__ __forceinline__ void add(uint32_t (&scores)[kChannels], const uint32_t (&bias)[kChannels]) {
#pragma unroll
  for (int i = 0; i < kChannels; ++i) scores[i] = __float_as_uint(__uint_as_float(scores[i]) + __uint_as_float(bias[i]));
}

// A thread's channels of what its token saves: of both windows.
template <int kDim, int kChannels>
struct SavedChannels {
  using Vectors = RowVectors<kWindowRows4, kChannels, true>;
  static constexpr int kWindow = 4 * kDim;  // bytes
  uint32_t value[2][kChannels], score[2][kChannels], bias[2][kChannels];

  __device__ __forceinline__ void load(const uint8_t* row) {
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      Vectors::load_vector(row + w * kWindow, value[w]);
      Vectors::load_vector(row + (2 + w) * kWindow, score[w]);
    }
  }
  __device__ __forceinline__ void load_bias(const uint8_t* ape_row) {
#pragma unroll
    for (int w = 0; w < 2; ++w) load_words(ape_row + w * kWindow, bias[w]);
  }
  __device__ __forceinline__ void store(uint8_t* row) const {
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      store_words(row + w * kWindow, value[w]);
      store_words(row + (2 + w) * kWindow, score[w]);
    }
  }
};

template <int kDim>
__global__ void __launch_bounds__(kThreads<kDim>)
    save_and_compress_4_kernel(const __grid_constant__ CompressArgs a, const __grid_constant__ StepRows step) {
  using Finish = Finisher<kDim, kThreads<kDim>>;
  constexpr int kChannels = Finish::kChannels, kToScores = 2 * kDim * int{sizeof(float)};
  using Partial = SavedChannels<kDim, kChannels>;
  __shared__ typename Finish::Shared shared;
  const int64_t token = blockIdx.x;
  const int64_t own = 4 * kChannels * static_cast<int64_t>(threadIdx.x);  // bytes before the thread's channels
  const int back = rows_back();
  const auto column = [&](int row) { return (row < kRatio4 ? 0 : kDim) + kChannels * static_cast<int>(threadIdx.x); };
  // The address of the lane's row; in_state: where it is if the state has it.
  const auto row_of = [&](const StepToken& t, int64_t in_state) {
    return t.from_step >> (kWindowRows4 - 1 - back) & 1 ? step.row(token - back) : state_data(a) + in_state;
  };
  Partial partial;
  StepToken speculated;
  SpeculativeEntry speculative;  // of its entry
  RowAddresses<kWindowRows4> rows;
  start_early([&] {
    speculated = StepToken::look_up(a, token, SpeculativeRead{});
    if (speculated.position < 0) return;
    partial.load_bias(step.ape_row(speculated.position) + own);
    if (speculated.state_slot >= 0 && speculated.state_slot < step.state.num_slots) touch(step.state.row(speculated.state_slot).data + own);
    if (!speculated.completes() || !speculative.find(a, speculated.boundary(), back)) return;
    speculative.token = token;
    const uint8_t* const row = row_of(speculated, speculative.row);
    rows.find(row, column);
    if (threadIdx.x < kWarpSize) touch_entry<kDim>(a, speculated.boundary(), kRatio4, static_cast<int>(threadIdx.x));
    const int first = static_cast<int>(threadIdx.x) / kWindowRows4;
    touch_row_channels(row + (back < kRatio4 ? Partial::kWindow : 0), kToScores, Partial::kWindow, first, kThreads<kDim> / kWindowRows4);
  });
  partial.load(step.row(token) + own);
  const StepToken t = StepToken::look_up(a, token, ReadValue{});
  const int32_t page_now = speculative.page_now(a);
  typename Partial::Vectors vectors;
  Finish finisher;
  if (speculative.token >= 0) {
    vectors.template load<kWindowRows4 - 1>(rows, kToScores);
    finisher.prepare(a, speculative.boundary, kRatio4);
  }
  if (t.state_slot < 0) return;
  if (speculated.position < 0 || (t.position ^ speculated.position) % kRatio4 != 0) partial.load_bias(step.ape_row(t.position) + own);
#pragma unroll
  for (int w = 0; w < 2; ++w) add(partial.score[w], partial.bias[w]);
  partial.store(step.state.row(t.state_slot).data + own);
  if (!t.completes()) return;
  if (!(t.from_step == speculated.from_step && speculative.holds(token, t.boundary(), page_now))) {
    rows.find(row_of(t, state_row(a, t.request, t.position - back)), column);
    vectors.template load<kWindowRows4 - 1>(rows, kToScores);
    finisher.prepare(a, t.boundary(), kRatio4);
  }
#pragma unroll
  for (int i = 0; i < kWindowRows4 - 1; ++i) {
    if ((t.from_step >> i & 1) == 0) continue;
    uint32_t bias[kChannels];  // row i is at position i of its window
    load_words(step.ape_row(i) + 4 * column(i), bias);
    add(vectors.score[i], bias);
  }
#pragma unroll
  for (int j = 0; j < kChannels; ++j) {
    vectors.value[kWindowRows4 - 1][j] = partial.value[1][j];
    vectors.score[kWindowRows4 - 1][j] = partial.score[1][j];
  }
  if (t.position < kRatio4) vectors.drop(kRatio4);  // there is no previous window
  float u[kChannels];
#pragma unroll
  for (int j = 0; j < kChannels; ++j) {
    const Pooled pooled = vectors.pool(j);
    u[j] = __fdividef(pooled.weighted, pooled.sum);
  }
  finisher.store(a, u, shared);
}

template <int kDim>
void launch(const CompressNormRopeStoreParams& p, const ExecutionContext& context) {
  constexpr auto kKernel = save_and_compress_4_kernel<kDim>;
  all_shared_memory(kKernel);  // as save_partial_states
  const StateSave& saves = *p.save_prologue;
  const StepRows step{.kv_score = saves.kv_score.ptr<float>(),
                      .kv_score_stride = saves.kv_score.stride[0],
                      .ape = saves.ape.ptr<float>(),
                      .ape_stride = saves.ape.stride[0],
                      .state = CacheRows(p.state)};
  launch_early("save_and_compress_4", kKernel, {static_cast<uint32_t>(p.positions.shape[0]), kThreads<kDim>}, context, compress_args(p),
               step);
}

Support supports(const CompressNormRopeStoreParams& p, const Capabilities&) {
  if (!p.save_prologue) return Support::no("needs a save_prologue");
  if (p.ratio != kRatio4) return Support::no("needs ratio 4");
  if (p.state.page_stride % 16 != 0) return Support::no("needs a state page_stride that is a multiple of 16 bytes");
  return Support::yes();
}

Support prefers(const CompressNormRopeStoreParams& p, const Capabilities&) {
  return p.positions.shape[0] <= kMaxTokens ? Support::yes()
                                            : Support::no("more than " + std::to_string(kMaxTokens) + " tokens have saves of their own");
}

void run(const CompressNormRopeStoreParams& p, const ExecutionContext& context) {
  if (p.positions.shape[0] == 0 || p.state.num_pages == 0) return;  // without a state nothing is saved
  if (!state_rows_aligned(p.state) || !rows_aligned(p.save_prologue->kv_score)) {
    smxx::save(ops::saves_of(p), context);
    return smxx::compress(p, context);
  }
  p.norm_weight.shape[0] == 512 ? launch<512>(p, context) : launch<128>(p, context);
}

}  // namespace

Implementation<CompressNormRopeStoreParams> save_and_compress_4() {
  return implementation<CompressNormRopeStoreParams>(
      "cuda/smxx_saving", {.supports = supports,
                           .run = run,
                           .prefers = prefers,
                           .fuses = [](const CompressNormRopeStoreParams&, const Capabilities&, std::string_view fusion) {
                             return fusion == "save_prologue";
                           }});
}

}  // namespace strata::cuda
