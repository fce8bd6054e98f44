// Flash attention of one head on mma.sync. A CTA has 128 queries of a request, 16 per warp, and loops over the keys that they see, 64
// at a time. The next tile of keys and values is copied (cp.async) while this one is multiplied. Q, O and the softmax stay in
// registers.
//
// Floor: 2 (P + R + V) flops of every visible (query, key, head) at the rate of mma.sync, about 0.6 of wgmma's on Hopper. A warp reads
// a key tile from shared memory for 16 queries, 40 KB for 160 products of 16x8x16: this and the exponentials keep it from the floor.
#include <cmath>

#include "backends/cuda/device/warp.cuh"
#include "backends/cuda/portable_attention/dense_prefill.h"
#include "backends/cuda/portable_attention/prefill_again.cuh"
#include "backends/cuda/portable_attention/rows.cuh"
#include "backends/cuda/portable_attention/token_address.cuh"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/cuda_device.h"
#include "backends/cuda/runtime/grid.h"
#include "backends/cuda/runtime/launch_config.h"
#include "core/ceil_div.h"

namespace strata::cuda {
namespace {

constexpr int kKeyDim = 192, kValueDim = 128;  // narrower heads are padded with zeros
constexpr int kQueries = 128, kKeys = 64, kThreads = 256;
constexpr int kSteps = kKeyDim / 16, kTilesS = kKeys / 8, kTilesO = kValueDim / 8;

struct Shared {
  alignas(128) uint8_t keys[2][kKeys * kKeyDim * 2];
  alignas(128) uint8_t values[2][kKeys * kValueDim * 2];
};

// Starts the copies of the keys [first, first + kKeys) below `end`, of one head. Other keys are zero.
__device__ __forceinline__ void start_keys(const DensePrefill& a, int32_t head, int64_t first, int64_t end, uint8_t* keys,
                                           uint8_t* values) {
  constexpr int kKeyChunks = kKeyDim / 8, kValueChunks = kValueDim / 8;
  const int nope_chunks = a.nope_dim / 8, key_chunks = nope_chunks + a.rotary_dim / 8, value_chunks = a.value_dim / 8;
  const auto copy = [&](uint8_t* to, const Bf16* from, bool present) {
    if (a.is_aligned) {
      ptx::cp_async_16_or_zero(ptx::shared_address(to), from, present ? 16 : 0);
    } else {
      copy_slowly<16>(to, reinterpret_cast<const uint8_t*>(from), present);
    }
  };
#pragma unroll
  for (int i = 0; i < kKeys * kKeyChunks / kThreads; ++i) {
    const int index = threadIdx.x + i * kThreads, row = index / kKeyChunks, c = index % kKeyChunks;
    const bool present = first + row < end && c < key_chunks;
    const int64_t key = present ? first + row : 0;
    const Bf16* from = c < nope_chunks ? a.k_nope + key * a.k_nope_stride.token + head * a.k_nope_stride.head + c * 8
                                       : a.k_pe + key * a.k_pe_stride + (c - nope_chunks) * 8;
    copy(keys + swizzled<kKeyDim>(row, c), from, present);
  }
#pragma unroll
  for (int i = 0; i < kKeys * kValueChunks / kThreads; ++i) {
    const int index = threadIdx.x + i * kThreads, row = index / kValueChunks, c = index % kValueChunks;
    const bool present = first + row < end && c < value_chunks;
    const int64_t key = present ? first + row : 0;
    copy(values + swizzled<kValueDim>(row, c), a.v + key * a.v_stride.token + head * a.v_stride.head + c * 8, present);
  }
}

__device__ __forceinline__ void store_pair(const DensePrefill& a, int64_t offset, int column, float x, float y) {
  if (a.out_f32 == nullptr) return store_out_pair(a.out_bf16 + offset, column, a.value_dim, x, y);
  if (column >= a.value_dim) return;
  a.out_f32[offset + column] = x;
  a.out_f32[offset + column + 1] = y;  // value_dim is even
}

__global__ void __launch_bounds__(kThreads, 1)
    dense_prefill_kernel(const __grid_constant__ DensePrefill a, Divisor blocks_per_head, Divisor num_heads) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<Shared*>(shared_bytes);
  const auto block = static_cast<int32_t>(blockIdx.x);
  const int32_t head_index = blocks_per_head.divide(block), request = num_heads.divide(head_index);
  const int32_t head = head_index - request * num_heads.value();
  const RequestRange r = request_range(a, request);
  // The last queries see the most keys, so they begin.
  const int32_t first_query = (blocks_per_head.value() - 1 - (block - head_index * blocks_per_head.value())) * kQueries;
  if (first_query >= r.num_queries) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Query i of the request sees the keys before i + sees.
  const int32_t sees = a.causal ? r.num_keys - r.num_queries + 1 : r.num_keys;
  const int32_t last_query = min(first_query + kQueries, r.num_queries) - 1;
  const int32_t end = max(a.causal ? last_query + sees : sees, 0);
  const int32_t row = first_query + warp * 16 + lane / 4;  // this lane's queries: row and row + 8
  const int32_t visible[2] = {a.causal ? row + sees : sees, a.causal ? row + 8 + sees : sees};

  const auto start = [&](int32_t key, int buffer) {
    if (key < end) start_keys(a, head, int64_t{r.first_key} + key, int64_t{r.first_key} + end, shared.keys[buffer], shared.values[buffer]);
    ptx::cp_async_commit();
  };
  start(0, 0);
  const Bf16* queries[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int32_t query = row + 8 * half;
    queries[half] =
        query < r.num_queries ? a.q + (int64_t{r.first_query} + query) * a.q_stride.token + head * a.q_stride.head + lane % 4 * 2 : nullptr;
  }
  uint32_t q[kSteps][4];
  load_fragments<kSteps, 16>(queries, a.nope_dim + a.rotary_dim, q);

