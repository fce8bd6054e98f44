// Flash attention over keys of 128 + 64 dimensions and values of 128 in memory, on Hopper: V3's prefill.
//
// Arithmetic of a tile of 128 queries and 128 keys, cycles of one SM: logits 128 x 128 x 192 and values 128 x 128 x 128 at 2048 bf16 FMA a
// cycle, 1536 + 1024; exponentials 16384 at 16 a cycle, 1024, concurrently with the products of the other warpgroup; shared memory, 128 B a
// cycle, keys and queries of logits 12 x 2 x 48, values 8 x 2 x 32, 80 KB written: 2300.
//
// Roles: one warp loads queries, keys and values by TMA, ahead across items; two warpgroups have 64 queries each. A tile's logits are
// multiplied concurrently with the values of the previous tile; while one warpgroup is in its softmax, the other multiplies. Weights stay
// in registers.
#pragma once

#include "backends/cuda/dense_attn_prefill/sm90/config.h"
#include "backends/cuda/device/pipeline_state.cuh"
#include "backends/cuda/device/transpose_quad.cuh"
#include "backends/cuda/device/warp.cuh"
#include "backends/cuda/device/warp_barrier.cuh"
#include "backends/cuda/portable_attention/prefill_again.cuh"
#include "backends/cuda/portable_attention/token_address.cuh"
#include "backends/cuda/ptx/arithmetic.cuh"
#include "backends/cuda/ptx/convert.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/ptx/tma.cuh"
#include "backends/cuda/ptx/warpgroup.cuh"
#include "backends/cuda/ptx/wgmma_offset.cuh"
#include "backends/cuda/ptx/wgmma_bf16.cuh"

