// One softmax from partial results, a warp per (token, head). Floor: every part read once and the result written once (4 fp32 parts of
// 512 values, 4096 tokens, 64 heads: 2.4 GB, 563 us at 4.3 TB/s).
#include <cmath>

#include "backends/cuda/common/check.h"
#include "backends/cuda/common/divisor.h"
#include "backends/cuda/common/implementation.h"
#include "backends/cuda/common/rows.cuh"
#include "backends/cuda/common/values.cuh"
#include "backends/cuda/common/warp.cuh"
#include "backends/cuda/cuda_ops.h"

namespace strata::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kRuns = 4;  // runs of kValues that a lane sums at a time

struct Call {
  const void* o;
  int64_t o_stride[3];
  const float* lse;
  int64_t lse_stride[3];
  const float* sink;  // null: none
  void* out;
  int64_t out_stride[2];
  float* lse_out;  // null: not wanted
  int64_t lse_out_stride[2];
  float empty_lse;
  int32_t parts, dim, rows;
  Divisor heads;
};

__device__ __forceinline__ float part_lse(const Call& c, const float* lse, int part) {
  return part < c.parts ? lse[part * c.lse_stride[0]] : INFINITY;
}

// A part's values, four a lane: 16 bytes of fp32, 8 of bf16.
template <bool kWide, int kValues>
__device__ __forceinline__ void load_run(const float* p, float (&x)[kValues]) {
  load_values<kWide>(p, x);
}
template <bool kWide, int kValues>
__device__ __forceinline__ void load_run(const Bf16* p, float (&x)[kValues]) {
  if constexpr (kWide) {
    const uint2 v = *reinterpret_cast<const uint2*>(p);
    x[0] = bf16_low(v.x);
    x[1] = bf16_high(v.x);
    x[2] = bf16_low(v.y);
    x[3] = bf16_high(v.y);
  } else {
    load_values<false>(p, x);
  }
}
template <bool kWide, int kValues>
__device__ __forceinline__ void store_run(float* p, const float (&x)[kValues]) {
  if constexpr (kWide) {
    *reinterpret_cast<float4*>(p) = make_float4(x[0], x[1], x[2], x[3]);
  } else {
    p[0] = x[0];
  }
}
template <bool kWide, int kValues>
__device__ __forceinline__ void store_run(Bf16* p, const float (&x)[kValues]) {
  if constexpr (kWide) {
    *reinterpret_cast<uint2*>(p) = make_uint2(ptx::cvt_bf16x2(x[0], x[1]), ptx::cvt_bf16x2(x[2], x[3]));
  } else {
    store_values<false>(p, x);
  }
}

