// Shared checks of the ops that rotate vectors and access cache rows.
#pragma once

#include "formats/kv_rows.h"
#include "ops/indices/value_checks.h"

namespace strata::ops {

// positions i64 [tokens] and cos_sin f32 [max_positions, R], with R even, of a vector of `dim` values. The values of positions are not
// checked.
inline void check_rotary_views(ParamCheck& c, const TensorView& positions, const TensorView& cos_sin, int64_t tokens, int64_t dim) {
  c.view("positions", positions, DType::i64, {tokens});
  c.view("cos_sin", cos_sin, DType::f32, {kAny, kAny});
  const int64_t rotary = cos_sin.shape[1];
  c.require(rotary >= 2 && rotary % 2 == 0 && rotary <= dim, "cos_sin must have an even number of columns in [2, {}], has {}", dim, rotary);
}

// A cache of rows of `dim` values (kAny: any number that the format allows).
inline void check_rows(ParamCheck& c, std::string_view name, const PagedCache& cache, std::initializer_list<KvFormat> formats,
                       int64_t dim) {
  c.cache(name, cache, formats, dim);
  c.require(cache.row_dim >= 1 && cache.row_dim <= kMaxRowDim, "{} must have a row_dim in [1, {}], has {}", name, int{kMaxRowDim},
            cache.row_dim);
  const int32_t fixed = fixed_row_dim(cache.format);
  c.require(fixed == 0 || cache.row_dim == fixed, "{} of format {} must have row_dim {}, has {}", name, to_string(cache.format), fixed,
            cache.row_dim);
  if (cache.format == KvFormat::fp8_tensor) check_positive(c, "cache.scale", cache.scale);
}

// A V4 record keeps the last 64 of its 512 values as bf16: those must be the rotary dimensions.
inline void check_rotary_lanes(ParamCheck& c, const PagedCache& cache, int64_t rotary) {
  c.require(cache.format != KvFormat::fp8_ds_mla_v4 || rotary == kV4RopeDim,
            "cos_sin must have {} columns with a cache of format {}, has {}", int{kV4RopeDim}, to_string(cache.format), rotary);
}

// Checks where keys [tokens, dim] are inserted after their rotation.
inline void check_key_insert(ParamCheck& c, const TensorView& slot_mapping, const PagedCache& cache, const TensorView& cos_sin,
                             int64_t tokens, int64_t dim) {
  c.view("slot_mapping", slot_mapping, DType::i64, {kAny});
  c.require(slot_mapping.shape[0] <= tokens, "slot_mapping must have at most the {} rows of kv, has {}", tokens, slot_mapping.shape[0]);
  check_rows(c, "cache", cache, {KvFormat::fp8_ds_mla_v4, KvFormat::bf16, KvFormat::fp8_tensor}, dim);
  check_rotary_lanes(c, cache, cos_sin.shape[1]);
  c.values_in("slot_mapping", slot_mapping, 0, cache.num_slots(), true);
}

}  // namespace strata::ops
