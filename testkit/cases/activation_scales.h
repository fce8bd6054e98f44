// How far the scales of activations that are quantised where they are made may be from the reference's.
#pragma once

#include "testkit/harness/compare.h"
#include "strata/activation_format.h"

namespace strata::testkit {

// Of an absmax that is rounded the other way: a factor of two, or one step of bf16, of which one may be half of the next.
inline Tolerance scale_step(ActivationFormat format, bool drawn) {
  Tolerance scales = exact();
  scales.kind = Tolerance::Kind::close;
  scales.beyond = 5e-4;
  if (format == ActivationFormat::fp8_f32) scales.rel = drawn ? 0x1.02p-7 : 0x1.02p-8;
  return scales;
}

}  // namespace strata::testkit
