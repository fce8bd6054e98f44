// RMSNorm of two latents in one launch. A CTA normalises several tokens, one after the other, with 8 values per thread in registers between
// their read and their write. Floor: 4 bytes per value, 3 with e4m3 output (V4-Pro, 4096 tokens: 33.6 MB, 7.8 us at 4.3 TB/s); the weights
// stay in L1.
//
// Between products over weights there is little work and much latency: such a product leaves neither code nor norm weights in L2. So the
// code is short, and data that does not depend on the preceding kernel is loaded before that kernel has finished.
//
// The key's insertion, where a call of few tokens has one, is in the same launch: a separate kernel, concurrent with the following product,
// costs more than its own time (docs/kernels/decode_layer.md).
#include <algorithm>

#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/device/quantize_activation.cuh"
#include "backends/cuda/device/insert_key.cuh"
#include "backends/cuda/device/touch.cuh"
#include "backends/cuda/device/warp.cuh"
#include "backends/cuda/norm/impls.h"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/ptx/warpgroup.cuh"
#include "backends/cuda/runtime/early_launch.cuh"
#include "backends/cuda/runtime/grid.h"
#include "core/ceil_div.h"
#include "contracts/fused_calls.h"

namespace strata::cuda {
namespace {

constexpr int kChunk = kQuantizeChannels;  // values per access
constexpr int kMaxThreads = 1024;
constexpr int kThreadsPerSm = 1024;  // limited by registers
// Up to this many tokens keys are inserted by the CTAs of their norm, one warp each.
constexpr int64_t kFewTokens = 128;
constexpr int kKeyWarps = kKeyDim / (kChunk * kWarpSize);

// Warps that a row takes.
int64_t warps_of(int64_t dim) { return ceil_div(dim, int64_t{kChunk} * kWarpSize); }

struct Latent {
  Rows<const Bf16> x;
  const float* weight;
  Rows<Bf16> out;
  int32_t dim;
  Rows<E4m3> quantized{};  // instead of out, where scale is not null
  Rows<float> scale{};
  bool ue8m0 = false;
};

__device__ float row_scale(float sum, int32_t dim, float eps) { return rsqrtf(sum / static_cast<float>(dim) + eps); }

// Scales a thread's values of a row and stores them. All lanes of a warp.
__device__ __forceinline__ void store_normed(const Latent& l, int64_t t, int begin, int count, float (&values)[kChunk]) {
  if (l.scale.data == nullptr) {
    if (count == kChunk) store_values<true>(l.out.row(t) + begin, values);
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunk; i += 2) {
    const uint32_t rounded = pack_bf16(values[i], values[i + 1]);
    values[i] = bf16_low(rounded);
    values[i + 1] = bf16_high(rounded);
  }
  uint32_t quantized[2];
  const float scale = quantize_lanes(values, l.ue8m0, quantized);
  store_quantized(&l.quantized.row(t)[begin].bits, count, quantized);
  if (count > 0 && begin % kActivationBlock == 0) l.scale.row(t)[begin / kActivationBlock] = scale;
}

// What a lane of the inserting warp needs besides the key. First loaded with slot and position as they are before the preceding kernel has
// finished, so that the angles, which do not change, arrive with the key; then confirmed.
struct KeyTarget {
  int64_t slot = -1, position = -1;
  float angles[kKeyRun];

