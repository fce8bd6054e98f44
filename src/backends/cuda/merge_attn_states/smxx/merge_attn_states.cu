// merge_attn_states: a group of lanes per (token, head), 16 values per lane. Each lane computes the weights itself, for several partial
// results at a time: they are few, and no lane waits for another.
// Floor: every partial result read once and the result written once (4 fp32 results of 512 values, 4096 tokens, 64 heads: 2.4 GB, 563 us at
// 4.3 TB/s; 2 bf16 results of 128 values, 128 heads: 409 MB, 95 us). Reached on an H200: 546 and 111 us.
#include <algorithm>
#include <bit>
#include <cmath>

#include "backends/cuda/device/divisor.h"
#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/device/values.cuh"
#include "backends/cuda/device/warp.cuh"
#include "backends/cuda/merge_attn_states/impls.h"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/grid.h"
#include "core/ceil_div.h"

namespace strata::cuda {
namespace {

constexpr int kThreads = 128;

struct Call {
  const void* o;
  int64_t o_stride[3];
  const float* lse;
  int64_t lse_stride[3];
  const float* sink;  // null: none
  void* out;
  int64_t out_stride[2];
  float* lse_out;  // null: not written
  int64_t lse_out_stride[2];
  float empty_lse;
  int32_t parts, dim, rows;
  int32_t log2_lanes;  // of a group
  Divisor heads;
};

// One lane's access to a partial result: 16 bytes. A lane has 16 values in kRuns accesses, so that computing the weights is a small share
// of its work.
template <class In>
constexpr int kWideValues = 16 / static_cast<int>(sizeof(In));
template <class In>
constexpr int kRuns = 16 / kWideValues<In>;

template <bool kWide, int kValues>
__device__ __forceinline__ void store_run(float* p, const float (&x)[kValues]) {
  if constexpr (kWide) {
#pragma unroll
    for (int i = 0; i < kValues; i += 4) *reinterpret_cast<float4*>(p + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
  } else {
    p[0] = x[0];
  }
}
template <bool kWide, int kValues>
__device__ __forceinline__ void store_run(Bf16* p, const float (&x)[kValues]) {
  if constexpr (kWide && kValues == 4) {
    *reinterpret_cast<uint2*>(p) = make_uint2(ptx::cvt_bf16x2(x[0], x[1]), ptx::cvt_bf16x2(x[2], x[3]));
  } else {
    store_values<kWide>(p, x);
  }
}

// One lane's sums over the partial results so far, relative to exp(largest).
template <int kAccesses, int kValues>
struct Sums {
  float largest = -INFINITY;
  float weights = 0.0f;
  bool empty = true;
  float values[kAccesses][kValues] = {};
};

// Adds partial results [first, first + kParts). Their values are loaded together with the lse that decides whether they count, so there is
// one memory latency. No load depends on a branch: results and lanes that do not exist load the last result and the first lane.
template <bool kWide, int kParts, class In, int kAccesses, int kValues>
__device__ __forceinline__ void add_parts(const Call& c, const float* lse, const In* o, int first, int begin, int run_stride,
                                          Sums<kAccesses, kValues>& sums) {
  float l[kParts], x[kParts][kAccesses][kValues];
#pragma unroll
  for (int k = 0; k < kParts; ++k) {
    const int part = min(first + k, c.parts - 1);
    l[k] = lse[part * c.lse_stride[0]];
#pragma unroll
    for (int r = 0; r < kAccesses; ++r) {
      const int column = begin + r * run_stride;
      load_values<kWide>(o + part * c.o_stride[0] + (column < c.dim ? column : 0), x[k][r]);
    }
    if (first + k >= c.parts) l[k] = INFINITY;
  }
  float largest = sums.largest;
  bool some = false;
#pragma unroll
  for (int k = 0; k < kParts; ++k) {
    if (isinf(l[k])) continue;
    some = true;
    largest = fmaxf(largest, l[k]);
  }
  if (!some) return;
  sums.empty = false;
  const float before = sums.largest == largest ? 1.0f : __expf(sums.largest - largest);
  sums.largest = largest;
  sums.weights *= before;
#pragma unroll
  for (int r = 0; r < kAccesses; ++r) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) sums.values[r][i] *= before;
  }
#pragma unroll
  for (int k = 0; k < kParts; ++k) {
    if (isinf(l[k])) continue;  // its values are unspecified
    const float weight = __expf(l[k] - largest);
    sums.weights += weight;
#pragma unroll
    for (int r = 0; r < kAccesses; ++r) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) sums.values[r][i] += weight * x[k][r][i];
    }
  }
}