namespace strata::cuda::dense_prefill {

struct Item {
  RequestRange r;
  int32_t head, first_query;
  int32_t sees;   // query i of the request sees the keys before i + sees; not causal: before sees
  int32_t end;    // number of keys that the last query sees
  int32_t tiles;  // of keys; 0: no query sees a key, or there are no queries
  __device__ __forceinline__ Item(const Args& a, int32_t number) {
    const int32_t request = a.items_of_request.divide(number), in_request = number - request * a.items_of_request.value();
    const int32_t group = a.items_of_group.divide(in_request), in_group = in_request - group * a.items_of_group.value();
    const int32_t of_head = a.heads_of_group.divide(in_group);
    head = group * a.heads_of_group.value() + in_group - of_head * a.heads_of_group.value();
    r = request_range(a.call, request);
    first_query = (a.tiles - 1 - of_head) * kQueries;
    sees = a.call.causal ? r.num_keys - r.num_queries + 1 : r.num_keys;
    const int32_t last_query = min(first_query + kQueries, r.num_queries) - 1;
    end = max(a.call.causal ? last_query + sees : sees, 0);
    // Warp-uniform, also for the compiler.
    tiles = __shfl_sync(kAllLanes, has_queries() ? (end + kKeys - 1) / kKeys : 0, 0);
  }
  __device__ __forceinline__ bool has_queries() const { return first_query < r.num_queries; }
};

// By one warp, of which one lane issues the copies. It assigns the CTA's items dynamically.
__device__ __forceinline__ void produce(const Args& a, SharedMemory& s) {
  const bool is_loader = threadIdx.x % 32 == 0;
  PipelineState<kStages> keys, values;
  PipelineState<kWorkQueueSlots> queue;
  uint32_t q_parity = 1;
  auto number = static_cast<int32_t>(blockIdx.x);
  while (number < a.num_items) {
    const Item item(a, number);
    int32_t next = 0;
    // If the first CTA starts so late that it has not yet initialised the counter, then the stale value either ends this CTA's items or
    // makes it repeat another CTA's. The first CTA still assigns all of them.
    const auto take_next = [&] { next = static_cast<int32_t>(min(atomicAdd(a.next_item, 1u), static_cast<uint32_t>(a.num_items))); };
    if (is_loader && item.tiles > 0) {
      const uint32_t full = ptx::shared_address(&s.q_full);
      wait(s.q_empty, q_parity);
      ptx::mbarrier_arrive_expect_tx(full, kKeyChunks * kChunkBytes);
      ptx::tma_load_groups(ptx::shared_address(s.q), &a.q, item.r.first_query + item.first_query, 0, item.head, full);
      const auto load_keys = [&](int32_t t) {
        const uint32_t there = ptx::shared_address(&s.keys_full[keys.index]), row = item.r.first_key + t * kKeys;
        wait(s.keys_empty[keys.index], keys.parity ^ 1);
        ptx::mbarrier_arrive_expect_tx(there, kKeyChunks * kChunkBytes);
        ptx::tma_load_groups(ptx::shared_address(s.keys[keys.index]), &a.k_nope, row, 0, item.head, there);
        ptx::tma_load_2d(ptx::shared_address(s.keys[keys.index][kNopeChunks]), &a.k_pe, 0, row, there);
        keys.next();
      };
      load_keys(0);
      for (int32_t t = 0; t < item.tiles; ++t) {
        if (t + 1 < item.tiles) {
          load_keys(t + 1);
        } else {
          take_next();  // overlaps the wait for the last values' stage
        }
        const uint32_t there = ptx::shared_address(&s.values_full[values.index]);
        wait(s.values_empty[values.index], values.parity ^ 1);
        ptx::mbarrier_arrive_expect_tx(there, kValueChunks * kChunkBytes);
        ptx::tma_load_groups(ptx::shared_address(s.values[values.index]), &a.v, item.r.first_key + t * kKeys, 0, item.head, there);
        values.next();
      }
      q_parity ^= 1;
    } else if (is_loader) {
      take_next();
    }
    if (is_loader) {
      wait(s.queue_empty[queue.index], queue.parity ^ 1);
      s.queue[queue.index] = next;
      ptx::mbarrier_arrive(ptx::shared_address(&s.queue_full[queue.index]));
    }
    queue.next();
    number = __shfl_sync(kAllLanes, next, 0);
  }
}

// 64 queries of each item.
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const Args& args, SharedMemory& memory, int number)
      : a(args),
        s(memory),
        half(number),
        first_q(ptx::wgmma_descriptor(ptx::shared_address(memory.q) + number * 64 * 128)),
        first_keys(ptx::wgmma_descriptor(ptx::shared_address(memory.keys))),
        first_values(ptx::wgmma_descriptor_mn(ptx::shared_address(memory.values), kChunkBytes)) {}

  __device__ __forceinline__ void run() {
    if (half == 1) let_other_multiply();  // the first begins
    uint32_t q_parity = 0;
    auto number = static_cast<int32_t>(blockIdx.x);
    while (number < a.num_items) {
      const Item item(a, number);
      begin(item);
      if (item.tiles > 0) {
        wait(s.q_full, q_parity);
        q_parity ^= 1;
        attend(item);
      }
      if (item.has_queries()) store(item);
      wait(s.queue_full[queue.index], queue.parity);
      number = __shfl_sync(kAllLanes, s.queue[queue.index], 0);
      arrive_warp(s.queue_empty[queue.index]);
      queue.next();
    }
  }

 private:
  using Sums = float[64];  // of 64 queries and 128 columns: [4 j + 2 r + c] is row + 8 r, column 8 j + 2 (lane % 4) + c
  static constexpr uint32_t kMultiplyTurn = 1;  // named barriers, of each warpgroup

  __device__ __forceinline__ void wait_to_multiply() const { ptx::barrier_sync(kMultiplyTurn + half, kConsumers * kWarpgroup); }
  __device__ __forceinline__ void let_other_multiply() const { ptx::barrier_arrive(kMultiplyTurn + 1 - half, kConsumers * kWarpgroup); }

  __device__ __forceinline__ void begin(const Item& item) {
    row = item.first_query + half * 64 + accumulator_row();
#pragma unroll
    for (int i = 0; i < 64; ++i) o[i] = 0.0f;
#pragma unroll
    for (int r = 0; r < 2; ++r) maximum[r] = kLowest, sum[r] = 0.0f;
  }

  __device__ __forceinline__ void attend(const Item& item) {
    Sums logits;
    wait(s.keys_full[keys.index], keys.parity);
    start_logits(logits);
    ptx::wgmma_wait<0>();
    end_logits(logits, item.tiles == 1);
    float rescale[2];
    softmax(item, 0, logits, rescale);
    make_weights(logits);
    for (int32_t t = 1; t < item.tiles; ++t) {
      wait(s.keys_full[keys.index], keys.parity);
      wait(s.values_full[values.index], values.parity);
      wait_to_multiply();
      start_logits(logits);
      start_values();
      let_other_multiply();
      ptx::wgmma_wait<1>();
      end_logits(logits, t + 1 == item.tiles);
      softmax(item, t, logits, rescale);
      ptx::wgmma_wait<0>();
      end_values();
#pragma unroll
      for (int i = 0; i < 64; ++i) o[i] *= rescale[i / 2 % 2];
      make_weights(logits);
    }
    wait(s.values_full[values.index], values.parity);
    start_values();
    ptx::wgmma_wait<0>();
    end_values();
  }

  // A tile of keys that has arrived.
  __device__ __forceinline__ void start_logits(Sums& logits) {
    ptx::wgmma_hold(logits);
    ptx::wgmma_fence();
    const uint64_t k = ptx::offset(first_keys, keys.index * (kKeyChunks * kChunkBytes / 16));
#pragma unroll
    for (int i = 0; i < 4 * kKeyChunks; ++i) {
      const uint32_t offset = i / 4 * (kChunkBytes / 16) + i % 4 * 2;
      ptx::wgmma_bf16(logits, ptx::offset(first_q, offset), ptx::offset(k, offset), i > 0);
    }
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void end_logits(Sums& logits, bool last) {
    ptx::wgmma_hold(logits);
    arrive_warp(s.keys_empty[keys.index]);
    if (last) arrive_warp(s.q_empty);
    keys.next();
  }
  __device__ __forceinline__ void start_values() {
    ptx::wgmma_hold(o);
    ptx::wgmma_hold(weights);
    ptx::wgmma_fence();
    const uint64_t v = ptx::offset(first_values, values.index * (kValueChunks * kChunkBytes / 16));
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) ptx::wgmma_bf16_mn(o, weights + 4 * i, ptx::offset(v, i * (16 * 128 / 16)), true);
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void end_values() {
    ptx::wgmma_hold(o);
    ptx::wgmma_hold(weights);
    arrive_warp(s.values_empty[values.index]);
    values.next();
  }

  // Converts logits to weights in place, relative to the running maximum. Returns the factors that rescale earlier sums.
  __device__ __forceinline__ void softmax(const Item& item, int32_t t, Sums& logits, float (&rescale)[2]) {
    const int32_t key = t * kKeys, least = item.first_query + half * 64 + item.sees;  // number of keys that the first query sees
    const int32_t all_see = __shfl_sync(kAllLanes, min(a.call.causal ? least : item.sees, item.end), 0);
    if (key + kKeys > all_see) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int32_t limit = min(a.call.causal ? row + 8 * r + item.sees : item.sees, item.end) - key;
#pragma unroll
        for (int j = 0; j < 16; ++j) {
          const int column = 8 * j + 2 * static_cast<int>(threadIdx.x % 4);
          if (column >= limit) logits[4 * j + 2 * r] = -INFINITY;
          if (column + 1 >= limit) logits[4 * j + 2 * r + 1] = -INFINITY;
        }
      }
    }
    const float scale = a.call.softmax_scale * kLog2e;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest[2] = {logits[2 * r], logits[2 * r + 1]};
