// Attention over rows that are both key and value, on mma.sync. A CTA has up to kHeads (query token, head) pairs that attend to the same
// rows, and loops over a split of those rows, kRows at a time:
//   convert this tile to bf16 | start the copies of the next one | S = Q K^T | softmax in base 2 | O = O * rescale + P V, V being K's tile
// Warps divide S = Q K^T into kWarpsM x kWarpsN tiles, kWarpsK of them over a share of the dimensions each. They divide O by its columns,
// so that every value is loaded from shared memory once. With few heads Q stays in registers.
//
// Floors of a (token, head, row): 2 (D + 512) flops at the tensor cores' mma.sync rate, which on Hopper is about 0.6 of wgmma's; of a
// (token, row): the bytes of the row, where rows are not shared. Shared memory is the next limit: a tile is written once or twice and read
// by ldmatrix for S and for O.
#pragma once

#include <cmath>

#include "backends/cuda/device/warp.cuh"
#include "backends/cuda/portable_attention/row_attention_plan.h"
#include "backends/cuda/portable_attention/rows.cuh"
#include "backends/cuda/portable_attention/token_address.cuh"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/grid.h"
#include "backends/cuda/runtime/launch_config.h"

namespace strata::cuda {

template <int kDim_, int kHeads_, int kRows_, int kWarpsM_, int kWarpsN_, int kWarpsK_, bool kQueryInRegisters_, int kBlocksPerSm_>
struct RowAttentionConfig {
  static constexpr int kDim = kDim_, kHeads = kHeads_, kRows = kRows_;
  static constexpr int kWarpsM = kWarpsM_, kWarpsN = kWarpsN_, kWarpsK = kWarpsK_;
  static constexpr bool kQueryInRegisters = kQueryInRegisters_;
  static constexpr int kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kWarps = kWarpsM * kWarpsN * kWarpsK, kThreads = 32 * kWarps;

