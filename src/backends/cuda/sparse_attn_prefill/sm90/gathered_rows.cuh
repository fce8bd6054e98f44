// Gathered rows: a matrix, and for each token the row numbers that it attends to.
#pragma once

#include "backends/cuda/ptx/memory.cuh"

namespace strata::cuda::sparse_prefill {

struct GatheredRows {
  static constexpr bool kOneMatrix = true, kQuantized = false;
  static constexpr int kTileRows = 64;
  using SumsStride = int64_t;  // between tokens, for a number per head

  const uint16_t* kv;  // bf16
  int64_t kv_stride;
  uint32_t num_rows;
  const int32_t* indices;
  int64_t indices_stride;
  const int32_t* lengths;  // null: width
  int32_t width;

  // Skips to the rows of the tokens after the first `tokens`.
  void skip(int64_t tokens) {
    indices += tokens * indices_stride;
    if (lengths != nullptr) lengths += tokens;
  }
  static float* skip(float* sums, SumsStride stride, int64_t tokens) { return sums == nullptr ? nullptr : sums + tokens * stride; }

  // Attended entries of a token.
  __device__ __forceinline__ int32_t count(int32_t token) const { return lengths == nullptr ? width : min(max(lengths[token], 0), width); }
  __device__ __forceinline__ int64_t sums_offset(int64_t token, SumsStride stride) const { return token * stride; }

  // Reads a token's rows from the `first` on, by their position after it.
  class Reader {
   public:
    __device__ __forceinline__ Reader(const GatheredRows& rows, int32_t token, int32_t first, int32_t count)
        : a(rows), indices(rows.indices + token * rows.indices_stride + first), length(count - first) {}
    // The entry of a row: loaded one tile ahead and without a branch, so that nothing waits for the load.
    __device__ __forceinline__ int32_t look_up(bool valid, int32_t position) const {
      return static_cast<int32_t>(ptx::ld_if(valid && position < length, indices + position, 0xFFFFFFFFu));
    }
    __device__ __forceinline__ bool attended(int32_t entry, int32_t) const { return static_cast<uint32_t>(entry) < a.num_rows; }
    // Of an attended row: what one lane passes to others, and the address that it stands for.
    __device__ __forceinline__ uint32_t locate(int32_t entry, int32_t) const { return static_cast<uint32_t>(entry); }
    __device__ __forceinline__ const uint16_t* address(uint32_t location) const {
      return a.kv + static_cast<int64_t>(location) * a.kv_stride;
    }

   private:
    const GatheredRows& a;
    const int32_t* indices;
    int32_t length;
  };
};

}  // namespace strata::cuda::sparse_prefill