  __device__ __forceinline__ void load(const KeyInsertArgs& key, int32_t t, int64_t num_positions, int lane) {
    if (t >= key.num_slots) return;
    position = speculative_load(key.positions + t);
    if (position >= 0 && position < num_positions) load(key, lane);
    touch(key.slots + t);
  }
  // Confirms by the current values: -1 each for a token without a slot.
  __device__ __forceinline__ void confirm(const KeyInsertArgs& key, int64_t slot_now, int64_t position_now, int lane) {
    slot = slot_now;
    if (slot < 0 || position_now == position) return;
    position = position_now;
    load(key, lane);
  }
  // No branch: after one the other lanes would wait too.
  __device__ __forceinline__ void load(const KeyInsertArgs& key, int lane) {
    load_angles<true>(key.cos_sin.row(position), kKeyRotary, max(key_rope_dim(lane), 0), angles);
  }
};

// Rows are 16-byte aligned, of multiples of 8 values. The first warps have the query's row, the others the key-value row, which the first
// of these inserts.
template <bool kInserts>
__global__ void __launch_bounds__(kInserts ? kMaxThreads / 2 : kMaxThreads)
    rms_norm_pair_kernel(const __grid_constant__ Latent q, const __grid_constant__ Latent kv, int32_t tokens, int32_t q_warps, float eps,
                         const __grid_constant__ KeyInsertArgs key, int64_t num_positions) {
  __shared__ float sums[2][kMaxThreads / kWarpSize];  // alternating: a reader of one is a barrier away from its next writer
  __shared__ uint4 normed_key[kInserts ? kKeyDim / kChunk : 1];
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  const bool of_q = warp < q_warps;
  const Latent& l = of_q ? q : kv;
  const int first_warp = of_q ? 0 : q_warps, last_warp = of_q ? q_warps : num_warps;
  const int begin = (static_cast<int>(threadIdx.x) - first_warp * kWarpSize) * kChunk, count = begin < l.dim ? kChunk : 0;
  const float4 low = ptx::load_quad_if(count > 0, l.weight + begin, 0.0f), high = ptx::load_quad_if(count > 0, l.weight + begin + 4, 0.0f);
  const float weight[kChunk] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const bool inserts = kInserts && warp == q_warps;
  KeyTarget key_target;
  start_early([&] {
    if (inserts) key_target.load(key, static_cast<int32_t>(blockIdx.x), num_positions, lane);
  });
  const auto load = [&](int32_t t) { return count > 0 && t < tokens ? *reinterpret_cast<const uint4*>(l.x.row(t) + begin) : uint4{}; };
  int buffer = 0;
  uint4 next = load(static_cast<int32_t>(blockIdx.x));
#pragma unroll 1
  for (int32_t t = static_cast<int32_t>(blockIdx.x); t < tokens; t += static_cast<int32_t>(gridDim.x), buffer ^= 1) {
    float values[kChunk];
    const uint4 row = next;
    next = load(t + static_cast<int32_t>(gridDim.x));
    const bool has_slot = inserts && t < key.num_slots;
    const int64_t slot = has_slot ? key.slots[t] : -1, position = has_slot ? key.positions[t] : -1;
    unpack_bf16(row, values);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sum += values[i] * values[i];
    sum = lanes_sum(sum);
    if (threadIdx.x % kWarpSize == 0) sums[buffer][warp] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int i = first_warp; i < last_warp; ++i) sum += sums[buffer][i];
    const float scale = row_scale(sum, l.dim, eps);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) values[i] *= scale * weight[i];
    if (!kInserts || of_q) {
      store_normed(l, t, begin, count, values);
      continue;
    }
    constexpr uint32_t kKeyReady = 1;
    store_values<true>(reinterpret_cast<Bf16*>(normed_key + begin / kChunk), values);
    ptx::barrier_sync(kKeyReady, kKeyWarps * kWarpSize);
    if (!inserts) continue;
    key_target.confirm(key, slot, position, lane);
    uint32_t words[kKeyRun / 2];
    load_wide(reinterpret_cast<const uint8_t*>(normed_key + lane * (kKeyRun / kChunk)), words);
    const auto get_angles = [&](float(&angles)[kKeyRun]) {
#pragma unroll
      for (int i = 0; i < kKeyRun; ++i) angles[i] = key_target.angles[i];
    };
    insert_words(key, key_target.slot, words, get_angles, lane);
  }
}

// Rows of any length and alignment: a warp per row, rows of `first` before those of `second`.
__global__ void __launch_bounds__(kWarpSize)
    rms_norm_rows_kernel(const __grid_constant__ Latent first, const __grid_constant__ Latent second, int32_t tokens, float eps) {
  start_early();
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const Latent& l = row < tokens ? first : second;
  const int64_t t = row < tokens ? row : row - tokens;
  const int lane = static_cast<int>(threadIdx.x);
  const Bf16* const x = l.x.row(t);
  float sum = 0.0f;
  for (int i = lane; i < l.dim; i += kWarpSize) sum += to_float(x[i]) * to_float(x[i]);
  const float scale = row_scale(lanes_sum(sum), l.dim, eps);
  for (int first_of_warp = 0; first_of_warp < l.dim; first_of_warp += kChunk * kWarpSize) {
    const int begin = first_of_warp + lane * kChunk, count = min(max(l.dim - begin, 0), kChunk);
    float values[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) values[i] = i < count ? to_float(x[begin + i]) * scale * l.weight[begin + i] : 0.0f;
    if (l.scale.data == nullptr) {
      for (int i = 0; i < count; ++i) l.out.row(t)[begin + i] = to_bf16(values[i]);
    } else {
      store_normed(l, t, begin, count, values);
    }
  }
}

Latent latent(const TensorView& x, const TensorView& weight, const TensorView& out) {
  return {.x = Rows<const Bf16>(x), .weight = weight.ptr<float>(), .out = Rows<Bf16>(out), .dim = static_cast<int32_t>(x.shape[1])};
}