  // Tiles of S = Q K^T of one warp, and steps of 16 dimensions.
  static constexpr int kTilesM = kHeads / kWarpsM / 16, kTilesN = kRows / kWarpsN / 8, kSteps = kDim / kWarpsK / 16;
  // Tiles of O of one warp: all heads, a share of the columns.
  static constexpr int kOutM = kHeads / 16, kColumns = kRowValueDim / kWarps, kOutN = kColumns / 8;
  // Partial sums of S: half of the warps that share a tile by dimensions add theirs to what the other half wrote.
  static constexpr int kPartials = kWarpsK > 1 ? kWarpsK / 2 : 1;
  static constexpr int kLogitPitch = kRows + 8;        // floats: no bank conflicts of the accumulators' layout
  static constexpr int kWeightPitch = kRows * 2 + 16;  // bytes: ldmatrix without bank conflicts
  static constexpr int kThreadsPerHead = kThreads / kHeads, kLogits = kRows / kThreadsPerHead;  // softmax
  static_assert(kDim % (16 * kWarpsK) == 0 && kTilesN % 2 == 0 && kOutN % 2 == 0 && kRows % 32 == 0 && kLogits % 4 == 0);
  static_assert(kThreads >= kRows && kThreadsPerHead <= 32);
  static_assert(!kQueryInRegisters || kHeads == 16);
  static_assert(8 % (2 * kWarpsK) == 0 && kColumns % 32 == 0);  // what advance_chunks requires
};

template <class C>
struct RowAttentionShared {
  alignas(128) uint8_t tile[2][C::kRows * C::kDim * 2];
  alignas(16) uint8_t query[C::kQueryInRegisters ? 16 : C::kHeads * C::kDim * 2];
  alignas(16) float logits[C::kPartials][C::kHeads * C::kLogitPitch];
  alignas(16) uint8_t weights[C::kHeads * C::kWeightPitch];
  alignas(16) uint8_t scales[C::kRows * 16];
  RowAddresses<C::kRows> rows[2];
  float factor[C::kHeads];  // of O: its rescale factor in a tile, at the end its normaliser
};

// A pair of the unit.
struct HeadRow {
  int32_t query;  // of the unit
  int32_t head;
  bool exists;
};

// What a block works on.
struct BlockWork {
  int32_t first_token = 0, num_queries = 1;  // of the unit
  int32_t batch = 0, query = 0;              // of the tables: the token's (sparse) or the unit's (dense)
  int32_t first_pair = 0;                    // among the unit's (token, head) pairs
  int32_t seq_len = 0;                       // dense
  int32_t rows = 0, extra_rows = 0;          // of each scope, those that the CTA's pairs see
  int32_t common_rows = INT32_MAX;           // dense: those that all of its pairs see
};

__device__ __forceinline__ HeadRow head_row(const RowAttention& a, const RowAttentionPlan& plan, const BlockWork& w, int pair) {
  const int32_t index = w.first_pair + pair, query = plan.head_rows.divide(index), head = index - query * plan.head_rows.value();
  return {query, head, query < w.num_queries && head < a.num_heads};
}

// Of this split's results.
__device__ __forceinline__ int64_t partial_row(const RowAttention& a, int32_t token, int32_t head) {
  return (blockIdx.y * a.num_tokens + token) * a.num_heads + head;
}

template <class C>
__device__ __forceinline__ BlockWork block_work(const RowAttention& a, const RowAttentionPlan& plan) {
  const auto block = static_cast<int32_t>(blockIdx.x), unit = plan.blocks_per_unit.divide(block);
  BlockWork w;
  w.first_pair = (block - unit * plan.blocks_per_unit.value()) * C::kHeads;
  if (a.query_start_loc != nullptr) {
    w.batch = unit;
    w.first_token = a.query_start_loc[unit] - a.query_start_loc[0];
    w.num_queries = a.query_start_loc[unit + 1] - a.query_start_loc[unit];
    w.seq_len = a.seq_lens[unit];
    const int32_t last = min(plan.head_rows.divide(w.first_pair + C::kHeads - 1), w.num_queries - 1);
    w.rows = max(w.seq_len + (last + 1 - w.num_queries) * a.causal, 0);
    w.common_rows = max(w.rows + (plan.head_rows.divide(w.first_pair) - last) * a.causal, 0);
    return w;
  }
  w.first_token = unit;
  w.batch = a.queries_per_batch.divide(unit);
  w.query = unit - w.batch * a.queries_per_batch.value();
  const auto rows_of = [&](const RowScope& s) { return s.length == nullptr ? s.width : min(max(s.length[w.batch], 0), s.width); };
  w.rows = rows_of(a.scopes[0]);
  if (a.num_scopes > 1) w.extra_rows = rows_of(a.scopes[1]);
  return w;
}

// The table's entry for row start + threadIdx.x of a scope, -1 where there is none. Loaded two tiles ahead, so that nothing waits for it.
template <int kRows>
__device__ __forceinline__ int32_t table_entry(const RowAttention& a, const BlockWork& w, int scope, int32_t start) {
  const RowScope& s = a.scopes[scope];
  const int32_t position = start + static_cast<int32_t>(threadIdx.x);
  const bool exists = threadIdx.x < kRows && position < (scope == 0 ? w.rows : w.extra_rows);
  const int32_t index = a.query_start_loc != nullptr ? s.page_size.divide(exists ? position : 0) : position;
  return exists ? s.table[w.batch * s.table_batch + w.query * s.table_query + index] : -1;
}

// The address of that row.
template <int kRows>
__device__ __forceinline__ void keep_row(const RowAttention& a, int scope, int32_t start, int32_t entry, RowAddresses<kRows>& rows) {
  if (threadIdx.x >= kRows) return;
  const RowScope& s = a.scopes[scope];
  const bool present = static_cast<uint32_t>(entry) < static_cast<uint32_t>(s.num_rows);
  const int32_t position = start + static_cast<int32_t>(threadIdx.x);
  const bool dense = a.query_start_loc != nullptr;
  const int32_t quotient = s.page_size.divide(!present ? 0 : dense ? position : entry);
  const int32_t row = (dense ? position : entry) - quotient * s.page_size.value();
  const int64_t offset = (dense ? entry : quotient) * s.page_stride + row * s.row_bytes;
  rows.data[threadIdx.x] = present ? s.data + offset : s.data;
  rows.scales[threadIdx.x] =
      present ? static_cast<int32_t>(s.scale_offset - row * (s.row_bytes - row_scale_bytes(KvFormat::fp8_ds_mla_v4))) : 0;
  const uint32_t bits = __ballot_sync(kAllLanes, present);
  if (threadIdx.x % 32 == 0) rows.present[threadIdx.x / 32] = bits;
}

// Lane l's fragments of Q in mma's layout.
template <class C>
__device__ __forceinline__ void load_query_fragments(const RowAttention& a, const RowAttentionPlan& plan, const BlockWork& w, int warp_k,
                                                     uint32_t (&q)[C::kSteps][4]) {
  const int lane = threadIdx.x % 32;
  const Bf16* rows[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const HeadRow r = head_row(a, plan, w, lane / 4 + 8 * i);
    rows[i] = r.exists ? a.q + token_offset(a, a.q_stride, w.first_token + r.query, r.head) + 16 * warp_k + 2 * (lane % 4) : nullptr;
  }
  load_fragments<C::kSteps, 16 * C::kWarpsK>(rows, C::kDim, q);
}

template <class C>
__device__ __forceinline__ void load_query_tile(const RowAttention& a, const RowAttentionPlan& plan, const BlockWork& w, uint8_t* tile) {
  for (int pair = threadIdx.x / 32; pair < C::kHeads; pair += C::kWarps) {
    const HeadRow r = head_row(a, plan, w, pair);
    const auto* q =
        r.exists ? reinterpret_cast<const uint8_t*>(a.q + token_offset(a, a.q_stride, w.first_token + r.query, r.head)) : nullptr;
    const bool is_aligned = aligned(q, 16);
    for (int c = threadIdx.x % 32; c < C::kDim / 8; c += 32) {
      uint8_t* to = tile + swizzled<C::kDim>(pair, c);
      if (q != nullptr && is_aligned) {
        ptx::cp_async_16(ptx::shared_address(to), q + c * 16);
      } else {
        copy_slowly<16>(to, q + c * 16, q != nullptr);
      }
    }
  }
}

// This warp's tiles of S = Q K^T, over its share of the dimensions: every kWarpsK-th step of 16.
template <class C>
__device__ __forceinline__ void multiply_keys(const RowAttentionShared<C>& shared, const uint8_t* tile,
                                              const uint32_t (&q)[C::kQueryInRegisters ? C::kSteps : 1][4], int warp_m, int warp_n,
                                              int warp_k, float (&s)[C::kTilesM][C::kTilesN][4]) {
  const int lane = threadIdx.x % 32;
  const int key = warp_n * C::kTilesN * 8 + lane % 8 + lane / 16 * 8, head = warp_m * C::kTilesM * 16 + lane % 16;
  const uint32_t key_address = ptx::shared_address(tile) + swizzled<C::kDim>(key, warp_k * 2 + lane / 8 % 2);
  const uint32_t head_address = ptx::shared_address(shared.query) + swizzled<C::kDim>(head, warp_k * 2 + lane / 16);
  // Operands of two steps: the next one's load while this one's are multiplied.
  uint32_t heads[2][C::kTilesM][4], keys[2][C::kTilesN / 2][4];
  const auto load = [&](int step) {
    if constexpr (!C::kQueryInRegisters) {
#pragma unroll
      for (int m = 0; m < C::kTilesM; ++m)
        ptx::ldmatrix_x4(heads[step % 2][m], advance_chunks(head_address, step * C::kWarpsK * 2) + m * 16 * C::kDim * 2);
    }
#pragma unroll
    for (int n = 0; n < C::kTilesN / 2; ++n)
      ptx::ldmatrix_x4(keys[step % 2][n], advance_chunks(key_address, step * C::kWarpsK * 2) + n * 16 * C::kDim * 2);
  };
  load(0);
#pragma unroll
  for (int step = 0; step < C::kSteps; ++step) {
    if (step + 1 < C::kSteps) load(step + 1);
#pragma unroll
    for (int m = 0; m < C::kTilesM; ++m) {
#pragma unroll
      for (int n = 0; n < C::kTilesN; ++n) {
        const uint32_t(&k)[4] = keys[step % 2][n / 2];
        if constexpr (C::kQueryInRegisters) {
          ptx::mma_m16n8k16_bf16(s[m][n], q[step], k[n % 2 * 2], k[n % 2 * 2 + 1]);
        } else {
          ptx::mma_m16n8k16_bf16(s[m][n], heads[step % 2][m], k[n % 2 * 2], k[n % 2 * 2 + 1]);
        }
      }
    }
  }
}

// Stores all warps' tiles of S to shared memory, summed except for kPartials addends.
template <class C>
__device__ __forceinline__ void share_logits(RowAttentionShared<C>& shared, float (&s)[C::kTilesM][C::kTilesN][4], int warp_m, int warp_n,
                                             int warp_k) {
  const int lane = threadIdx.x % 32;
  const auto for_each = [&](int slice, auto&& f) {
#pragma unroll
    for (int m = 0; m < C::kTilesM; ++m) {
#pragma unroll
      for (int n = 0; n < C::kTilesN; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = (warp_m * C::kTilesM + m) * 16 + half * 8 + lane / 4, column = (warp_n * C::kTilesN + n) * 8 + lane % 4 * 2;
          f(*reinterpret_cast<float2*>(&shared.logits[slice][row * C::kLogitPitch + column]), s[m][n][2 * half], s[m][n][2 * half + 1]);
        }
      }
    }
  };
  const auto store = [](float2& to, float x, float y) { to = make_float2(x, y); };
  if constexpr (C::kWarpsK == 1) {
    for_each(0, store);
  } else {
    if (warp_k >= C::kPartials) for_each(warp_k - C::kPartials, store);
    __syncthreads();
    if (warp_k < C::kPartials) {
      for_each(warp_k, [](float2& to, float x, float y) { to = make_float2(to.x + x, to.y + y); });
    }
  }
}

