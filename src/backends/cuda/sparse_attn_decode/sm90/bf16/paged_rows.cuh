// Rows of paged caches, bf16 or e4m3: the rows that a token attends to in the first scope, then those in a second scope.
#pragma once

#include "backends/cuda/device/divisor.h"
#include "backends/cuda/ptx/memory.cuh"

namespace strata::cuda::sparse_prefill {

struct RowScope {
  const uint8_t* data;
  uint32_t page_units;  // distance of pages, in units of 16 bytes
  Divisor page_size{1};
  uint32_t num_slots;
  const int32_t* indices;
  int64_t indices_stride;  // between tokens
  const int32_t* lengths;  // of batch entries; null: width
  int32_t width;           // 0: no such scope

  __device__ __forceinline__ int32_t count(int32_t entry) const { return lengths == nullptr ? width : min(max(lengths[entry], 0), width); }
};

// kScopes: 1 or 2.
template <int kScopes, bool kE4m3>
struct PagedRows {
  static constexpr bool kOneMatrix = false, kQuantized = kE4m3;
  static constexpr int kTileRows = kQuantized ? 48 : 64;  // three tiles leave room for e4m3 rows in flight
  // Strides of a per-head number: between batch entries, and between query tokens of one entry.
  struct SumsStride {
    int64_t entry, query;
  };
  // Upper bound of a cache's 16-byte units. The bit above marks a row of the second scope.
  static constexpr uint32_t kMaxUnits = uint32_t{1} << 31;

  RowScope scopes[kScopes];
  uint32_t row_units;   // row length in units of 16 bytes
  Divisor queries{1};   // query tokens per batch entry
  int32_t first_token;  // index in the call
  // e4m3 only: factor of the sums, which is the first scope's scale, and the second scope's scale relative to it.
  float value_scale, second_factor;

  void skip(int64_t tokens) {
    first_token += static_cast<int32_t>(tokens);
    for (RowScope& scope : scopes) scope.indices += tokens * scope.indices_stride;
  }
  static float* skip(float* sums, SumsStride, int64_t) { return sums; }

  __device__ __forceinline__ int32_t entry_of(int32_t token) const { return queries.divide(first_token + token); }
  __device__ __forceinline__ int32_t count(int32_t token) const {
    const int32_t entry = entry_of(token), of_first = scopes[0].count(entry);
    return kScopes == 1 ? of_first : of_first + scopes[kScopes - 1].count(entry);
  }
  __device__ __forceinline__ int64_t sums_offset(int64_t token, SumsStride stride) const {
    const int32_t entry = entry_of(static_cast<int32_t>(token)),
                  query = first_token + static_cast<int32_t>(token) - entry * queries.value();
    return entry * stride.entry + query * stride.query;
  }

  // Reads a token's rows from the `first` on, by their position after it. Cheap values are recomputed for each tile: the producer has few
  // registers.
  class Reader {
   public:
    __device__ __forceinline__ Reader(const PagedRows& rows, int32_t of, int32_t from, int32_t count)
        : a(rows), token(of), first(from), all(count), of_first_scope(kScopes == 1 ? count : rows.scopes[0].count(rows.entry_of(of))) {}
    __device__ __forceinline__ int32_t look_up(bool valid, int32_t position) const {
      const int32_t at = first + position;
      const auto index = [&](const RowScope& scope, int32_t i) { return scope.indices + token * scope.indices_stride + i; };
      const int32_t* const found = in_second(position) ? index(a.scopes[kScopes - 1], at - of_first_scope) : index(a.scopes[0], at);
      return static_cast<int32_t>(ptx::ld_if(valid && at < all, found, 0xFFFFFFFFu));
    }
    __device__ __forceinline__ bool attended(int32_t slot, int32_t position) const {
      return static_cast<uint32_t>(slot) < scope_at(position).num_slots;
    }
    // The scope, and the row's address in its cache in units of 16 bytes.
    __device__ __forceinline__ uint32_t locate(int32_t slot, int32_t position) const {
      const RowScope& scope = scope_at(position);
      const int32_t page = scope.page_size.divide(slot), row = slot - page * scope.page_size.value();
      return (in_second(position) ? kMaxUnits : 0) + static_cast<uint32_t>(page) * scope.page_units +
             static_cast<uint32_t>(row) * a.row_units;
    }
    __device__ __forceinline__ const uint16_t* address(uint32_t location) const {
      const uint8_t* const data = a.scopes[kScopes == 1 || location < kMaxUnits ? 0 : kScopes - 1].data;
      return reinterpret_cast<const uint16_t*>(data + int64_t{kScopes == 1 ? location : location % kMaxUnits} * 16);
    }
    // The factor of e4m3 values.
    __device__ __forceinline__ float factor(int32_t position) const { return in_second(position) ? a.second_factor : 1.0f; }

   private:
    __device__ __forceinline__ bool in_second(int32_t position) const { return kScopes > 1 && first + position >= of_first_scope; }
    __device__ __forceinline__ const RowScope& scope_at(int32_t position) const { return a.scopes[in_second(position) ? kScopes - 1 : 0]; }

    const PagedRows& a;
    int32_t token, first;
    int32_t all, of_first_scope;
  };
};

}  // namespace strata::cuda::sparse_prefill