  const float scale = a.softmax_scale * kLog2e;
  float o[kTilesO][4] = {};
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};  // base 2; the sums are those of this lane's columns
  for (int32_t key = 0, buffer = 0; key < end; key += kKeys, buffer ^= 1) {
    ptx::cp_async_wait<0>();
    __syncthreads();  // the tile has arrived, and the other one has been read
    start(key + kKeys, buffer ^ 1);

    float s[kTilesS][4] = {};
    const uint32_t keys = ptx::shared_address(shared.keys[buffer]) + swizzled<kKeyDim>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int n = 0; n < kTilesS / 2; ++n) {
        uint32_t k[4];
        ptx::ldmatrix_x4(k, advance_chunks(keys, step * 2) + n * 16 * kKeyDim * 2);
        ptx::mma_m16n8k16_bf16(s[2 * n], q[step], k[0], k[1]);
        ptx::mma_m16n8k16_bf16(s[2 * n + 1], q[step], k[2], k[3]);
      }
    }

    const bool all_visible = key + kKeys <= min(visible[0], end);
    float rescale[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t limit = min(visible[half], end) - key;
      float tile_max = -INFINITY;
#pragma unroll
      for (int n = 0; n < kTilesS; ++n) {
#pragma unroll
        for (int j = 2 * half; j < 2 * half + 2; ++j) {
          s[n][j] = all_visible || n * 8 + lane % 4 * 2 + j % 2 < limit ? s[n][j] * scale : -INFINITY;
          tile_max = fmaxf(tile_max, s[n][j]);
        }
      }
      const float new_max = fmaxf(max[half], lanes_max<4>(tile_max)), base = new_max == -INFINITY ? 0.0f : new_max;
      rescale[half] = ptx::ex2(max[half] - base);
      max[half] = new_max;
      sum[half] *= rescale[half];
#pragma unroll
      for (int n = 0; n < kTilesS; ++n) {
#pragma unroll
        for (int j = 2 * half; j < 2 * half + 2; ++j) {
          s[n][j] = ptx::ex2(s[n][j] - base);
          sum[half] += s[n][j];
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kTilesO; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) o[n][j] *= rescale[j / 2];
    }

    const uint32_t values = ptx::shared_address(shared.values[buffer]) + swizzled<kValueDim>(lane % 16, lane / 16);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      // The accumulators' layout of two tiles of S is the operand's layout of one of P.
      const float(&left)[4] = s[2 * step], (&right)[4] = s[2 * step + 1];
      const uint32_t weights[4] = {ptx::cvt_bf16x2(left[0], left[1]), ptx::cvt_bf16x2(left[2], left[3]),
                                   ptx::cvt_bf16x2(right[0], right[1]), ptx::cvt_bf16x2(right[2], right[3])};
#pragma unroll
      for (int n = 0; n < kTilesO / 2; ++n) {
        uint32_t v[4];
        ptx::ldmatrix_x4_trans(v, advance_chunks(values, n * 2) + step * 16 * kValueDim * 2);
        ptx::mma_m16n8k16_bf16(o[2 * n], weights, v[0], v[1]);
        ptx::mma_m16n8k16_bf16(o[2 * n + 1], weights, v[2], v[3]);
      }
    }
  }

  uint32_t nan_lanes[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = lanes_sum<4>(sum[half]);
    const int32_t query = row + 8 * half;
    bool nan = false;
#pragma unroll
    for (int n = 0; n < kTilesO; ++n) nan |= o[n][2 * half] != o[n][2 * half] || o[n][2 * half + 1] != o[n][2 * half + 1];
    nan_lanes[half] = __ballot_sync(kAllLanes, nan && query < r.num_queries);
    if (query >= r.num_queries) continue;
    const int64_t token = int64_t{r.first_query} + query;
    const float factor = total == 0.0f ? 0.0f : 1.0f / total;  // otherwise the largest logit has added 1, or is NaN itself
    const int64_t offset = token * a.out_stride.token + head * a.out_stride.head;
#pragma unroll
    for (int n = 0; n < kTilesO; ++n) store_pair(a, offset, n * 8 + lane % 4 * 2, o[n][2 * half] * factor, o[n][2 * half + 1] * factor);
    if (a.lse != nullptr && lane % 4 == 0) {
      a.lse[token * a.lse_stride.token + head * a.lse_stride.head] = total == 0.0f ? -INFINITY : (max[half] + log2f(total)) * kLn2;
    }
  }

  // A NaN may come from a value that only later queries of the tile see.
  if (!a.causal) return;
  __syncwarp();
  for (int i = 0; i < 16; ++i) {
    if ((nan_lanes[i / 8] >> (i % 8 * 4) & 0xFu) != 0)
      prefill_query_again(a, r, int64_t{r.first_query} + first_query + warp * 16 + i, head);
  }
}

}  // namespace

void dense_prefill_run(const DensePrefill& a, const ExecutionContext& context) {
  const int64_t blocks_per_head = ceil_div(a.max_query_len, kQueries), blocks = blocks_per_head * a.num_heads * a.num_requests;
  if (blocks == 0) return;
  allow_shared_bytes(dense_prefill_kernel, sizeof(Shared));
  dense_prefill_kernel<<<blocks_for(blocks, 1), kThreads, sizeof(Shared), native(context.stream)>>>(
      a, Divisor(static_cast<int32_t>(blocks_per_head)), Divisor(a.num_heads));
  check_launch("dense_prefill_kernel");
}

}  // namespace strata::cuda