// Running maximum and sum of one head, in base 2. kThreadsPerHead neighbouring lanes own a head; they hold the same maximum and separate
// shares of the sum. Weights and sums are relative to the exact maximum, so the largest weight is exactly 1. A stale maximum would save O
// most rescaling (3% of the time of a prefill), but the rounding to bf16 raised the output's error by a tenth.
struct HeadState {
  float max = -INFINITY;
  float sum = 0.0f;
};

// Converts logits of one tile to weights; returns the factor that rescales O. `visible`: rows of the tile that the head may see.
template <class C>
__device__ __forceinline__ float softmax_tile(RowAttentionShared<C>& shared, const RowAddresses<C::kRows>& rows, HeadState& state,
                                              float scale, float value_scale, int32_t visible) {
  const int head = threadIdx.x / C::kThreadsPerHead, head_thread = threadIdx.x % C::kThreadsPerHead;
  float logits[C::kLogits];
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < C::kLogits / 4; ++i) {
    const int column = 4 * (head_thread + i * C::kThreadsPerHead);
    float4 v = *reinterpret_cast<const float4*>(&shared.logits[0][head * C::kLogitPitch + column]);
#pragma unroll
    for (int k = 1; k < C::kPartials; ++k) {
      const float4 other = *reinterpret_cast<const float4*>(&shared.logits[k][head * C::kLogitPitch + column]);
      v = make_float4(v.x + other.x, v.y + other.y, v.z + other.z, v.w + other.w);
    }
    const float values[4] = {v.x, v.y, v.z, v.w};
    const int32_t seen = min(max(visible - column, 0), 4);
    const uint32_t attended = (rows.present[column / 32] >> (column % 32)) & ((1u << seen) - 1u);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      logits[4 * i + j] = (attended & (1u << j)) != 0 ? values[j] : -INFINITY;
      largest = fmaxf(largest, logits[4 * i + j]);
    }
  }
  const float max_logit = fmaxf(state.max, lanes_max<C::kThreadsPerHead>(largest) * scale);
  const float rescale = max_logit > state.max ? ptx::ex2(state.max - max_logit) : 1.0f;
  const float base = max_logit == -INFINITY ? 0.0f : max_logit;  // nothing attended yet: every weight below is 0
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < C::kLogits / 4; ++i) {
    float weights[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      weights[j] = ptx::ex2(fmaf(logits[4 * i + j], scale, -base));
      sum += weights[j];
    }
    const int column = 4 * (head_thread + i * C::kThreadsPerHead);
    *reinterpret_cast<uint2*>(shared.weights + head * C::kWeightPitch + column * 2) =
        make_uint2(ptx::cvt_bf16x2(weights[0] * value_scale, weights[1] * value_scale),
                   ptx::cvt_bf16x2(weights[2] * value_scale, weights[3] * value_scale));
  }
  state.sum = state.sum * rescale + sum;
  state.max = max_logit;
  if (head_thread == 0) shared.factor[head] = rescale;
  return rescale;
}

