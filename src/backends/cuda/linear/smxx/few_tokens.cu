// y = x W^T in bf16 for 1 to 8 tokens: the weight goes from memory to registers to the tensor cores, once.
//
// Floor: weight bytes / memory bandwidth; 16 x 1024 x 4096 at 4.3 TB/s is 31.2 us, 2560 x 7168 is 8.5 us. Reached on an H200: see
// docs/kernels/linear.md.
//
// Design: eight features are the columns of an mma tile and the tokens its rows. The order of channels in the tensor core is free as long
// as both operands agree. So a lane loads 16 consecutive bytes of a weight row: unit l % 4 of 64 bytes of row l / 4. Warps with the same
// features share the channels, 64 at a time, round-robin. A warp has eight such steps, 8 KB, in flight and issues the next load as it uses
// one, across the ends of tiles; there is no ring, and only the data is waited for. All tiles are in flight at once where they fit, so an
// uneven division among SMs does not matter. x is in shared memory, whole. The first weights are loaded before the preceding kernel has
// finished. Partial sums are added in the order of the warps: a row's result depends only on the row.
#include <algorithm>
#include <string>

#include "backends/cuda/linear/bf16_product.h"
#include "backends/cuda/linear/product_output.h"
#include "backends/cuda/ptx/cp_async.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/ptx/mma.cuh"
#include "backends/cuda/runtime/early_launch.cuh"
#include "core/ceil_div.h"
#include "formats/bf16.h"
#include "contracts/row_alignment.h"

namespace strata::cuda {
namespace {

constexpr int kMaxTokens = 8;
constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kBlocksPerSm = 2;                // 128 KB in flight
constexpr int kStrip = 8;                      // features of a warp at a time
constexpr int kStepChannels = 64;              // channels of a step: two loads of 16 bytes per lane
constexpr int kDepth = 8;                      // steps in flight
constexpr int kPartial = kMaxTokens * kStrip;  // sums of a warp

struct Args {
  const Bf16* x;              // rows are 16-byte aligned
  int64_t x_stride, x_group;  // between tokens, between groups
  const Bf16* w;
  void* y;
  int64_t y_stride, y_group;
  bool y_f32;
  int num_tokens;
  int n, k;       // features and channels per group
  int k_warps;    // warps that share the channels; other warps have other features
  int tile_rows;  // features of a CTA at a time
  int tiles_per_group, num_tiles;
  int num_blocks;  // of kStepChannels channels
};

// A lane's position in its row of a tile: an address, and the number of channels left in the row from there. A row that does not exist has
// none.
struct WeightPosition {
  const Bf16* at;
  int left;

