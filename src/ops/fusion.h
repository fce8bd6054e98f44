// Prologues and epilogues: what another op does before or after this one, as an optional member of a call (docs/decisions/0005). The result
// is bit for bit that of the two ops. An implementation states which ones its kernels fuse (Implementation::fuses); the others are run
// here, as the separate op.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/arena.h"
#include "strata/op.h"

namespace strata::ops {

enum class FusionKind : uint8_t { prologue, epilogue };

template <class Params, class Other>
struct Fusion {
  std::string_view name;  // of the member of Params; Implementation::fuses is called with it
  std::string_view op{};  // the other op's name in Config::force; empty: not an op that can be forced
  FusionKind kind = FusionKind::prologue;
  bool (*requested)(const Params&) = nullptr;
  // The call without the member. Intermediate results are in memory of the arena.
  Params (*without)(const Params&, Arena&) = nullptr;
  // The call of the other op. `rest`: what without() returned. Its views may belong to a call that was not checked.
  Other (*call)(const Params& whole, const Params& rest) = nullptr;
  // Several calls instead of one, where strides need that; empty: one suffices. Absent: always one.
  std::vector<Other> (*parts)(const Params& whole, const Params& rest) = nullptr;
  // Whether the separate op has nothing to do. Absent: never.
  bool (*idle)(const Params&) = nullptr;
  // If some implementations fuse at some sizes only, the separate op's workspace is counted at all sizes, so that no larger call needs
  // less.
  bool always_reserve = false;
};

// "cuda" of "cuda/sm90".
inline std::string_view backend_of(std::string_view implementation) { return implementation.substr(0, implementation.find('/')); }

// The implementation of the other op: the one that Config::force names, else one of `backend` that takes the call, else any that does.
template <class Other>
const Implementation<Other>* separate_op(const std::vector<Implementation<Other>>& others, std::string_view op, std::string_view backend,
                                         const Other& params, const Device& device) {
  const std::string forced = op.empty() ? std::string() : detail::forced_name(op, others, device);
  const Implementation<Other>* any = nullptr;
  for (const Implementation<Other>& other : others) {
    if (!forced.empty()) {
      if (other.name == forced && other.supports(params, device)) return &other;
      continue;
    }
    const bool same = backend_of(other.name) == backend;
    if ((!same && any != nullptr) || !other.eligible(params, device)) continue;
    if (same) return &other;
    any = &other;
  }
  return any;
}

// `implementation` with the prologue or epilogue, for calls that have it; by the separate op where the implementation does not fuse it.
template <class Params, class Other>
Implementation<Params> with_fusion(Implementation<Params> implementation, const Fusion<Params, Other>& fusion,
                                   const std::vector<Implementation<Other>>& others) {
  const Implementation<Params> inner = std::move(implementation);
  const auto is_separate = [fusion, fuses = inner.fuses](const Params& p, const Device& device) {
    return fusion.requested(p) && !(fuses && fuses(p, device, fusion.name));
  };
  const auto other_of = [others, op = fusion.op, name = inner.name](const Other& params,
                                                                    const Device& device) -> const Implementation<Other>& {
    const Implementation<Other>* const other = separate_op(others, op, backend_of(name), params, device);
    if (other == nullptr) fail(ErrorCode::unsupported, "{}: no implementation of the separate op takes the call", name);
    return *other;
  };
  Implementation<Params> outer = inner;
  outer.supports = [fusion, is_separate, others, inner](const Params& p, const Device& device) {
    if (!is_separate(p, device)) return inner.supports(p, device);
    Arena measure(device.id());
    const Params rest = fusion.without(p, measure);
    Support support = inner.supports(rest, device);
    if (!support || (fusion.idle && fusion.idle(p))) return support;
    if (separate_op(others, fusion.op, backend_of(inner.name), fusion.call(p, rest), device) == nullptr) {
      return Support::no(fmt::format("does not fuse {}, and no implementation of that op takes the call", fusion.name));
    }
    return support;
  };
  if (inner.prefers) {
    outer.prefers = [fusion, is_separate, inner](const Params& p, const Device& device) {
      if (!is_separate(p, device)) return inner.prefers(p, device);
      Arena measure(device.id());
      return inner.prefers(fusion.without(p, measure), device);
    };
  }
  outer.workspace_bytes = [fusion, is_separate, other_of, inner](const Params& p, const Device& device) -> int64_t {
    const bool separate = is_separate(p, device);
    const int64_t whole = separate ? 0 : inner.workspace_bytes(p, device);
    if (!separate && !(fusion.always_reserve && fusion.requested(p))) return whole;
    Arena measure(device.id());
    const Params rest = fusion.without(p, measure);
    static_cast<void>(measure.rest(inner.workspace_bytes(rest, device)));
    if (fusion.idle && fusion.idle(p)) return std::max(whole, measure.peak());
    const Other other = fusion.call(p, rest);
    static_cast<void>(measure.rest(other_of(other, device).workspace_bytes(other, device)));
    return std::max(whole, measure.peak());
  };
  outer.run = [fusion, is_separate, other_of, inner](const Params& p, const ExecutionContext& context) {
    if (!is_separate(p, context.device)) return inner.run(p, context);
    Arena arena(context.device.id(), context.workspace);
    const Params rest = fusion.without(p, arena);
    ExecutionContext own = context;
    own.workspace = arena.rest(0);
    ExecutionContext apart = own;
    apart.hints = {};  // the hints describe what follows the whole call
    const auto run_other = [&] {
      if (fusion.idle && fusion.idle(p)) return;
      const auto run_one = [&](const Other& o) { other_of(o, context.device).run(o, apart); };
      const std::vector<Other> parts = fusion.parts ? fusion.parts(p, rest) : std::vector<Other>{};
      if (parts.empty()) return run_one(fusion.call(p, rest));
      for (const Other& o : parts) run_one(o);
    };
    if (fusion.kind == FusionKind::prologue) run_other();
    inner.run(rest, own);
    if (fusion.kind == FusionKind::epilogue) run_other();
  };
  outer.fuses = [fusion, fuses = inner.fuses](const Params& p, const Device& device, std::string_view name) {
    return name == fusion.name || (fuses && fuses(p, device, name));
  };
  return outer;
}

}  // namespace strata::ops
