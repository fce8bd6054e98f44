// All-reduce over peer memory: what host and kernels share. docs/kernels/all_reduce.md has the protocol.
#pragma once

#include <cstddef>
#include <cstdint>

namespace strata::cuda::all_reduce {

constexpr int kMostRanks = 8;
constexpr int kMostCtas = 64;
constexpr int kThreads = 512;
constexpr int kVectorBytes = 16;

// The head of a rank's buffer. Flags are of a CTA and the rank that wrote them: the step up to which that CTA's rows have arrived.
struct Head {
  uint32_t arrived[2][kMostCtas][kMostRanks];  // [0]: rows of the tensor; [1]: sums of two shots
  uint32_t step;                               // completed so far, by this rank's kernels alone
  uint32_t finished_ctas;                      // of the step under way
  uint32_t failed;                             // later waits end at once
};
constexpr size_t kHeadBytes = 8192;
static_assert(sizeof(Head) <= kHeadBytes);

// Bytes of one of the two halves that steps alternate between: rows of all ranks, then sums.
constexpr size_t half_bytes(size_t capacity) { return 2 * capacity; }
constexpr size_t buffer_bytes(size_t capacity) { return kHeadBytes + 2 * half_bytes(capacity); }

struct Call {
  std::byte* buffers[kMostRanks];  // of every rank, as this device sees them
  void* tensor;
  int64_t vectors;       // of the tensor, 16 bytes each
  int64_t part_vectors;  // of a rank's part in two shots; of the tensor in one
  int64_t capacity;      // bytes
  int32_t rank, size;
  uint32_t* failure;  // in host memory: 1 + the rank that has not arrived
  uint64_t timeout_ns;
};

enum class Shots { one, two };

// Most bytes of one launch: the parts of all ranks are whole vectors.
constexpr int64_t most_bytes(Shots shots, int64_t capacity, int size) {
  return shots == Shots::one ? capacity / size / kVectorBytes * kVectorBytes : capacity / (size * kVectorBytes) * (size * kVectorBytes);
}

// On `stream`, which is a cudaStream_t. Only launches.
void launch(const Call& call, Shots shots, bool bf16, void* stream);

}  // namespace strata::cuda::all_reduce
