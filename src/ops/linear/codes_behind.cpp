#include "ops/linear/codes_behind.h"

#include "core/arena.h"
#include "formats/quantize.h"

namespace strata::ops {
namespace {

// The same product with its values left in the arena's memory.
GroupedLinearParams product_of_values(const GroupedLinearParams& p, Arena& arena) {
  GroupedLinearParams product = p;
  product.y = arena.tensor(DType::bf16, {p.y.shape[0], p.y.shape[1], p.y.shape[2]});
  product.y_scale = {};
  product.y_format = ActivationFormat::bf16;
  return product;
}

}  // namespace

std::vector<Implementation<GroupedLinearParams>> codes_behind(std::vector<Implementation<GroupedLinearParams>> products,
                                                              const QuantizeRows& quantize, const LeavesCodes& leaves_codes) {
  const auto as_it_is = [leaves_codes](const GroupedLinearParams& p, const Device& device) {
    return p.y.dtype != DType::e4m3 || (leaves_codes && leaves_codes(p, device));
  };
  for (Implementation<GroupedLinearParams>& implementation : products) {
    const Implementation<GroupedLinearParams> inner = implementation;
    const auto of_product = [as_it_is](const auto& answer) {
      return [answer, as_it_is](const GroupedLinearParams& p, const Device& device) {
        if (as_it_is(p, device)) return answer(p, device);
        Arena arena(p.x.device);
        return answer(product_of_values(p, arena), device);
      };
    };
    implementation.supports = of_product(inner.supports);
    if (inner.prefers) implementation.prefers = of_product(inner.prefers);
    // Codes that it makes itself too: it may leave those of fewer tokens to the quantiser.
    implementation.workspace_bytes = [inner](const GroupedLinearParams& p, const Device& device) -> size_t {
      if (p.y.dtype != DType::e4m3) return inner.workspace_bytes(p, device);
      Arena arena(p.x.device);
      arena.rest(inner.workspace_bytes(product_of_values(p, arena), device));
      return arena.peak();
    };
    implementation.run = [inner, quantize, as_it_is](const GroupedLinearParams& p, const ExecutionContext& context) {
      if (as_it_is(p, context.device)) return inner.run(p, context);
      Arena arena(p.x.device, context.workspace);
      const GroupedLinearParams product = product_of_values(p, arena);
      inner.run(product, {context.device, context.stream, arena.rest(inner.workspace_bytes(product, context.device))});
      const int64_t tokens = p.y.shape[0], k = p.y.shape[1] * p.y.shape[2];
      quantize(product.y.reshape({tokens, k}), p.y_format, p.y.reshape({tokens, k}), p.y_scale.reshape({tokens, k / kActivationBlock}),
               context);
    };
  }
  return products;
}

}  // namespace strata::ops
