// Inverse rotation and FP8 quantisation of attention outputs: 16 lanes per block of 128 channels, 8 channels each; the fp32 values
// stay in registers. Floor: 3.03 bytes per value; V4-Pro, 4096 tokens: 814 MB, 189 us at 4.3 TB/s. Reached on an H200: 207 us
// (92%).
#include "backends/cuda/device/divisor.h"
#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/device/sm_threads.cuh"
#include "backends/cuda/device/values.cuh"
#include "backends/cuda/device/warp.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/rope/impls.h"
#include "backends/cuda/runtime/early_launch.cuh"
#include "backends/cuda/runtime/grid.h"
#include "formats/quantize.h"

namespace strata::cuda {
namespace {

constexpr int kThreads = 128;
// CTAs per SM with `runs` runs per thread.
constexpr int blocks_per_sm(int runs) { return runs == 1 ? 16 : runs == 2 ? 8 : 10; }
constexpr int kRun = 8;
constexpr int kLanes = kActivationBlock / kRun;

struct Call {
  Rows<const Bf16> o;
  const int64_t* positions;
  Rows<const float> cos_sin;
  E4m3* out;
  float* scale;
  int32_t nope, rotary;
  Divisor of_head, of_token;  // runs
  int64_t total;
};

// A thread's share: 8 channels of a head.
struct Run {
  int32_t token, head, begin;
  int64_t position;
  float values[kRun];

  Run() = default;
  // without_branch: the position is read for all lanes.
  __device__ __forceinline__ Run(const Call& c, int32_t i, bool without_branch) : token(c.of_token.divide(i)) {
    if (without_branch) position = __ldg(c.positions + token);
    const int32_t in_token = i - token * c.of_token.value();
    head = c.of_head.divide(in_token);
    begin = (in_token - head * c.of_head.value()) * kRun;
    if (!without_branch && rotary(c)) position = __ldg(c.positions + token);
  }
  __device__ __forceinline__ bool rotary(const Call& c) const { return begin + kRun > c.nope; }
};

// Its angles. kWide: rotary dimensions begin with a run. kPrefetch: loaded before the run is waited for, and without a branch, after which
// the loads of all runs would be waited for.
template <bool kWide, bool kPrefetch>
struct RunAngles {
  float4 cosines, sines;

