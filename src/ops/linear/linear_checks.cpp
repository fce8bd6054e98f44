#include "ops/linear/linear_checks.h"

#include <algorithm>

#include "core/ceil_div.h"

namespace strata::ops {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 50;

}  // namespace

void check_weight(ParamCheck& c, const LinearWeight* weight, int64_t groups, int64_t k) {
  c.require(weight != nullptr, "weight is required: a LinearWeight, is null");
  const LinearWeight& w = *weight;
  c.require(w.groups == groups, "weight.groups must be {}, is {}", groups, w.groups);
  c.require(w.n >= 1 && w.k >= 1, "weight must have n >= 1 and k >= 1, has n {} and k {}", w.n, w.k);
  c.require(w.k == k, "weight.k must be the {} input features of x, is {}", k, w.k);
  // Elements, and bytes of a packed form including its padding.
  c.require(w.n <= kMostElements / std::max<int64_t>(groups, 1) / w.k,
            "weight.n must be such that {} groups of n x {} are at most 2^50, is {}", groups, w.k, w.n);
  c.require(w.weight.present() != w.packed.present(), "weight must hold either a row-major matrix or a packed one, holds {}",
            w.weight.present() ? "both" : "neither");
  c.require(w.packed.present() != w.packing.empty(), "weight.packing must name the packing exactly when weight.packed is present, is '{}'",
            w.packing);
  if (w.packed.present()) {
    c.view("weight.packed", w.packed, DType::u8, {kAny});
    return;
  }
  c.view("weight.weight", w.weight, {DType::bf16, DType::e4m3}, {w.groups * w.n, w.k});
  c.contiguous("weight.weight", w.weight);
  if (w.weight.dtype == DType::bf16) {
    c.require(!w.scale.present(), "weight.scale must be absent with a bf16 weight, is {}", w.scale);
    return;
  }
  c.require(w.block_n >= 1 && w.block_k >= 1, "weight.block_n and block_k must be at least 1, are {} and {}", w.block_n, w.block_k);
  c.view("weight.scale", w.scale, DType::f32, {ceil_div(w.groups * w.n, w.block_n), ceil_div(w.k, w.block_k)});
}

void check_alignment(ParamCheck& c, const TensorView& x, const LinearWeight& w, const TensorView& y) {
  check_row_alignment(c, "x", x);
  check_row_alignment(c, "y", y);
  const auto begins_at_16 = [&](std::string_view name, const TensorView& v) { check_begins_at(c, name, v.data, v.device, 16); };
  begins_at_16(w.packed.present() ? "weight.packed" : "weight.weight", w.packed.present() ? w.packed : w.weight);
  if (w.scale.present()) begins_at_16("weight.scale", w.scale);
}

}  // namespace strata::ops