#pragma unroll
      for (int j = 1; j < 16; ++j) {
        largest[0] = fmaxf(largest[0], logits[4 * j + 2 * r]);
        largest[1] = fmaxf(largest[1], logits[4 * j + 2 * r + 1]);
      }
      const float new_max = fmaxf(maximum[r], lanes_max<4>(fmaxf(largest[0], largest[1])) * scale);
      rescale[r] = ptx::ex2(maximum[r] - new_max);
      maximum[r] = new_max;
      float added[2] = {0.0f, 0.0f};
#pragma unroll
      for (int j = 0; j < 16; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& v = logits[4 * j + 2 * r + c];
          v = ptx::ex2(fmaf(v, scale, -new_max));
          added[c] += v;
        }
      }
      sum[r] = sum[r] * rescale[r] + (added[0] + added[1]);
    }
  }
  __device__ __forceinline__ void make_weights(const Sums& logits) {
#pragma unroll
    for (int i = 0; i < 32; ++i) weights[i] = ptx::cvt_bf16x2(logits[2 * i], logits[2 * i + 1]);
  }

  __device__ __forceinline__ void store(const Item& item) const {
    const DensePrefill& call = a.call;
    uint32_t nan_lanes[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float total = lanes_sum<4>(sum[r]);
      const int32_t query = row + 8 * r;
      const bool exists = query < item.r.num_queries;
      const int64_t token = int64_t{item.r.first_query} + query;
      const float factor = total == 0.0f ? 0.0f : 1.0f / total;  // otherwise the largest logit has added 1, or is NaN itself
      bool nan = false;
#pragma unroll
      for (int j = 0; j < 16; ++j) nan |= o[4 * j + 2 * r] != o[4 * j + 2 * r] || o[4 * j + 2 * r + 1] != o[4 * j + 2 * r + 1];
      nan_lanes[r] = __ballot_sync(kAllLanes, nan && exists);
      const int64_t offset = token * call.out_stride.token + item.head * call.out_stride.head;
      store_row(offset, r, factor, exists);
      if (exists && call.lse != nullptr && threadIdx.x % 4 == 0) {
        call.lse[token * call.lse_stride.token + item.head * call.lse_stride.head] =
            total == 0.0f ? -INFINITY : (maximum[r] + log2f(total)) * kLn2;
      }
    }
    if ((nan_lanes[0] | nan_lanes[1]) == 0) return;
    __syncwarp();
    const int32_t first = item.first_query + half * 64 + threadIdx.x % kWarpgroup / 32 * 16;
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
      if ((nan_lanes[i / 8] >> (i % 8 * 4) & 0xFu) != 0)
        prefill_query_again(call, item.r, int64_t{item.r.first_query} + first + i, item.head);
    }
  }
  // Stores eight consecutive values per thread, where they are bf16 and rows are 16-byte aligned.
  __device__ __forceinline__ void store_row(int64_t offset, int r, float factor, bool exists) const {
    const DensePrefill& call = a.call;
    const int quad = static_cast<int>(threadIdx.x % 4);
    if (call.out_f32 != nullptr) {
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        float* const to = call.out_f32 + offset + 8 * j + 2 * quad;
        if (exists) to[0] = o[4 * j + 2 * r] * factor, to[1] = o[4 * j + 2 * r + 1] * factor;
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t w[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* const v = o + 4 * (4 * i + j) + 2 * r;
        w[j] = ptx::cvt_bf16x2(v[0] * factor, v[1] * factor);
      }
      transpose_quad(w);
      auto* const to = reinterpret_cast<uint16_t*>(call.out_bf16 + offset) + 32 * i + 8 * quad;
      if (!exists) continue;
      if (call.out_aligned) {
        *reinterpret_cast<uint4*>(to) = {w[0], w[1], w[2], w[3]};
      } else {
#pragma unroll
        for (int j = 0; j < 8; ++j) to[j] = static_cast<uint16_t>(w[j / 2] >> (16 * (j % 2)));
      }
    }
  }

  const Args& a;
  SharedMemory& s;
  const int half;
  const uint64_t first_q, first_keys, first_values;
  PipelineState<kStages> keys, values;
  PipelineState<kWorkQueueSlots> queue;
  int32_t row;                                        // of the request's queries, this thread's first; its second is 8 later
  static constexpr float kLowest = -3.402823466e38f;  // finite, as -inf - -inf is not a number
  float maximum[2], sum[2];                           // base 2 with the scale; of this thread's columns
  Sums o;
  uint32_t weights[32];
};