Latent query_latent(const RmsNormPairParams& p) {
  Latent q = latent(p.q, p.q_weight, p.q_out);
  if (p.q_format == ActivationFormat::bf16) return q;
  q.out = {};
  q.quantized = Rows<E4m3>(p.q_out);
  q.scale = Rows<float>(p.q_scale);
  q.ue8m0 = p.q_format == ActivationFormat::fp8_ue8m0;
  return q;
}

KeyInsertArgs key_insert(const KeyInsert& e) {
  return {.slots = e.slot_mapping.ptr<int64_t>(),
          .num_slots = static_cast<int32_t>(e.slot_mapping.shape[0]),
          .positions = e.positions.ptr<int64_t>(),
          .cos_sin = Rows<const float>(e.cos_sin),
          .cache = e.cache,
          .rows_of_cache = CacheRows(e.cache)};
}

bool wide(const TensorView& x, const TensorView& weight, const TensorView& out) {
  return x.shape[1] % kChunk == 0 && rows_aligned(x) && rows_aligned(weight) && rows_aligned(out);
}

int64_t block_threads(const RmsNormPairParams& p) {
  return ((p.q.present() ? warps_of(p.q.shape[1]) : 0) + warps_of(p.kv.shape[1])) * kWarpSize;
}

// A CTA of the norm of few tokens inserts its key too.
bool fuses(const RmsNormPairParams& p, const Capabilities&, std::string_view fusion) {
  if (fusion != "insert_epilogue") return false;
  const KeyInsert& e = *p.insert_epilogue;
  return p.kv.shape[0] <= kFewTokens && block_threads(p) <= kMaxThreads / 2 && p.kv.shape[1] == kKeyDim &&
         e.cache.format == KvFormat::fp8_ds_mla_v4 && e.cos_sin.shape[1] == kKeyRotary;
}

// The key between the norm and a separate insertion, where memory is not word-aligned.
size_t workspace_bytes(const RmsNormPairParams& p, const Capabilities&) {
  return p.insert_epilogue ? static_cast<size_t>(p.kv.numel()) * sizeof(Bf16) : 0;
}

void run_norm(const RmsNormPairParams& p, const TensorView& kv_out, const KeyInsert* inserted, const ExecutionContext& context) {
  const int64_t tokens = p.kv.shape[0], threads = block_threads(p);
  const bool pair = p.q.present();
  const Latent kv = latent(p.kv, p.kv_weight, kv_out), q = pair ? query_latent(p) : kv;
  const int64_t q_warps = pair ? warps_of(q.dim) : 0;
  if (threads <= kMaxThreads && wide(p.kv, p.kv_weight, kv_out) && (!pair || wide(p.q, p.q_weight, p.q_out))) {
    const int64_t at_once = capabilities(context.device).num_sms * std::max<int64_t>(kThreadsPerSm / threads, 1);
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(blocks_for(tokens, 1), at_once));
    const auto kernel = inserted != nullptr ? rms_norm_pair_kernel<true> : rms_norm_pair_kernel<false>;
    all_shared_memory(kernel);  // its blocks are the first on some SMs: a concurrent product fits next to them
    const KeyInsertArgs key = key_insert(inserted != nullptr ? *inserted : KeyInsert{});
    launch_early("rms_norm_pair_kernel", kernel, {blocks, static_cast<unsigned>(threads)}, context, q, kv, static_cast<int32_t>(tokens),
                 static_cast<int32_t>(q_warps), p.eps, key, inserted != nullptr ? inserted->cos_sin.shape[0] : 0);
    return;
  }
  launch_early("rms_norm_rows_kernel", rms_norm_rows_kernel, {blocks_for(pair ? 2 * tokens : tokens, 1), kWarpSize}, context, q, kv,
               static_cast<int32_t>(tokens), p.eps);
}

void run(const RmsNormPairParams& p, const ExecutionContext& context) {
  if (p.kv.shape[0] == 0) return;
  if (!p.insert_epilogue) return run_norm(p, p.kv_out, nullptr, context);
  const KeyInsert& e = *p.insert_epilogue;
  const TensorView kv = TensorView::contiguous(context.workspace.data, DType::bf16, p.kv.device, {p.kv.shape[0], p.kv.shape[1]});
  if (wide(p.kv, p.kv_weight, kv) && (!p.q.present() || wide(p.q, p.q_weight, p.q_out)) && inserts_words(e.cache, e.cos_sin)) {
    return run_norm(p, kv, &e, context);
  }
  run_norm(p, kv, nullptr, context);
  qnorm_rope_kv_insert().front().run(ops::insertion(p, kv), context);
}

}  // namespace

Implementation<RmsNormPairParams> rms_norm_pair_smxx() {
  return smxx_implementation<RmsNormPairParams>({.workspace_bytes = workspace_bytes, .run = run, .fuses = fuses});
}

}  // namespace strata::cuda
