// Compressed entries from the state rows of their windows: V4 9.1 and 9.2 "compress". Floor: the state rows, 8 * d bytes each: 32 KB an
// entry for ratio 4 and d = 512, 512 KB for ratio 128; the entry itself is some 600 bytes. 64 entries of ratio 4 on an H200: 2.3 us; d =
// 128, a prompt of 4096 tokens: 3.7 us, reading as much 3.0.
//
// Ratio 4: a CTA per entry, two channels per thread (four for an indexer's entry), all row loads in flight at once.
// Ratio 128: compress_128.cuh. Many tokens on Hopper, d = 512: compressor/sm90.
#include "backends/cuda/compressor/entry.cuh"
#include "backends/cuda/compressor/impls.h"
#include "backends/cuda/compressor/pooling.cuh"
#include "backends/cuda/compressor/smxx/compress_128.cuh"
#include "backends/cuda/runtime/early_launch.cuh"
#include "backends/cuda/runtime/implementation.h"

namespace strata::cuda {
namespace {

template <int kDim>
constexpr int kThreads4 = kDim == 512 ? 256 : 32;
template <int kDim, bool kFew>
constexpr int kBlocks4 = kDim == 128 ? 16
                         : kFew      ? 2
                                     : 4;  // per SM

// kFew: for d = 512, the rows are prefetched early; the speculative entry is pooled before it is confirmed.
template <int kDim, bool kAligned, bool kFew>
__global__ void __launch_bounds__(kThreads4<kDim>, kBlocks4<kDim, kFew>) compress_4_kernel(const __grid_constant__ CompressArgs a) {
  constexpr int32_t kRatio = 4, kRows = 2 * kRatio;
  using Finish = Finisher<kDim, kThreads4<kDim>>;
  constexpr int kChannels = Finish::kChannels;
  using Vectors = RowVectors<kRows, kChannels, kAligned>;
  __shared__ typename Finish::Shared shared;
  const int64_t back = kRows - 1 - static_cast<int>(threadIdx.x % kRows);
  // The previous window is the first half of the columns, the current one the second.
  const auto column = [&](int row) { return (row < kRatio ? 0 : kDim) + kChannels * static_cast<int>(threadIdx.x); };
  // CTAs of a prompt's wider rows fill the device: the next kernel's CTAs would have no time for speculative loads.
  constexpr bool kSpeculates = kFew || kDim == 128;
  SpeculativeEntry speculative;
  RowAddresses<kRows> rows;
  start_early([&] {
    if constexpr (!kSpeculates) return;
    speculative = speculate_first<kRatio>(a, blockIdx.x, gridDim.x, back, [&](const Boundary& boundary, int64_t row) {
      if (threadIdx.x < kWarpSize) touch_entry<kDim>(a, boundary, kRatio, static_cast<int>(threadIdx.x));
      const int64_t window = back < kRatio ? 4 * kDim : 0;
      touch_row_channels(state_data(a) + row + window, 2 * kDim * 4, kDim * 4, static_cast<int>(threadIdx.x) / kRows,
                         kThreads4<kDim> / kRows);
    });
    rows.find(state_data(a) + speculative.row, column);
  });
  Vectors vectors;
  Finish finisher;
  float u[kChannels];
  const auto load = [&] { vectors.load(rows, 2 * kDim * int{sizeof(float)}); };
  const auto pool = [&](int64_t position) {
    if (position < kRatio) vectors.drop(kRatio);  // there is no previous window
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      const Pooled pooled = vectors.pool(j);
      u[j] = __fdividef(pooled.weighted, pooled.sum);
    }
  };
  GroupTokens<kRatio> tokens(a, blockIdx.x, gridDim.x);
  int32_t page = 0;
  const auto issue_loads = [&] {
    tokens.issue_loads();
    if (kSpeculates) page = speculative.page_now(a);
  };
  const bool speculates = kSpeculates && speculative.token >= 0;
  if (!kFew) issue_loads();  // after a prompt's rows it would arrive late
  if (speculates) load();
  if (kFew) issue_loads();
  if (speculates) {
    finisher.prepare(a, speculative.boundary, kRatio);
    if (kFew) pool(speculative.boundary.position);  // before it is confirmed
  }
  tokens.for_each([&](int64_t token, const Boundary& boundary) {
    const bool loaded = kSpeculates && speculative.holds(token, boundary, page);
    if (!loaded) {
      const int64_t row = state_row(a, boundary.request, boundary.position - back);
      finisher.prepare(a, boundary, kRatio);
      rows.find(state_data(a) + row, column);
      load();
    }
    if (!kFew || !loaded) pool(boundary.position);
    speculative.token = -1;
    finisher.store(a, u, shared);
    return true;
  });
}

template <int kDim, bool kAligned>
void launch_4(const CompressArgs& a, const ExecutionContext& context) {
  // Rows of few tokens come from earlier steps and are prefetched early; so are an indexer's rows, a quarter as wide. A prompt's other rows
  // come from the preceding kernel, and do not fit in L2 together with that kernel's data.
  constexpr int64_t kEntryBytes = 8 * kDim * 8, kFewBytes = 8 << 20;
  const bool few = a.num_tokens * kEntryBytes <= kFewBytes;
  const int64_t blocks = entry_groups(a.num_tokens, int64_t{kDim == 512 ? 4 : 8} * capabilities(context.device).num_sms);
  const auto kernel = few ? compress_4_kernel<kDim, kAligned, true> : compress_4_kernel<kDim, kAligned, false>;
  if (few) all_shared_memory(kernel);  // as save_partial_states
  launch_early("compress_norm_rope_store", kernel, {static_cast<uint32_t>(blocks), kThreads4<kDim>}, context, a);
}

template <int kDim, bool kAligned>
void launch_128(const CompressArgs& a, const ExecutionContext& context) {
  // kCluster of the code that runs: a later device may run translated code for sm_80, which has no clusters.
  const int cluster_size = kDim == 512 && launches_early(context.device) ? kDim / kSlice : 1;
  // Fewer CTAs than would fit: a cluster needs free slots within one GPC, and must not wait for another cluster to end.
  const int64_t most = capabilities(context.device).num_sms / cluster_size;
  const LaunchShape shape{.grid = static_cast<uint32_t>(entry_groups(a.num_tokens, most) * cluster_size),
                          .block = kThreads128,
                          .cluster = static_cast<uint32_t>(cluster_size)};
  launch_early("compress_norm_rope_store", compress_128_kernel<kDim, kAligned>, shape, context, a);
}

template <int kDim, bool kAligned>
void launch(const CompressNormRopeStoreParams& p, const ExecutionContext& context) {
  p.ratio == 4 ? launch_4<kDim, kAligned>(compress_args(p), context) : launch_128<kDim, kAligned>(compress_args(p), context);
}

}  // namespace

void smxx::compress(const CompressNormRopeStoreParams& p, const ExecutionContext& context) {
  if (p.positions.shape[0] == 0 || p.state.num_pages == 0) return;  // without a state no entry is complete
  const bool aligned = state_rows_aligned(p.state);
  if (p.norm_weight.shape[0] == 512) {
    aligned ? launch<512, true>(p, context) : launch<512, false>(p, context);
  } else {
    aligned ? launch<128, true>(p, context) : launch<128, false>(p, context);
  }
}

Implementation<CompressNormRopeStoreParams> compress_smxx() {
  return smxx_implementation<CompressNormRopeStoreParams>({.run = smxx::compress});
}

}  // namespace strata::cuda