__global__ void __launch_bounds__(kThreads, 1) dense_prefill_sm90_kernel(const __grid_constant__ Args a) {
  ptx::launch_dependents();
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  auto& s = *reinterpret_cast<SharedMemory*>(shared_bytes);
  if (threadIdx.x == 0) {
    constexpr uint32_t kWarps = kConsumers * kWarpgroup / 32 * kWarpArrivals;
    const auto make = [](uint64_t& barrier, uint32_t arrivals) { ptx::mbarrier_init(ptx::shared_address(&barrier), arrivals); };
    make(s.q_full, 1), make(s.q_empty, kWarps);
    for (int i = 0; i < kStages; ++i) {
      make(s.keys_full[i], 1), make(s.values_full[i], 1);
      make(s.keys_empty[i], kWarps), make(s.values_empty[i], kWarps);
    }
    for (int i = 0; i < kWorkQueueSlots; ++i) make(s.queue_full[i], 1), make(s.queue_empty[i], kWarps);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::wait_for_previous_kernel();
  if (blockIdx.x == 0 && threadIdx.x == 0) atomicExch(a.next_item, gridDim.x);
  const int role = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (role == kConsumers) {
    ptx::registers_shrink<kProducerRegisters>();
    if (threadIdx.x % kWarpgroup / 32 == 0) produce(a, s);
  } else {
    ptx::registers_grow<kConsumerRegisters>();
    Consumer(a, s, role).run();
  }
}

}  // namespace strata::cuda::dense_prefill