// A weight of 0 does not stop a NaN or an infinity, which must not reach queries that do not see its row. From row `first` of the tile on,
// rows with such values become zeros. For queries that see such a row the logits are NaN, or -inf, which has weight 0. Not inlined:
// inlining costs the loop 2%.
template <class C>
__device__ __noinline__ void clear_infinite_rows(uint8_t* tile, int32_t first) {
  constexpr uint32_t kExponents = 0x7F807F80u;
  const int lane = threadIdx.x % 32;
  for (int32_t row = first + static_cast<int32_t>(threadIdx.x / 32); row < C::kRows; row += C::kWarps) {
    auto* values = reinterpret_cast<uint4*>(tile + row * C::kDim * 2);  // the order of the chunks does not matter
    uint32_t infinite = 0;
#pragma unroll
    for (int c = 0; c < kRowValueDim / 8; c += 32) {
      const uint4 v = values[c + lane];
      infinite |= __vcmpeq2(v.x & kExponents, kExponents) | __vcmpeq2(v.y & kExponents, kExponents) |
                  __vcmpeq2(v.z & kExponents, kExponents) | __vcmpeq2(v.w & kExponents, kExponents);
    }
    if (!__any_sync(kAllLanes, infinite != 0)) continue;
#pragma unroll
    for (int c = 0; c < kRowValueDim / 8; c += 32) values[c + lane] = make_uint4(0, 0, 0, 0);
  }
}

