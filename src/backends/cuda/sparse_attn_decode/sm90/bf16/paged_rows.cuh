// Rows of paged caches, of bf16 or of e4m3 codes: those that a token attends to in a scope, and behind them those of a second one.
#pragma once

#include "backends/cuda/device/divisor.h"
#include "backends/cuda/ptx/memory.cuh"

namespace strata::cuda::sparse_prefill {

struct RowScope {
  const uint8_t* data;
  uint32_t page_units;  // 16 bytes each, between pages
  Divisor page_size{1};
  uint32_t num_slots;
  const int32_t* indices;
  int64_t indices_stride;  // between tokens
  const int32_t* lengths;  // of batch entries; null: width
  int32_t width;           // 0: there is no such scope

  __device__ __forceinline__ int32_t count(int32_t entry) const { return lengths == nullptr ? width : min(max(lengths[entry], 0), width); }
};

// kScopes: 1 or 2.
template <int kScopes, bool kOfCodes>
struct PagedRows {
  static constexpr bool kOneMatrix = false, kCodes = kOfCodes;
  static constexpr int kTileRows = kCodes ? 48 : 64;  // three tiles are to leave room for codes on their way
  // Of a number for each head: between batch entries, and between query tokens of one.
  struct SumsStride {
    int64_t entry, query;
  };
  // Of a cache. What is beyond says that a row is the second scope's.
  static constexpr uint32_t kMostUnits = uint32_t{1} << 31;

  RowScope scopes[kScopes];
  uint32_t row_units;   // 16 bytes each, of a row
  Divisor queries{1};   // query tokens of a batch entry
  int32_t first_token;  // of the call's
  // Of codes: what sums are multiplied by, the first scope's scale, and the second one's codes beside that.
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

  // Those of a token from the `first` on, by their position behind it. What follows from little is computed again for each tile: the
  // producer has few registers.
  class Reader {
   public:
    __device__ __forceinline__ Reader(const PagedRows& rows, int32_t of, int32_t from, int32_t count)
        : a(rows), token(of), first(from), all(count), of_first_scope(kScopes == 1 ? count : rows.scopes[0].count(rows.entry_of(of))) {}
    __device__ __forceinline__ int32_t look_up(bool wanted, int32_t position) const {
      const int32_t at = first + position;
      const auto index = [&](const RowScope& scope, int32_t i) { return scope.indices + token * scope.indices_stride + i; };
      const int32_t* const found = in_second(position) ? index(a.scopes[kScopes - 1], at - of_first_scope) : index(a.scopes[0], at);
      return static_cast<int32_t>(ptx::ld_if(wanted && at < all, found, 0xFFFFFFFFu));
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
      const uint8_t* const data = a.scopes[kScopes == 1 || place < kMostUnits ? 0 : kScopes - 1].data;
      return reinterpret_cast<const uint16_t*>(data + int64_t{kScopes == 1 ? place : place % kMostUnits} * 16);
    }
    // What codes are multiplied by.
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
