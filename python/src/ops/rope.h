// Arguments of the inverse rotation.
#pragma once

#include "strata/ops/rope.h"

namespace strata::torch_ops {

template <class V>
void fields(V& v, InverseRopeParams& p) {
  v.in("o", p.o);
  v.in("positions", p.positions);
  v.in("cos_sin", p.cos_sin);
  v.out("out", p.out);
}

template <class V>
void fields(V& v, InverseRopeQuantParams& p) {
  v.in("o", p.o);
  v.in("positions", p.positions);
  v.in("cos_sin", p.cos_sin);
  v.out("out", p.out);
  v.out("scale", p.scale);
}

}  // namespace strata::torch_ops