// kWide: dim is a multiple of kWideValues and rows are 16-byte aligned.
// out may alias a partial result: a lane reads what it writes before it writes.
template <class In, class Out, bool kWide>
__global__ void __launch_bounds__(kThreads) merge_attn_states_kernel(const __grid_constant__ Call c) {
  constexpr int kValues = kWide ? kWideValues<In> : 1, kParts = sizeof(In) == 4 ? 4 : 2;
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) >> c.log2_lanes;
  const int lane = threadIdx.x & ((1 << c.log2_lanes) - 1), run_stride = kValues << c.log2_lanes;
  if (row >= c.rows) return;
  const int32_t t = c.heads.divide(static_cast<int32_t>(row)), h = static_cast<int32_t>(row) - t * c.heads.value();
  const float* const lse = c.lse + t * c.lse_stride[1] + h * c.lse_stride[2];
  const In* const o = static_cast<const In*>(c.o) + t * c.o_stride[1] + h * c.o_stride[2];
  Out* const out = static_cast<Out*>(c.out) + t * c.out_stride[0] + h * c.out_stride[1];
  const float sink = c.sink != nullptr ? __ldg(c.sink + h) : -INFINITY;

  float lse_out = c.empty_lse;
  for (int begin = lane * kValues; begin < c.dim; begin += kRuns<In> * run_stride) {
    Sums<kRuns<In>, kValues> sums;
    for (int first = 0; first < c.parts; first += kParts) add_parts<kWide, kParts>(c, lse, o, first, begin, run_stride, sums);
    const float inverse = sums.empty ? 0.0f : 1.0f / (sums.weights + expf(sink - sums.largest));
    if (!sums.empty) lse_out = sums.largest + logf(sums.weights);
#pragma unroll
    for (int r = 0; r < kRuns<In>; ++r) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) sums.values[r][i] = fmaf(sums.values[r][i], inverse, 0.0f);  // a zero is +0
      if (begin + r * run_stride < c.dim) store_run<kWide>(out + begin + r * run_stride, sums.values[r]);
    }
  }
  // Last, after every lane of the group has read its lse: lse_out may alias a partial result.
  if (c.lse_out == nullptr) return;
  const int lanes = 1 << c.log2_lanes, first_lane = static_cast<int>(threadIdx.x) % kWarpSize - lane;
  __syncwarp((kAllLanes >> (kWarpSize - lanes)) << first_lane);
  if (lane == 0) c.lse_out[t * c.lse_out_stride[0] + h * c.lse_out_stride[1]] = lse_out;
}

template <class In, class Out>
auto kernel_for(bool wide) {
  return wide ? merge_attn_states_kernel<In, Out, true> : merge_attn_states_kernel<In, Out, false>;
}

void run(const MergeAttnStatesParams& p, const ExecutionContext& context) {
  const int64_t heads = p.o.shape[2], rows = p.o.shape[1] * heads;
  if (rows == 0) return;
  const bool from_f32 = p.o.dtype == DType::f32, to_f32 = p.out.dtype == DType::f32;
  const int64_t dim = p.o.shape[3];
  const int values = from_f32 ? kWideValues<float> : kWideValues<Bf16>;
  const bool wide = dim % values == 0 && rows_aligned(p.o) && rows_aligned(p.out);
  const int64_t lane_values = (wide ? values : 1) * (from_f32 ? kRuns<float> : kRuns<Bf16>);
  const int64_t lanes =
      std::min<int64_t>(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(ceil_div(dim, lane_values)))), kWarpSize);
  const unsigned blocks = blocks_for(rows, kThreads / lanes);
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
      .dim = static_cast<int32_t>(dim),
      .rows = static_cast<int32_t>(rows),
      .log2_lanes = static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(lanes))) - 1,
      .heads = Divisor(static_cast<int32_t>(heads)),
  };
  const auto kernel = from_f32 ? (to_f32 ? kernel_for<float, float>(wide) : kernel_for<float, Bf16>(wide))
                               : (to_f32 ? kernel_for<Bf16, float>(wide) : kernel_for<Bf16, Bf16>(wide));
  kernel<<<blocks, kThreads, 0, native(context.stream)>>>(c);
  check_launch("merge_attn_states_kernel");
}

}  // namespace

Implementation<MergeAttnStatesParams> merge_attn_states_smxx() { return smxx_implementation<MergeAttnStatesParams>({.run = run}); }

}  // namespace strata::cuda