template <class C>
__device__ __forceinline__ void rescale_values(const RowAttentionShared<C>& shared, float (&o)[C::kOutM][C::kOutN][4]) {
#pragma unroll
  for (int m = 0; m < C::kOutM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float factor = shared.factor[m * 16 + half * 8 + threadIdx.x % 32 / 4];
#pragma unroll
      for (int n = 0; n < C::kOutN; ++n) {
        o[m][n][2 * half] *= factor;
        o[m][n][2 * half + 1] *= factor;
      }
    }
  }
}

// O += P V, this warp's columns.
template <class C>
__device__ __forceinline__ void multiply_values(const RowAttentionShared<C>& shared, const uint8_t* tile,
                                                float (&o)[C::kOutM][C::kOutN][4]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t value_address = ptx::shared_address(tile) + swizzled<C::kDim>(lane % 16, warp * C::kColumns / 8 + lane / 16);
  const uint32_t weights_address = ptx::shared_address(shared.weights) + lane % 16 * C::kWeightPitch + lane / 16 * 16;
  // As for S: the next operands load while these are multiplied.
  constexpr int kPairs = C::kOutN / 2, kCount = C::kRows / 16 * kPairs;
  uint32_t weights[2][C::kOutM][4], values[2][4];
  const auto load_weights = [&](int step) {
#pragma unroll
    for (int m = 0; m < C::kOutM; ++m) ptx::ldmatrix_x4(weights[step % 2][m], weights_address + m * 16 * C::kWeightPitch + step * 32);
  };
  const auto load_values = [&](int i) {
    ptx::ldmatrix_x4_trans(values[i % 2], advance_chunks(value_address, i % kPairs * 2) + i / kPairs * 16 * C::kDim * 2);
  };
  load_weights(0);
  load_values(0);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int step = i / kPairs, n = i % kPairs;
    if (i + 1 < kCount) load_values(i + 1);
    if (n == 0 && step + 1 < C::kRows / 16) load_weights(step + 1);
#pragma unroll
    for (int m = 0; m < C::kOutM; ++m) {
      ptx::mma_m16n8k16_bf16(o[m][2 * n], weights[step % 2][m], values[i % 2][0], values[i % 2][1]);
      ptx::mma_m16n8k16_bf16(o[m][2 * n + 1], weights[step % 2][m], values[i % 2][2], values[i % 2][3]);
    }
  }
}

