// Reads rows of a paged cache as bf16. The rows of all requests are numbered consecutively and assigned to the warps of a grid that fits
// the device, so that work is even for any lengths, which only the device knows.
// Floor: the record read and 2 bytes per value written; fp8_ds_mla_v4, 16384 rows: 26 MB, 6.1 us at 4.3 TB/s. Reached on an H200: 9.7 us
// (63%); 131072 rows: 58.6 us (84%).
#include <algorithm>

#include "backends/cuda/device/load_row.cuh"
#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/device/warp.cuh"
#include "backends/cuda/kv_insert/impls.h"
#include "backends/cuda/runtime/early_launch.cuh"
#include "core/ceil_div.h"

namespace strata::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kBlocksPerSm = 6;

struct Call {
  PagedCache cache;
  const int32_t* seq_lens;
  const int32_t* gather_lens;
  Rows<const int32_t> block_table;
  int64_t offset;
  Rows<Bf16> out;
  int32_t requests;
};

// Source and destination of one row. to null: no such row.
struct Copy {
  const uint8_t* data = nullptr;
  const uint8_t* scales = nullptr;
  Bf16* to = nullptr;
};

// Row `index` of the rows of all requests.
__device__ __forceinline__ Copy find_row(const Call& c, int64_t index) {
  int32_t request = -1, row = 0, count = 0;
  int64_t before = 0;
  for (int32_t r = 0; r < c.requests; ++r) {
    const int32_t n = c.gather_lens[r];
    if (index >= before && index < before + n) {
      request = r;
      row = static_cast<int32_t>(index - before);
      count = n;
    }
    before += n;
  }
  if (request < 0) return {};
  const auto position = static_cast<uint32_t>(c.seq_lens[request] - count + row), page_size = static_cast<uint32_t>(c.cache.page_size);
  const uint32_t block = position / page_size, in_page = position - block * page_size;
  const int64_t data_bytes = row_data_bytes(c.cache.format, c.cache.row_dim);
  const uint8_t* const page = static_cast<const uint8_t*>(c.cache.data) + c.block_table.row(request)[block] * c.cache.page_stride;
  return {page + in_page * data_bytes, page + page_size * data_bytes + in_page * row_scale_bytes(c.cache.format),
          c.out.row(request, c.offset + row)};
}

template <class T>
__device__ __forceinline__ T* broadcast(T* p, int lane) {
  return reinterpret_cast<T*>(__shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(p), lane));
}

// Formats with quantisation blocks have one width, the others any: a lane has this many runs of 8 values of a row, or of 512 values of it.
template <KvFormat kFormat>
constexpr int kRunsOfLane = static_cast<int>((fixed_row_dim(kFormat) == 0 ? 512 : fixed_row_dim(kFormat)) + 255) / 256;

template <KvFormat kFormat>
__device__ __forceinline__ void copy_row(const Call& c, const Copy& copy, int lane) {
  constexpr int kRuns = kRunsOfLane<kFormat>;
  const int dim = fixed_row_dim(kFormat) == 0 ? c.cache.row_dim : fixed_row_dim(kFormat);
  for (int first = 0; first < dim; first += kRuns * 8 * kWarpSize) {
    StoredRun runs[kRuns];
#pragma unroll
    for (int k = 0; k < kRuns; ++k) {
      const int begin = first + 8 * (k * kWarpSize + lane);
      if (begin < dim) runs[k] = load_run<kFormat>(c.cache, copy.data, copy.scales, begin);
    }
#pragma unroll
    for (int k = 0; k < kRuns; ++k) {
      const int begin = first + 8 * (k * kWarpSize + lane);
      if (begin < dim) *reinterpret_cast<uint4*>(copy.to + begin) = decode_run<kFormat>(runs[k], begin);
    }
  }
}

template <KvFormat kFormat, bool kWide>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) dequantize_and_gather_k_kernel(const __grid_constant__ Call c) {
  start_early();
  const int lane = threadIdx.x % kWarpSize;
  const int64_t warp = blockIdx.x * kWarps + threadIdx.x / kWarpSize, warps = int64_t{gridDim.x} * kWarps;
  for (int64_t first = warp;; first += kWarpSize * warps) {
    // Each lane computes one of the warp's next 32 rows. Rows that exist come before those that do not.
    const Copy mine = find_row(c, first + lane * warps);
    const int count = __popc(__ballot_sync(kAllLanes, mine.to != nullptr));
#pragma unroll 2
    for (int i = 0; i < count; ++i) {
      const Copy copy{broadcast(mine.data, i), broadcast(mine.scales, i), broadcast(mine.to, i)};
      if constexpr (kWide) {
        copy_row<kFormat>(c, copy, lane);
      } else {
        for (int d = lane; d < c.cache.row_dim; d += kWarpSize) copy.to[d] = load_element(c.cache, copy.data, copy.scales, d);
      }
    }
    if (count < kWarpSize) return;
  }
}

using Kernel = void (*)(const Call);

Kernel wide_kernel(KvFormat format) {
  switch (format) {
    case KvFormat::fp8_tensor: return dequantize_and_gather_k_kernel<KvFormat::fp8_tensor, true>;
    case KvFormat::fp8_ds_mla_v4: return dequantize_and_gather_k_kernel<KvFormat::fp8_ds_mla_v4, true>;
    case KvFormat::fp8_ds_mla: return dequantize_and_gather_k_kernel<KvFormat::fp8_ds_mla, true>;
    case KvFormat::indexer_fp8: return dequantize_and_gather_k_kernel<KvFormat::indexer_fp8, true>;
    case KvFormat::indexer_mxfp4: return dequantize_and_gather_k_kernel<KvFormat::indexer_mxfp4, true>;
    default: return dequantize_and_gather_k_kernel<KvFormat::bf16, true>;
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
  launch_early("dequantize_and_gather_k_kernel", kernel, {static_cast<unsigned>(blocks), kThreads}, context, c);
}

}  // namespace

Implementation<DequantizeAndGatherKParams> dequantize_and_gather_k_smxx() {
  return smxx_implementation<DequantizeAndGatherKParams>({.run = run});
}

}  // namespace strata::cuda
