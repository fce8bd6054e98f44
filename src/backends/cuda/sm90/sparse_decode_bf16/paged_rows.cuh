// Rows of paged bf16 caches: those that a token attends to in a first scope, and behind them those of a second one.
#pragma once

#include "backends/cuda/common/divisor.h"
#include "backends/cuda/ptx/memory.cuh"

namespace strata::cuda::sparse_prefill {

struct RowScope {
  const uint16_t* data;
  uint32_t page_units;  // 16 bytes each, between pages
  Divisor page_size{1};
  uint32_t num_slots;
  const int32_t* indices;
  int64_t indices_stride;  // between tokens
  const int32_t* lengths;  // of batch entries; null: width
  int32_t width;           // 0: there is no such scope

  __device__ __forceinline__ int32_t count(int32_t entry) const { return lengths == nullptr ? width : min(max(lengths[entry], 0), width); }
};

struct PagedRows {
  static constexpr bool kOneMatrix = false;
  // Of a number for each head: between batch entries, and between query tokens of one.
  struct SumsStride {
    int64_t entry, query;
  };
  static constexpr uint32_t kMostUnits = uint32_t{1} << 31;  // of a cache

  RowScope scopes[2];
  uint32_t row_units;   // 16 bytes each, of a row
  Divisor queries{1};   // query tokens of a batch entry
  int32_t first_token;  // of the call's

  void skip(int64_t tokens) {
    first_token += static_cast<int32_t>(tokens);
    for (RowScope& scope : scopes) scope.indices += tokens * scope.indices_stride;
  }
  static float* skip(float* sums, SumsStride, int64_t) { return sums; }

  __device__ __forceinline__ int32_t entry_of(int32_t token) const { return queries.divide(first_token + token); }
  __device__ __forceinline__ int32_t count(int32_t token) const {
    const int32_t entry = entry_of(token);
    return scopes[0].count(entry) + scopes[1].count(entry);
  }
  __device__ __forceinline__ int64_t sums_offset(int64_t token, SumsStride stride) const {
    const int32_t entry = entry_of(static_cast<int32_t>(token)),
                  query = first_token + static_cast<int32_t>(token) - entry * queries.value();
    return entry * stride.entry + query * stride.query;
  }

  // Those of a token from the `first` on, by their position behind it. What follows from little is computed again for each tile: the
  // producer has few registers.
  class Reader {
   public:
    __device__ __forceinline__ Reader(const PagedRows& rows, int32_t of, int32_t from, int32_t count)
        : a(rows), token(of), first(from), of_first_scope(rows.scopes[0].count(rows.entry_of(of))), all(count) {}
    __device__ __forceinline__ int32_t look_up(bool wanted, int32_t position) const {
      const int32_t at = first + position;
      const int32_t* const index = at < of_first_scope ? a.scopes[0].indices + token * a.scopes[0].indices_stride + at
                                                       : a.scopes[1].indices + token * a.scopes[1].indices_stride + (at - of_first_scope);
      return static_cast<int32_t>(ptx::ld_if(wanted && at < all, index, 0xFFFFFFFFu));
    }
    __device__ __forceinline__ bool attended(int32_t slot, int32_t position) const {
      return static_cast<uint32_t>(slot) < scope_at(position).num_slots;
    }
    // The scope, and where its cache has the row, in 16 bytes.
    __device__ __forceinline__ uint32_t locate(int32_t slot, int32_t position) const {
      const RowScope& scope = scope_at(position);
      const int32_t page = scope.page_size.divide(slot), row = slot - page * scope.page_size.value();
      return (in_second(position) ? kMostUnits : 0) + static_cast<uint32_t>(page) * scope.page_units +
             static_cast<uint32_t>(row) * a.row_units;
    }
    __device__ __forceinline__ const uint16_t* address(uint32_t place) const {
      return a.scopes[place < kMostUnits ? 0 : 1].data + int64_t{place % kMostUnits} * 8;
    }

   private:
    __device__ __forceinline__ bool in_second(int32_t position) const { return first + position >= of_first_scope; }
    __device__ __forceinline__ const RowScope& scope_at(int32_t position) const { return a.scopes[in_second(position) ? 1 : 0]; }

    const PagedRows& a;
    int32_t token, first;
    int32_t of_first_scope, all;
  };
};

}  // namespace strata::cuda::sparse_prefill
