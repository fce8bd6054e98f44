// Rows that were gathered before: a matrix, and for each token the numbers of those that it attends to.
#pragma once

#include "backends/cuda/ptx/memory.cuh"

namespace strata::cuda::sparse_prefill {

struct GatheredRows {
  static constexpr bool kOneMatrix = true, kCodes = false;
  static constexpr int kTileRows = 64;
  using SumsStride = int64_t;  // between tokens, of a number for each head

  const uint16_t* kv;  // bf16
  int64_t kv_stride;
  uint32_t num_rows;
  const int32_t* indices;
  int64_t indices_stride;
  const int32_t* lengths;  // null: width
  int32_t width;

  // The rows of the tokens behind the first ones.
  void skip(int64_t tokens) {
    indices += tokens * indices_stride;
    if (lengths != nullptr) lengths += tokens;
  }
  static float* skip(float* sums, SumsStride stride, int64_t tokens) { return sums == nullptr ? nullptr : sums + tokens * stride; }

  // Of a token.
  __device__ __forceinline__ int32_t count(int32_t token) const { return lengths == nullptr ? width : min(max(lengths[token], 0), width); }
  __device__ __forceinline__ int64_t sums_offset(int64_t token, SumsStride stride) const { return token * stride; }

  // Those of a token from the `first` on, by their position behind it.
  class Reader {
   public:
    __device__ __forceinline__ Reader(const GatheredRows& rows, int32_t token, int32_t first, int32_t count)
        : a(rows), indices(rows.indices + token * rows.indices_stride + first), length(count - first) {}
    // What says where a row is: asked for a tile ahead, and without a branch, so that nothing waits for it.
    __device__ __forceinline__ int32_t look_up(bool wanted, int32_t position) const {
      return static_cast<int32_t>(ptx::ld_if(wanted && position < length, indices + position, 0xFFFFFFFFu));
    }
    __device__ __forceinline__ bool attended(int32_t entry, int32_t) const { return static_cast<uint32_t>(entry) < a.num_rows; }
    // Of an attended row; what one lane says to others, and where that is.
    __device__ __forceinline__ uint32_t locate(int32_t entry, int32_t) const { return static_cast<uint32_t>(entry); }
    __device__ __forceinline__ const uint16_t* address(uint32_t place) const { return a.kv + static_cast<int64_t>(place) * a.kv_stride; }

   private:
    const GatheredRows& a;
    const int32_t* indices;
    int32_t length;
  };
};

}  // namespace strata::cuda::sparse_prefill
