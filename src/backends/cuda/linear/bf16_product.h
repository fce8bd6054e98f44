// A bf16 product by groups as an implementation of both linear ops: linear has one group.
#pragma once

#include "backends/cuda/linear/call_views.h"
#include "backends/cuda/linear/impls.h"
#include "backends/cuda/runtime/implementation.h"

namespace strata::cuda {

// kSupport(x, weight, shares_device, capabilities) and kMultiply(x, weight, y, shares_device, context), with x [T, G, K] and y [T, G, n].
template <auto kSupport, auto kMultiply>
struct Bf16Product {
  static bool shares_device(const LinearWeight* weight) { return weight != nullptr && weight->shares_device; }
  static Traits<LinearParams> linear() {
    return {.supports = [](const LinearParams& p, const Capabilities& device) -> Support {
              if (p.activation != ActivationFormat::bf16) return Support::no("needs bf16 activations");
              return kSupport(as_grouped(p.x), p.weight, shares_device(p.weight), device);
            },
            .run =
                [](const LinearParams& p, const ExecutionContext& context) {
                  kMultiply(as_grouped(p.x), *p.weight, as_grouped(p.y), shares_device(p.weight), context);
                }};
  }
  static Traits<GroupedLinearParams> grouped() {
    return {.supports = [](const GroupedLinearParams& p, const Capabilities& device) -> Support {
              return kSupport(p.x, p.weight, /*shares_device=*/false, device);
            },
            .run = [](const GroupedLinearParams& p,
                      const ExecutionContext& context) { kMultiply(p.x, *p.weight, p.y, /*shares_device=*/false, context); }};
  }
};

}  // namespace strata::cuda