  __device__ WeightPosition(const Args& a, int tile, int first_row, int channel) {
    const int group = tile / a.tiles_per_group, feature = (tile - group * a.tiles_per_group) * a.tile_rows + first_row;
    const bool exists = tile < a.num_tiles && feature < a.n;
    at = a.w + (exists ? (int64_t{group} * a.n + feature) * a.k : 0) + channel;
    left = exists ? a.k - channel : 0;
  }
};

// Bytes of a token in shared memory: whole steps, and 64 more so that two tokens lie in different banks.
__host__ __device__ constexpr int x_row_bytes(int num_blocks) { return num_blocks * kStepChannels * 2 + 64; }
// The tokens, and two buffers of the warps' sums.
constexpr int shared_bytes(int tokens, int num_blocks) {
  return tokens * x_row_bytes(num_blocks) + 2 * kWarps * kPartial * static_cast<int>(sizeof(float));
}
// Steps of a warp, a multiple of kDepth; those beyond k are empty.
__device__ __forceinline__ int num_steps(const Args& a) {
  const int group = a.k_warps * kDepth;
  return (a.num_blocks + group - 1) / group * kDepth;
}

__device__ void load_tokens(const Args& a, int group, int x_row, uint8_t* shared) {
  const int units = a.num_blocks * (kStepChannels / 8);
  for (int token = 0; token < a.num_tokens; ++token) {
    const Bf16* const x = a.x + token * a.x_stride + group * a.x_group;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < units; i += kThreads) {
      const bool valid = 8 * i < a.k;
      ptx::cp_async_16_or_zero(ptx::shared_address(shared + token * x_row + 16 * i), valid ? x + 8 * i : x, valid ? 16 : 0);
    }
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
}

__global__ void __launch_bounds__(kThreads, kBlocksPerSm) few_tokens_kernel(const __grid_constant__ Args a) {
  const int x_row = x_row_bytes(a.num_blocks), steps = num_steps(a);
  extern __shared__ __align__(16) uint8_t shared[];
  float* const partial = reinterpret_cast<float*>(shared + a.num_tokens * x_row);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int k_warp = warp % a.k_warps, row_warp = warp / a.k_warps;
  const int token = lane / 4, quarter = lane % 4, first_row = row_warp * kStrip + lane / 4;
  const int first_channel = k_warp * kStepChannels + quarter * 8, step_channels = a.k_warps * kStepChannels;
  const int first_tile = static_cast<int>(int64_t{a.num_tiles} * blockIdx.x / gridDim.x);
  const int last_tile = static_cast<int>(int64_t{a.num_tiles} * (blockIdx.x + 1) / gridDim.x);

  uint4 weights[kDepth][2];
  const auto issue_loads = [&](int j, const WeightPosition& position) {
    const Bf16* const at = position.at + j * step_channels;
    const int left = position.left - j * step_channels;
#pragma unroll
    for (int i = 0; i < 2; ++i) weights[j][i] = ptx::ld_once_if(32 * i < left, at + 32 * i);
  };
#if __CUDA_ARCH__ >= 900
  ptx::launch_dependents();
#endif
  WeightPosition position(a, first_tile, first_row, first_channel);
#pragma unroll
  for (int j = 0; j < kDepth; ++j) issue_loads(j, position);
#if __CUDA_ARCH__ >= 900
  ptx::wait_for_previous_kernel();
#endif

  int loaded_group = -1, buffer = 0;
  for (int tile = first_tile; tile < last_tile; ++tile, buffer ^= 1) {
    const int group = tile / a.tiles_per_group;
    if (group != loaded_group) {
      if (loaded_group >= 0) __syncthreads();
      load_tokens(a, group, x_row, shared);
      __syncthreads();
      loaded_group = group;
    }
    const WeightPosition next_tile(a, tile + 1 < last_tile ? tile + 1 : a.num_tiles, first_row, first_channel);
    float sums[4] = {};
    const uint8_t* const x = shared + token * x_row + quarter * 16;
    for (int step = 0; step < steps; step += kDepth) {
      if (step + kDepth < steps) {
        position.at += kDepth * step_channels;
        position.left -= kDepth * step_channels;
      } else {
        position = next_tile;
      }
#pragma unroll
      for (int j = 0; j < kDepth; ++j) {
        const int block = (step + j) * a.k_warps + k_warp;
        if (block < a.num_blocks) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (token < a.num_tokens) v = *reinterpret_cast<const uint4*>(x + (block * kStepChannels + 32 * i) * 2);
            const uint4& w = weights[j][i];
            ptx::mma_m16n8k16_bf16(sums, {v.x, 0, v.y, 0}, w.x, w.y);
            ptx::mma_m16n8k16_bf16(sums, {v.z, 0, v.w, 0}, w.z, w.w);
          }
        }
        issue_loads(j, position);
      }
    }

    // A lane holds two features of one token. The buffers alternate: a reader passes the barrier before its buffer is written again.
    float* const sums_of_tile = partial + buffer * (kWarps * kPartial);
    *reinterpret_cast<float2*>(sums_of_tile + warp * kPartial + token * kStrip + quarter * 2) = make_float2(sums[0], sums[1]);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < a.tile_rows * kMaxTokens; i += kThreads) {
      const int strip = i / kPartial, to_token = i % kPartial / kStrip;
      const int feature = (tile - group * a.tiles_per_group) * a.tile_rows + strip * kStrip + i % kStrip;
      if (to_token >= a.num_tokens || feature >= a.n) continue;
      float sum = 0;
      for (int k = 0; k < a.k_warps; ++k) sum += sums_of_tile[(strip * a.k_warps + k) * kPartial + i % kPartial];
      store_output(a, group, to_token, feature, sum);
    }
  }
}

