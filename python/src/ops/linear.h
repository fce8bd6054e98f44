// Arguments of linear and grouped_linear.
#pragma once

#include "strata/ops/linear.h"

namespace strata::torch_ops {

template <class V>
void fields(V& v, LinearWeight& w) {
  v.in_opt("weight", w.weight);
  v.in_opt("weight_scale", w.scale);
  v.value("weight_n", w.n);
  v.value("weight_k", w.k);
  v.option("weight_groups", w.groups);
  v.option("weight_block_n", w.block_n);
  v.option("weight_block_k", w.block_k);
  v.option("weight_power_of_two_scales", w.power_of_two_scales);
  v.option("weight_from_e4m3", w.from_e4m3);
  v.in_opt("weight_packed", w.packed);
  v.text("weight_packing", w.packing);
  v.option("weight_shares_device", w.shares_device);
  v.text("weight_name", w.name);
}

template <class V>
void fields(V& v, LinearParams& p) {
  v.in("x", p.x);
  v.in_opt("x_scale", p.x_scale);
  v.weight(p.weight);
  v.out("y", p.y);
  v.option("activation", p.activation);
}

template <class V>
void fields(V& v, GroupedLinearParams& p) {
  v.in("x", p.x);
  v.in_opt("x_scale", p.x_scale);
  v.weight(p.weight);
  v.out("y", p.y);
  v.out_opt("y_scale", p.y_scale);
  v.option("y_format", p.y_format);
}

}  // namespace strata::torch_ops