  __device__ __forceinline__ void load(const Call& c, const Run& run) {
    static_assert(kWide || !kPrefetch);
    if constexpr (!kPrefetch) return;
    const float* const row = c.cos_sin.row(run.position) + (run.begin - c.nope) / 2;
    cosines = ptx::load_quad_if(run.rotary(c), row, 0.0f);
    sines = ptx::load_quad_if(run.rotary(c), row + c.rotary / 2, 0.0f);
  }
  __device__ __forceinline__ void rotate(const Call& c, Run& run) const {
    if (!run.rotary(c)) return;
    if constexpr (kPrefetch) {
      const float angles[kRun] = {cosines.x, cosines.y, cosines.z, cosines.w, sines.x, sines.y, sines.z, sines.w};
      rotate_values(run.values, angles, true);
    } else if constexpr (kWide) {
      float angles[kRun];
      load_angles<true>(c.cos_sin.row(run.position), c.rotary, run.begin - c.nope, angles);
      rotate_values(run.values, angles, true);
    } else {
#pragma unroll
      for (int i = 0; i < kRun; i += 2) {
        const int lane = run.begin + i - c.nope;
        if (lane < 0) continue;
        float pair[2] = {run.values[i], run.values[i + 1]}, angles[2];
        load_angles<false>(c.cos_sin.row(run.position), c.rotary, lane, angles);
        rotate_values(pair, angles, true);
        run.values[i] = pair[0];
        run.values[i + 1] = pair[1];
      }
    }
  }
};

// kWide: heads, outputs and the table are 16-byte aligned, and rotary dimensions begin with a run.
// kRuns: per thread.
template <bool kWide, int kRuns>
__global__ void __launch_bounds__(kThreads, blocks_on_sm(blocks_per_sm(kRuns), kThreads))
    inverse_rope_quant_kernel(const __grid_constant__ Call c) {
  const int64_t first = int64_t{blockIdx.x} * (kThreads * kRuns) + threadIdx.x;
  start_early();
  Run runs[kRuns];
  constexpr bool kPrefetch = kWide && kRuns < 4;  // with four there are no registers left
  RunAngles<kWide, kPrefetch> angles[kRuns];
#pragma unroll
  for (int k = 0; k < kRuns; ++k) {
    // Lanes past the end take part in the reductions of their warp, as the last run.
    runs[k] = Run(c, static_cast<int32_t>(min(first + k * kThreads, c.total - 1)), kPrefetch);
  }
#pragma unroll
  for (int k = 0; k < kRuns; ++k) load_values<kWide>(c.o.row(runs[k].token, runs[k].head) + runs[k].begin, runs[k].values);
#pragma unroll
  for (int k = 0; k < kRuns; ++k) angles[k].load(c, runs[k]);
#pragma unroll
  for (int k = 0; k < kRuns; ++k) {
    angles[k].rotate(c, runs[k]);
    float amax = kActivationAmaxFloor;
#pragma unroll
    for (int j = 0; j < kRun; ++j) amax = fmaxf(amax, fabsf(runs[k].values[j]));
    const auto scale = BlockScale::of_e4m3(lanes_max<kLanes>(amax));
    // Groups hold whole heads one after the other, so [G, hpg * D] is [H, D] in memory.
    const int64_t i = first + k * kThreads;
    if (i >= c.total) continue;
    store_quantized<kWide>(c.out + i * kRun, runs[k].values, [s = scale.inverse()](float v) { return __fmul_rn(v, s); });
    if (i % kLanes == 0) c.scale[i / kLanes] = scale.value();
  }
}

void run(const InverseRopeQuantParams& p, const ExecutionContext& context) {
  const int64_t tokens = p.o.shape[0], heads = p.o.shape[1], dim = p.o.shape[2], rotary = p.cos_sin.shape[1];
  const int64_t of_head = dim / kRun, total = tokens * heads * of_head;
  if (total == 0) return;
  const bool wide = rotary % kRun == 0 && rows_aligned(p.o) && rows_aligned(p.cos_sin) && rows_aligned(p.out);
  // Several runs per thread where there are more than the device processes at once: more loads in flight, and fewer threads to set up.
  const int64_t at_once = int64_t{kThreads} * blocks_per_sm(1) * capabilities(context.device).num_sms;
  const int runs = !wide || total <= at_once ? 1 : total <= 2 * at_once ? 2 : 4;
  const Call c{.o = Rows<const Bf16>(p.o),
               .positions = p.positions.ptr<int64_t>(),
               .cos_sin = Rows<const float>(p.cos_sin),
               .out = p.out.ptr<E4m3>(),
               .scale = p.scale.ptr<float>(),
               .nope = static_cast<int32_t>(dim - rotary),
               .rotary = static_cast<int32_t>(rotary),
               .of_head = Divisor(static_cast<int32_t>(of_head)),
               .of_token = Divisor(static_cast<int32_t>(heads * of_head)),
               .total = total};
  const auto kernel = !wide       ? inverse_rope_quant_kernel<false, 1>
                      : runs == 1 ? inverse_rope_quant_kernel<true, 1>
                      : runs == 2 ? inverse_rope_quant_kernel<true, 2>
                                  : inverse_rope_quant_kernel<true, 4>;
  launch_early("inverse_rope_quant_kernel", kernel, {blocks_for(total, int64_t{kThreads} * runs), kThreads}, context, c);
}

}  // namespace

Implementation<InverseRopeQuantParams> inverse_rope_quant_smxx() { return smxx_implementation<InverseRopeQuantParams>({.run = run}); }

}  // namespace strata::cuda