// Warps of a CTA that share the channels, and the CTAs of a call.
int k_warps_of(int64_t k) {
  int warps = kWarps;
  while (warps > 1 && ceil_div(k, kStepChannels) < warps * kDepth) warps /= 2;
  return warps;
}
int64_t blocks_of(const LinearWeight& w, const Capabilities& device) {
  const int64_t tiles = w.groups * ceil_div(w.n, kStrip * kWarps / k_warps_of(w.k));
  return ceil_div(tiles, ceil_div(tiles, int64_t{device.num_sms} * kBlocksPerSm));
}

// x: [T, G, K].
Support support(const TensorView& x, const LinearWeight* w, bool /*shares_device*/, const Capabilities& device) {
  if (w == nullptr) return Support::no("no weight");
  if (!w->weight.present() || w->weight.dtype != DType::bf16) return Support::no("needs a row-major bf16 weight");
  if (x.dtype != DType::bf16) return Support::no("needs bf16 activations");
  const int64_t tokens = x.shape[0];
  if (tokens > kMaxTokens) return Support::no("takes at most 8 tokens, got " + std::to_string(tokens));
  if (w->k % 8 != 0 || ops::row_alignment(x) != 16) return Support::no("needs rows at multiples of 16 bytes");
  // x is read by every CTA: at most a quarter of the weight's bytes. Beyond that nothing was measured.
  if (4 * tokens * blocks_of(*w, device) > w->groups * w->n) return Support::no("too many tokens for so few features");
  // A CTA that is alone on an SM has too little in flight.
  if (2 * (shared_bytes(static_cast<int>(tokens), static_cast<int>(ceil_div(w->k, kStepChannels))) + 1024) > device.max_shared_bytes) {
    return Support::no(std::to_string(tokens) + " tokens do not fit in half the shared memory");
  }
  return Support::yes();
}

// x: [T, G, K]; y: [T, G, n].
void multiply(const TensorView& x, const LinearWeight& w, const TensorView& y, bool /*shares_device*/, const ExecutionContext& context) {
  if (y.numel() == 0) return;
  Args a{};
  a.x = x.ptr<Bf16>();
  a.x_stride = x.stride[0];
  a.x_group = x.stride[1];
  a.w = w.weight.ptr<Bf16>();
  set_output(a, y);
  a.num_tokens = static_cast<int>(x.shape[0]);
  a.n = static_cast<int>(w.n);
  a.k = static_cast<int>(w.k);
  a.num_blocks = static_cast<int>(ceil_div(a.k, kStepChannels));
  a.k_warps = k_warps_of(a.k);
  a.tile_rows = kStrip * kWarps / a.k_warps;
  a.tiles_per_group = static_cast<int>(ceil_div(a.n, a.tile_rows));
  a.num_tiles = a.tiles_per_group * static_cast<int>(w.groups);

  const int bytes = shared_bytes(a.num_tokens, a.num_blocks);
  const Capabilities device = capabilities(context.device);
  allow_shared_bytes(few_tokens_kernel, static_cast<size_t>(device.max_shared_bytes));
  launch_early(
      "few_tokens_kernel", few_tokens_kernel,
      {.grid = dim3(static_cast<unsigned>(blocks_of(w, device))), .block = dim3(kThreads), .shared_bytes = static_cast<size_t>(bytes)},
      context, a);
}

using Product = Bf16Product<support, multiply>;

}  // namespace

Implementation<LinearParams> few_tokens_bf16_linear() { return smxx_implementation<LinearParams>(Product::linear()); }
Implementation<GroupedLinearParams> few_tokens_bf16_grouped_linear() {
  return smxx_implementation<GroupedLinearParams>(Product::grouped());
}

}  // namespace strata::cuda