// kWide: dim is a multiple of 4 and rows are 16-byte aligned. out may be a part: a lane reads what it writes before it writes it.
template <class In, class Out, bool kWide>
__global__ void __launch_bounds__(kWarps* kWarpSize) merge_attn_states_kernel(const __grid_constant__ Call c) {
  constexpr int kValues = kWide ? 4 : 1, kRun = kWarpSize * kValues;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  if (row >= c.rows) return;
  const int32_t t = c.heads.divide(static_cast<int32_t>(row)), h = static_cast<int32_t>(row) - t * c.heads.value();
  const float* const lse = c.lse + t * c.lse_stride[1] + h * c.lse_stride[2];

  float largest = -INFINITY;
  bool some = false;
  for (int part = lane; part < c.parts; part += kWarpSize) {
    const float l = part_lse(c, lse, part);
    if (isinf(l)) continue;
    some = true;
    largest = fmaxf(largest, l);
  }
  const bool empty = !__any_sync(kAllLanes, some);
  largest = lanes_max(largest);
  float sum = 0.0f;
  for (int part = lane; part < c.parts; part += kWarpSize) {
    const float l = part_lse(c, lse, part);
    if (!isinf(l)) sum += expf(l - largest);
  }
  sum = lanes_sum(sum);
  const float sink = c.sink != nullptr ? expf(c.sink[h] - largest) : 0.0f;
  const float inverse = 1.0f / (sum + sink);

  const In* const o = static_cast<const In*>(c.o) + t * c.o_stride[1] + h * c.o_stride[2];
  Out* const out = static_cast<Out*>(c.out) + t * c.out_stride[0] + h * c.out_stride[1];
  for (int begin = lane * kValues; begin - lane * kValues < c.dim; begin += kRuns * kRun) {
    float total[kRuns][kValues] = {};
    for (int first = 0; first < c.parts; first += kWarpSize) {
      const float l = part_lse(c, lse, first + lane);
      const float weight = isinf(l) ? 0.0f : expf(l - largest) * inverse;
      for (unsigned mask = __ballot_sync(kAllLanes, !isinf(l)); mask != 0; mask &= mask - 1) {
        const int j = __ffs(static_cast<int>(mask)) - 1;
        const float w = __shfl_sync(kAllLanes, weight, j);
        const In* const part = o + (first + j) * c.o_stride[0];
        float x[kRuns][kValues];
#pragma unroll
        for (int r = 0; r < kRuns; ++r) {
          if (begin + r * kRun < c.dim) load_run<kWide>(part + begin + r * kRun, x[r]);
        }
#pragma unroll
        for (int r = 0; r < kRuns; ++r) {
          if (begin + r * kRun < c.dim) {
#pragma unroll
            for (int i = 0; i < kValues; ++i) total[r][i] += w * x[r][i];
          }
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      if (begin + r * kRun < c.dim) store_run<kWide>(out + begin + r * kRun, total[r]);
    }
  }
  // Last: lse_out may be one of the parts.
  __syncwarp();
  if (c.lse_out != nullptr && lane == 0) {
    c.lse_out[t * c.lse_out_stride[0] + h * c.lse_out_stride[1]] = empty ? c.empty_lse : largest + logf(sum);
  }
}

template <class In, class Out>
auto kernel_for(bool wide) {
  return wide ? merge_attn_states_kernel<In, Out, true> : merge_attn_states_kernel<In, Out, false>;
}

void run(const MergeAttnStatesParams& p, const ExecutionContext& context) {
  const int64_t heads = p.o.shape[2], rows = p.o.shape[1] * heads;
  if (rows == 0) return;
  const unsigned blocks = blocks_for(rows, kWarps);
  const Call c{
      .o = p.o.data,
      .o_stride = {p.o.stride[0], p.o.stride[1], p.o.stride[2]},
      .lse = p.lse.ptr<float>(),
      .lse_stride = {p.lse.stride[0], p.lse.stride[1], p.lse.stride[2]},
      .sink = p.attn_sink.ptr<float>(),
      .out = p.out.data,
      .out_stride = {p.out.stride[0], p.out.stride[1]},
      .lse_out = p.lse_out.ptr<float>(),
      .lse_out_stride = {p.lse_out.stride[0], p.lse_out.stride[1]},
      .empty_lse = p.empty_lse,
      .parts = static_cast<int32_t>(p.o.shape[0]),
      .dim = static_cast<int32_t>(p.o.shape[3]),
      .rows = static_cast<int32_t>(rows),
      .heads = Divisor(static_cast<int32_t>(heads)),
  };
  const bool wide = c.dim % 4 == 0 && rows_aligned(p.o) && rows_aligned(p.out);
  const bool from_f32 = p.o.dtype == DType::f32, to_f32 = p.out.dtype == DType::f32;
  const auto kernel = from_f32 ? (to_f32 ? kernel_for<float, float>(wide) : kernel_for<float, Bf16>(wide))
                               : (to_f32 ? kernel_for<Bf16, float>(wide) : kernel_for<Bf16, Bf16>(wide));
  kernel<<<blocks, kWarps * kWarpSize, 0, native(context.stream)>>>(c);
  check_launch("merge_attn_states_kernel");
}

}  // namespace

std::vector<Implementation<MergeAttnStatesParams>> merge_attn_states() { return smxx_implementation<MergeAttnStatesParams>({.run = run}); }

}  // namespace strata::cuda
