// All-reduce over peer memory, by stores to the peers and flags. One shot: each rank stores its rows to all peers, and sums. Two shots:
// each rank sums a part, and stores the sums to all peers. Floor on two H200s: one NVLink latency and the rows over 450 GB/s a direction, 1
// us for 32 tokens of 7168. Not measured yet.
#include <algorithm>

#include "backends/cuda/all_reduce/call.h"
#include "backends/cuda/ptx/convert.cuh"
#include "backends/cuda/runtime/check.h"
#include "formats/bf16.h"

namespace strata::cuda::all_reduce {
namespace {

__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}
__device__ __forceinline__ void store_release(uint32_t* p, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* p) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}

__device__ __forceinline__ Head& head_of(const Call& c, int rank) { return *reinterpret_cast<Head*>(c.buffers[rank]); }
// Rows that `from` has stored to `rank`, and sums of `from`'s part.
__device__ __forceinline__ uint4* rows_of(const Call& c, uint32_t step, int rank, int from) {
  std::byte* const half = c.buffers[rank] + kHeadBytes + (step & 1) * half_bytes(c.capacity);
  return reinterpret_cast<uint4*>(half) + from * c.part_vectors;
}
__device__ __forceinline__ uint4* sums_of(const Call& c, uint32_t step, int rank, int from) {
  return rows_of(c, step, rank, 0) + c.capacity / kVectorBytes + from * c.part_vectors;
}

// What this CTA has stored before is visible to the peers' CTAs of the same number, and theirs to this one. A thread for each peer.
__device__ __forceinline__ void exchange(const Call& c, int which, uint32_t step) {
  __syncthreads();
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < c.size && peer != c.rank) {
    __threadfence_system();
    store_release(&head_of(c, peer).arrived[which][blockIdx.x][c.rank], step);
    Head& own = head_of(c, c.rank);
    const uint32_t* const flag = &own.arrived[which][blockIdx.x][peer];
    const uint64_t begin = nanoseconds();
    volatile uint32_t* const failed = &own.failed;
    while (static_cast<int32_t>(load_acquire(flag) - step) < 0) {
      if (*failed != 0) break;
      if (nanoseconds() - begin < c.timeout_ns) continue;
      *failed = 1;
      *static_cast<volatile uint32_t*>(c.failure) = 1 + static_cast<uint32_t>(peer);
      __threadfence_system();
      break;
    }
  }
  __syncthreads();
}

template <class T>
struct Sum;
template <>
struct Sum<float> {
  float values[4] = {};
  __device__ void add(uint4 v) {
    values[0] += __uint_as_float(v.x), values[1] += __uint_as_float(v.y);
    values[2] += __uint_as_float(v.z), values[3] += __uint_as_float(v.w);
  }
  __device__ uint4 rounded() const {
    return make_uint4(__float_as_uint(values[0]), __float_as_uint(values[1]), __float_as_uint(values[2]), __float_as_uint(values[3]));
  }
};
template <>
struct Sum<Bf16> {
  float values[8] = {};
  __device__ void add(uint4 v) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] += __uint_as_float(words[i] << 16);
      values[2 * i + 1] += __uint_as_float(words[i] & 0xFFFF0000u);
    }
  }
  __device__ uint4 rounded() const {
    return make_uint4(ptx::cvt_bf16x2(values[0], values[1]), ptx::cvt_bf16x2(values[2], values[3]), ptx::cvt_bf16x2(values[4], values[5]),
                      ptx::cvt_bf16x2(values[6], values[7]));
  }
};

// Of vector i of part `part`: ranks in order, this rank's from its own tensor. Rows that peers have stored are not in L1.
template <class T>
__device__ __forceinline__ uint4 sum_of(const Call& c, uint32_t step, const uint4* own, int64_t i) {
  Sum<T> sum;
  uint4 rows[kMostRanks];
#pragma unroll
  for (int rank = 0; rank < kMostRanks; ++rank) {
    if (rank < c.size) rows[rank] = rank == c.rank ? own[i] : __ldcg(rows_of(c, step, c.rank, rank) + i);
  }
#pragma unroll
  for (int rank = 0; rank < kMostRanks; ++rank) {
    if (rank < c.size) sum.add(rows[rank]);
  }
  return sum.rounded();
}

// The step counts once all CTAs have finished, so that all have read the same number.
__device__ __forceinline__ void finish(const Call& c, uint32_t step) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  Head& own = head_of(c, c.rank);
  __threadfence();
  if (atomicAdd(&own.finished_ctas, 1u) + 1 == gridDim.x) {
    own.finished_ctas = 0;
    own.step = step;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) one_shot_kernel(const __grid_constant__ Call c) {
  const uint32_t step = *static_cast<volatile uint32_t*>(&head_of(c, c.rank).step) + 1;
  uint4* const tensor = static_cast<uint4*>(c.tensor);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = first; i < c.vectors; i += stride) {
    const uint4 row = tensor[i];
    for (int k = 1; k < c.size; ++k) {
      const int peer = (c.rank + k) % c.size;
      rows_of(c, step, peer, c.rank)[i] = row;
    }
  }
  exchange(c, 0, step);
  for (int64_t i = first; i < c.vectors; i += stride) tensor[i] = sum_of<T>(c, step, tensor, i);
  finish(c, step);
}

template <class T>
__global__ void __launch_bounds__(kThreads) two_shot_kernel(const __grid_constant__ Call c) {
  const uint32_t step = *static_cast<volatile uint32_t*>(&head_of(c, c.rank).step) + 1;
  uint4* const tensor = static_cast<uint4*>(c.tensor);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const auto vectors_of = [&](int part) {
    const int64_t left = c.vectors - part * c.part_vectors;
    return left < c.part_vectors ? (left < 0 ? 0 : left) : c.part_vectors;
  };
  for (int k = 1; k < c.size; ++k) {
    const int peer = (c.rank + k) % c.size;
    const uint4* const part = tensor + peer * c.part_vectors;
    for (int64_t i = first; i < vectors_of(peer); i += stride) rows_of(c, step, peer, c.rank)[i] = part[i];
  }
  exchange(c, 0, step);
  uint4* const own = tensor + c.rank * c.part_vectors;
  for (int64_t i = first; i < vectors_of(c.rank); i += stride) {
    const uint4 sum = sum_of<T>(c, step, own, i);
    own[i] = sum;
    for (int k = 1; k < c.size; ++k) {
      const int peer = (c.rank + k) % c.size;
      sums_of(c, step, peer, c.rank)[i] = sum;
    }
  }
  exchange(c, 1, step);
  for (int k = 1; k < c.size; ++k) {
    const int peer = (c.rank + k) % c.size;
    for (int64_t i = first; i < vectors_of(peer); i += stride)
      tensor[peer * c.part_vectors + i] = __ldcg(sums_of(c, step, c.rank, peer) + i);
  }
  finish(c, step);
}

}  // namespace

void launch(const Call& call, Shots shots, bool bf16, void* stream) {
  // Every rank must launch the same grid: it follows from the size alone.
  const int64_t ctas = std::clamp<int64_t>((call.part_vectors + kThreads - 1) / kThreads, 1, kMostCtas);
  auto* const kernel = shots == Shots::one ? (bf16 ? one_shot_kernel<Bf16> : one_shot_kernel<float>)
                                           : (bf16 ? two_shot_kernel<Bf16> : two_shot_kernel<float>);
  kernel<<<static_cast<unsigned>(ctas), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(call);
  check_launch("all_reduce");
}

}  // namespace strata::cuda::all_reduce
