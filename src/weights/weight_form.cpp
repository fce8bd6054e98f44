#include "weights/weight_form.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "core/check.h"
#include "contracts/packed_weight.h"

namespace strata {
namespace {

// A form that suits these numbers of tokens suits any. What a CPU implementation takes depends on the weight alone. GPU implementations for
// few tokens end at 64 or 128; those for whole tiles begin there at the latest, and from there on no number is excluded:
// tests/cuda/linear_tokens_test.cpp tests every number.
constexpr std::array<int64_t, 5> kTokenCounts{1, 65, 129, 257, 512};
constexpr int64_t kActivationBlock = 128;

LinearParams linear_call(const LinearRequest& request, const LinearWeight& weight, int64_t tokens, DeviceId device) {
  return {.x = TensorView::contiguous(nullptr, DType::bf16, device, {tokens, weight.k}),
          .weight = &weight,
          .y = TensorView::contiguous(nullptr, request.output, device, {tokens, weight.n}),
          .activation = request.activation};
}

GroupedLinearParams grouped_call(const LinearRequest& request, const LinearWeight& weight, int64_t tokens, DeviceId device) {
  const int64_t g = weight.groups;
  GroupedLinearParams params;
  const bool quantized = request.activation != ActivationFormat::bf16;
  params.x = TensorView::contiguous(nullptr, quantized ? DType::e4m3 : DType::bf16, device, {tokens, g, weight.k});
  if (quantized) params.x_scale = TensorView::contiguous(nullptr, DType::f32, device, {tokens, g, weight.k / kActivationBlock});
  params.weight = &weight;
  params.y = TensorView::contiguous(nullptr, request.output, device, {tokens, g, weight.n});
  return params;
}

// Position in the op's list of the implementation that is selected. Throws unsupported.
template <class Params>
size_t position(const Op<Params>& op, const Params& params, const Device& device) {
  const Implementation<Params>& chosen = op.select(params, device);
  return static_cast<size_t>(&chosen - op.implementations().data());
}

// For every number of tokens. Throws unsupported.
using Positions = std::array<size_t, kTokenCounts.size()>;
Positions positions(const OpSet& ops, const Device& device, const LinearRequest& request, const LinearWeight& weight) {
  Positions all;
  std::transform(kTokenCounts.begin(), kTokenCounts.end(), all.begin(), [&](int64_t tokens) {
    return request.groups == 0 ? position(ops.linear, linear_call(request, weight, tokens, device.id()), device)
                               : position(ops.grouped_linear, grouped_call(request, weight, tokens, device.id()), device);
  });
  return all;
}

LinearWeight packed_form(const LinearWeight& weight, const WeightPacking& packing, size_t bytes) {
  return ops::as_packed(weight, packing.name,
                        TensorView::contiguous(nullptr, DType::u8, weight.weight.device, {static_cast<int64_t>(bytes)}));
}

}  // namespace

WeightFormChoice choose_weight_form(const OpSet& ops, const Device& device, const LinearRequest& request,
                                    const std::optional<LinearWeight>& fp8, const std::optional<LinearWeight>& bf16,
                                    const std::string& name) {
  using Rank = std::tuple<size_t, Positions, bool, bool, size_t, bool>;
  std::optional<WeightFormChoice> best;
  Rank best_rank;
  std::string refusals;
  const auto consider = [&](const LinearWeight& weight, const WeightFormChoice& choice) {
    try {
      const size_t bytes = choice.packing ? choice.packed_bytes : weight.weight.bytes() + weight.scale.bytes();
      const Positions at = positions(ops, device, request, weight);
      const bool rounded = !choice.fp8 && fp8.has_value() && !fp8->power_of_two_scales;
      const Rank rank{*std::max_element(at.begin(), at.end()), at, choice.packing == nullptr, rounded, bytes, choice.fp8};
      if (best && best_rank <= rank) return;
      best = choice;
      best_rank = rank;
    } catch (const Error& e) {
      if (e.code() != ErrorCode::unsupported) throw;
      if (refusals.find(e.what()) == std::string::npos) refusals += (refusals.empty() ? "" : "; ") + std::string(e.what());
    }
  };
  for (const auto* form : {&fp8, &bf16}) {
    if (!form->has_value()) continue;
    const LinearWeight& weight = form->value();
    const bool is_fp8 = form == &fp8;
    for (const WeightPacking& packing : ops.weight_packings) {
      const size_t bytes = request.pack ? packing.packed_bytes(weight, device) : 0;
      if (bytes > 0) consider(packed_form(weight, packing, bytes), {is_fp8, &packing, bytes});
    }
    consider(weight, {is_fp8, nullptr, 0});
  }
  if (!best) fail(ErrorCode::unsupported, "tensor {}: {}", name, refusals);
  return *best;
}

}  // namespace strata
