// Rows of a paged cache to bf16. The rows of all requests are numbered one after the other and dealt to the warps of a grid that fits the
// device, so that the work is even whatever the lengths are, which are known on the device only.
// Floor: the record read and 2 bytes per value written; fp8_ds_mla_v4, 16384 rows: 26 MB, 6.1 us at 4.3 TB/s.
#include <algorithm>

#include "backends/cuda/common/check.h"
#include "backends/cuda/common/implementation.h"
#include "backends/cuda/common/load_row.cuh"
#include "backends/cuda/common/rows.cuh"
#include "backends/cuda/common/store_row.cuh"
#include "backends/cuda/cuda_ops.h"

namespace strata::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kBlocksPerSm = 6;
constexpr int kRowsAtOnce = 2;  // whose loads are in flight together

struct Call {
  PagedCache cache;
  const int32_t* seq_lens;
  const int32_t* gather_lens;
  Rows<const int32_t> block_table;
  int64_t offset;
  Rows<Bf16> out;
  int32_t requests;
};

// Where row `index` of all rows comes from and goes to; request < 0: there is no such row.
struct Place {
  int32_t request = -1, row = 0;  // of the request's rows that are gathered
  int64_t slot = 0;
};

__device__ __forceinline__ Place find_row(const Call& c, int64_t index) {
  Place place;
  int64_t before = 0;
  for (int32_t r = 0; r < c.requests; ++r) {
    const int32_t count = c.gather_lens[r];
    if (index >= before && index < before + count) {
      place.request = r;
      place.row = static_cast<int32_t>(index - before);
    }
    before += count;
  }
  if (place.request < 0) return place;
  const auto position = static_cast<uint32_t>(c.seq_lens[place.request] - c.gather_lens[place.request] + place.row);
  const auto page_size = static_cast<uint32_t>(c.cache.page_size);
  const uint32_t block = position / page_size;
  place.slot = int64_t{c.block_table.row(place.request)[block]} * page_size + (position - block * page_size);
  return place;
}

__device__ __forceinline__ Place broadcast(const Place& place, int lane) {
  return {__shfl_sync(kAllLanes, place.request, lane), __shfl_sync(kAllLanes, place.row, lane), __shfl_sync(kAllLanes, place.slot, lane)};
}

// Formats with blocks have one width, the others any: runs of 8 values that a lane has of a row, or of 512 values of it.
template <KvFormat kFormat>
constexpr int kRunsOfLane = static_cast<int>((fixed_row_dim(kFormat) == 0 ? 512 : fixed_row_dim(kFormat)) + 255) / 256;

template <KvFormat kFormat>
__device__ __forceinline__ void copy_rows(const Call& c, const RowAddress (&from)[kRowsAtOnce], Bf16* const (&to)[kRowsAtOnce], int rows,
                                          int lane) {
  constexpr int kRuns = kRunsOfLane<kFormat>;
  for (int first = 0; first < c.cache.row_dim; first += kRuns * 8 * kWarpSize) {
    StoredRun runs[kRowsAtOnce][kRuns];
#pragma unroll
    for (int j = 0; j < kRowsAtOnce; ++j) {
#pragma unroll
      for (int k = 0; k < kRuns; ++k) {
        const int begin = first + 8 * (k * kWarpSize + lane);
        if (j < rows && begin < c.cache.row_dim) runs[j][k] = load_run<kFormat>(c.cache, from[j].data, from[j].scales, begin);
      }
    }
#pragma unroll
    for (int j = 0; j < kRowsAtOnce; ++j) {
#pragma unroll
      for (int k = 0; k < kRuns; ++k) {
        const int begin = first + 8 * (k * kWarpSize + lane);
        if (j < rows && begin < c.cache.row_dim) *reinterpret_cast<uint4*>(to[j] + begin) = decode_run<kFormat>(runs[j][k]);
      }
    }
  }
}

template <KvFormat kFormat, bool kWide>
__global__ void __launch_bounds__(kThreads) dequantize_and_gather_k_kernel(const __grid_constant__ Call c) {
  const int lane = threadIdx.x % kWarpSize;
  const int64_t warp = blockIdx.x * kWarps + threadIdx.x / kWarpSize, warps = int64_t{gridDim.x} * kWarps;
  for (int64_t first = warp;; first += kWarpSize * warps) {
    // A lane finds one of the warp's next 32 rows. Those that exist come before those that do not.
    const Place mine = find_row(c, first + lane * warps);
    const int count = __popc(__ballot_sync(kAllLanes, mine.request >= 0));
    for (int i = 0; i < count; i += kRowsAtOnce) {
      RowAddress from[kRowsAtOnce];
      Bf16* to[kRowsAtOnce];
#pragma unroll
      for (int j = 0; j < kRowsAtOnce; ++j) {
        const Place place = broadcast(mine, min(i + j, count - 1));
        from[j] = row_address(c.cache, place.slot);
        to[j] = c.out.row(place.request, c.offset + place.row);
      }
      if constexpr (kWide) {
        copy_rows<kFormat>(c, from, to, count - i, lane);
      } else {
        for (int j = 0; j < kRowsAtOnce && i + j < count; ++j) {
          for (int d = lane; d < c.cache.row_dim; d += kWarpSize) to[j][d] = load_element(c.cache, from[j].data, from[j].scales, d);
        }
      }
    }
    if (count < kWarpSize) return;
  }
}

using Kernel = void (*)(const Call);

Kernel wide_kernel(KvFormat format) {
  switch (format) {
    case KvFormat::fp8_tensor:
      return dequantize_and_gather_k_kernel<KvFormat::fp8_tensor, true>;
    case KvFormat::fp8_ds_mla_v4:
      return dequantize_and_gather_k_kernel<KvFormat::fp8_ds_mla_v4, true>;
    case KvFormat::fp8_ds_mla:
      return dequantize_and_gather_k_kernel<KvFormat::fp8_ds_mla, true>;
    case KvFormat::indexer_fp8:
      return dequantize_and_gather_k_kernel<KvFormat::indexer_fp8, true>;
    case KvFormat::indexer_mxfp4:
      return dequantize_and_gather_k_kernel<KvFormat::indexer_mxfp4, true>;
    default:
      return dequantize_and_gather_k_kernel<KvFormat::bf16, true>;
  }
}

void run(const DequantizeAndGatherKParams& p, const ExecutionContext& context) {
  const int64_t requests = p.seq_lens.shape[0], most = requests * (p.out.shape[1] - p.offset);
  if (most == 0) return;
  const TensorView& lens = p.gather_lens.present() ? p.gather_lens : p.seq_lens;
  const Call c{p.cache,  p.seq_lens.ptr<int32_t>(), lens.ptr<int32_t>(),           Rows<const int32_t>(p.block_table),
               p.offset, Rows<Bf16>(p.out),         static_cast<int32_t>(requests)};
  const bool wide = runs_aligned(p.cache) && rows_aligned(p.out);
  const auto kernel = wide ? wide_kernel(p.cache.format) : dequantize_and_gather_k_kernel<KvFormat::bf16, false>;
  const int64_t blocks = std::min<int64_t>(ceil_div(most, kWarps), int64_t{capabilities(context.device).num_sms} * kBlocksPerSm);
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, native(context.stream)>>>(c);
  check_launch("dequantize_and_gather_k_kernel");
}

}  // namespace

std::vector<Implementation<DequantizeAndGatherKParams>> dequantize_and_gather_k() {
  return smxx_implementation<DequantizeAndGatherKParams>({.run = run});
}

}  // namespace strata::cuda