// This split's O, normalised: four lanes write 32 consecutive bytes.
template <class C>
__device__ __forceinline__ void store_partial_values(const RowAttention& a, const RowAttentionPlan& plan, const BlockWork& w,
                                                     const RowAttentionShared<C>& shared, const float (&o)[C::kOutM][C::kOutN][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < C::kOutM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pair = m * 16 + half * 8 + lane / 4;
      const HeadRow r = head_row(a, plan, w, pair);
      if (!r.exists) continue;
      const float factor = shared.factor[pair];
      float* target =
          plan.partial_out + partial_row(a, w.first_token + r.query, r.head) * kRowValueDim + threadIdx.x / 32 * C::kColumns + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < C::kOutN; ++n) {
        *reinterpret_cast<float2*>(target + n * 8) = make_float2(o[m][n][2 * half] * factor, o[m][n][2 * half + 1] * factor);
      }
    }
  }
}

// The call's result. Sixteen heads at a time go through the shared memory of the rows: the code that writes them is a loop, and the stores
// are contiguous.
template <class C>
__device__ __forceinline__ void store_values(const RowAttention& a, const RowAttentionPlan& plan, const BlockWork& w,
                                             RowAttentionShared<C>& shared, const float (&o)[C::kOutM][C::kOutN][4]) {
  constexpr int kPitch = kRowValueDim + 8;  // no bank conflicts
  static_assert(sizeof(shared.tile) >= 16 * kPitch * sizeof(float));
  auto* staged = reinterpret_cast<float*>(shared.tile);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int m = 0; m < C::kOutM; ++m) {
    __syncthreads();  // the previous contents have been read
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* row = staged + (half * 8 + lane / 4) * kPitch + warp * C::kColumns + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < C::kOutN; ++n) *reinterpret_cast<float2*>(row + n * 8) = make_float2(o[m][n][2 * half], o[m][n][2 * half + 1]);
    }
    __syncthreads();
#pragma unroll 1
    for (int row = warp; row < 16; row += C::kWarps) {
      const HeadRow r = head_row(a, plan, w, m * 16 + row);
      if (!r.exists) continue;
      const float factor = shared.factor[m * 16 + row];
      Bf16* out = a.out + token_offset(a, a.out_stride, w.first_token + r.query, r.head);
#pragma unroll 4
      for (int column = 2 * lane; column < kRowValueDim; column += 64) {
        const float2 v = *reinterpret_cast<const float2*>(staged + row * kPitch + column);
        store_out_pair(out, column, a.value_dim, v.x * factor, v.y * factor);
      }
    }
  }
}

// The scalars of one head: returns the factor of its O.
template <class C>
__device__ __forceinline__ float finish_head(const RowAttention& a, const RowAttentionPlan& plan, const BlockWork& w,
                                             const HeadState& state) {
  const float sum = lanes_sum<C::kThreadsPerHead>(state.sum);
  const HeadRow r = head_row(a, plan, w, threadIdx.x / C::kThreadsPerHead);
  const bool empty = sum == 0.0f;  // otherwise the largest logit has added 1, or is NaN itself
  const bool writes = r.exists && threadIdx.x % C::kThreadsPerHead == 0;
  const int32_t token = w.first_token + r.query;
  if (plan.num_splits > 1) {
    const int64_t row = partial_row(a, token, r.head);
    if (writes) plan.partial_lse[row] = empty ? -INFINITY : state.max + log2f(sum);
    if (writes && a.max_logits != nullptr) plan.partial_max[row] = state.max;
    return empty ? 0.0f : 1.0f / sum;
  }
  if (writes && a.lse != nullptr) a.lse[token_offset(a, a.lse_stride, token, r.head)] = empty ? INFINITY : (state.max + log2f(sum)) * kLn2;
  if (writes && a.max_logits != nullptr) a.max_logits[token_offset(a, a.max_stride, token, r.head)] = state.max * kLn2;
  const float sink = a.sink != nullptr && r.exists ? exp2f(a.sink[r.head] * kLog2e - state.max) : 0.0f;
  return empty ? 0.0f : 1.0f / (sum + sink);
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm)
    row_attention_kernel(const __grid_constant__ RowAttention a, const __grid_constant__ RowAttentionPlan plan) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<RowAttentionShared<C>*>(shared_bytes);
  const BlockWork w = block_work<C>(a, plan);
  if (w.first_pair >= w.num_queries * plan.head_rows.value()) return;
  // Tiles of the first scope, then of the second one; this split's share of them.
  const int32_t tiles_first = (w.rows + C::kRows - 1) / C::kRows, num_tiles = tiles_first + (w.extra_rows + C::kRows - 1) / C::kRows;
  const int32_t splits = max(min(plan.num_splits, num_tiles / plan.min_tiles), 1), share = (num_tiles + splits - 1) / splits;
  const int32_t begin = min(static_cast<int32_t>(blockIdx.y) * share, num_tiles), end = min(begin + share, num_tiles);
  const auto scope_of = [&](int32_t t) { return t < tiles_first ? 0 : 1; };
  const auto start_of = [&](int32_t t) { return (t < tiles_first ? t : t - tiles_first) * C::kRows; };
  const auto entry_of = [&](int32_t t) { return t < end ? table_entry<C::kRows>(a, w, scope_of(t), start_of(t)) : -1; };
  const auto keep = [&](int32_t t, int32_t entry) { keep_row(a, scope_of(t), start_of(t), entry, shared.rows[(t - begin) % 2]); };
  const auto start = [&](int32_t t, int buffer) {
    if (t < end)
      start_rows<C::kDim, C::kRows, C::kWarps>(a.scopes[scope_of(t)], shared.rows[(t - begin) % 2], shared.tile[buffer], shared.scales);
    ptx::cp_async_commit();
  };

  const int warp = threadIdx.x / 32, warp_m = warp % C::kWarpsM, warp_n = warp / C::kWarpsM % C::kWarpsN,
            warp_k = warp / (C::kWarpsM * C::kWarpsN);
  uint32_t q[C::kQueryInRegisters ? C::kSteps : 1][4];
  if constexpr (!C::kQueryInRegisters) load_query_tile<C>(a, plan, w, shared.query);
  keep(begin, entry_of(begin));
  int32_t next = entry_of(begin + 1);
  __syncthreads();
  start(begin, 0);
  if constexpr (C::kQueryInRegisters) load_query_fragments<C>(a, plan, w, warp_k, q);

  HeadState state;
  const HeadRow softmax_row = head_row(a, plan, w, threadIdx.x / C::kThreadsPerHead);
  const int32_t visible = a.query_start_loc == nullptr ? INT32_MAX : w.seq_len + (softmax_row.query + 1 - w.num_queries) * a.causal;
  const float scale = a.softmax_scale * kLog2e;
  float o[C::kOutM][C::kOutN][4] = {};
  int buffer = 0;  // of the tile that comes next, then of its bf16 rows
  for (int32_t t = begin; t < end; ++t, buffer ^= 1) {
    const RowScope& scope = a.scopes[scope_of(t)];
    keep(t + 1, next);
    ptx::cp_async_wait<0>();
    __syncthreads();  // the tile has arrived, and the other buffer has been read
    if (scope.format != KvFormat::bf16) {
      convert_rows<C::kDim, C::kRows, C::kThreads>(scope.format, shared.tile[buffer], shared.scales, shared.tile[buffer ^ 1]);
      buffer ^= 1;
      __syncthreads();
    }
    uint8_t* tile = shared.tile[buffer];
    start(t + 1, buffer ^ 1);
    next = entry_of(t + 2);
    {
      float s[C::kTilesM][C::kTilesN][4] = {};
      multiply_keys<C>(shared, tile, q, warp_m, warp_n, warp_k, s);
      share_logits<C>(shared, s, warp_m, warp_n, warp_k);
    }
    __syncthreads();
    if (w.common_rows - start_of(t) < C::kRows) clear_infinite_rows<C>(tile, max(w.common_rows - start_of(t), 0));
    const float rescale =
        softmax_tile<C>(shared, shared.rows[(t - begin) % 2], state, scale * scope.scale, scope.scale, visible - start_of(t));
    if (__syncthreads_or(rescale != 1.0f)) rescale_values<C>(shared, o);
    multiply_values<C>(shared, tile, o);
  }

  const float factor = finish_head<C>(a, plan, w, state);
  __syncthreads();  // the last rescaling has been read
  if (threadIdx.x % C::kThreadsPerHead == 0) shared.factor[threadIdx.x / C::kThreadsPerHead] = factor;
  __syncthreads();
  if (plan.num_splits == 1) {
    store_values<C>(a, plan, w, shared, o);
  } else if (begin < end) {  // a partial result whose lse says empty is not read
    store_partial_values<C>(a, plan, w, shared, o);
  }
}

template <class C>
void launch_row_attention(const RowAttention& a, const RowAttentionPlan& plan, cudaStream_t stream) {
  allow_shared_bytes(row_attention_kernel<C>, static_cast<size_t>(plan.tile.shared_bytes));
  const dim3 grid(blocks_for(plan.num_blocks, 1), static_cast<unsigned>(plan.num_splits));
  row_attention_kernel<C><<<grid, C::kThreads, static_cast<size_t>(plan.tile.shared_bytes), stream>>>(a, plan);
  check_launch("row_attention_kernel");
}

template <class C>
RowAttentionTile row_attention_tile() {
  constexpr int kSharedBytes = sizeof(RowAttentionShared<C>);
  static_assert(kSharedBytes <= 227 * 1024, "what a block of sm_90 can have");
  return {C::kDim, C::kHeads, C::kRows, kSharedBytes, C::kBlocksPerSm, launch_row_attention<C>};
}

}  // namespace strata::cuda
