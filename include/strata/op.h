// An op is a contract (params struct and check) and one ordered list of implementations: fastest first, the scalar reference last.
// Selection is one loop over that list; candidates() returns the reason of every refusal.
#pragma once

#include <cstdint>
#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strata/device.h"
#include "strata/error.h"
#include "strata/tensor.h"

namespace strata {

// What holds in every header:
// - Sizes are signed: counts, extents, positions, strides, offsets and byte counts are int64_t, or int32_t where a field says so. They mix
// without casts. Exceptions are size_t for indices of standard containers, for size_of(DType), which is like sizeof, and for the bytes of
// tensors in files (checkpoint.h).
// - A result that must be used, because it refuses, states a size or owns something, is [[nodiscard]].

// Caller-owned scratch memory on the op's device, aligned to 256 bytes. Its contents are unspecified before and after a call. Calls that
// may run concurrently, on several streams or threads, need separate workspaces.
struct Workspace {
  void* data = nullptr;  // aligned to 256 bytes
  int64_t bytes = 0;     // size of the memory
};
// The whole memory of a tensor.
[[nodiscard]] inline Workspace workspace_of(const Tensor& memory) { return {memory.view().data, memory.allocated_bytes()}; }

// Optional hints that may make an op faster. Hints never change a result by a bit; an implementation may ignore them.
struct Hints {
  // Prefetch hint: the weights [n, k], contiguous, that the next op of the stream reads. Absent: unknown.
  TensorView next_weights{};
};

// Where an op runs, its scratch memory and its hints.
struct ExecutionContext {
  Device& device;         // where the views of the params are
  Stream stream{};        // work is enqueued here
  Workspace workspace{};  // at least Op::workspace_bytes bytes
  Hints hints{};          // may stay empty
};

// Yes, or the reason why not.
struct [[nodiscard]] Support {
  std::string reason;  // of a refusal: "needs D = 512 or 576, is 320"; empty: yes
  // No reason against it.
  static Support yes() { return {}; }
  // A refusal. `why` is not empty.
  static Support no(std::string why) { return {std::move(why)}; }
  // True for yes.
  explicit operator bool() const { return reason.empty(); }
};

// One way to compute an op. `supports`, `prefers` and `workspace_bytes` depend only on shapes, strides, dtypes, formats and the device.
// They never look at data or addresses (data may be null), so planning and running select the same implementation. `run` therefore takes
// memory of any alignment that the op's contract allows. workspace_bytes must not shrink when a number of tokens, requests, rows or
// candidates grows.
template <class Params>
struct Implementation {
  std::string name;                                                      // "reference", "cpu/amx", "cuda/sm90": backend first
  std::function<Support(const Params&, const Device&)> supports;         // whether it can run the call
  std::function<int64_t(const Params&, const Device&)> workspace_bytes;  // bytes of ExecutionContext::workspace that run needs
  std::function<void(const Params&, const ExecutionContext&)> run;       // enqueues the work; the params are checked and supported
  // Whether the implementation should run a call that it can run. The reason of a refusal names what is faster. Absent: always. A refused
  // implementation is only selected when Config::force names it.
  std::function<Support(const Params&, const Device&)> prefers{};
  // Whether run() computes the prologue or epilogue of this name (a member of Params) itself. Absent: none. The op runs the prologues and
  // epilogues that are not fused as separate calls, by the library's implementation of that op (a forced one, or one of the same backend).
  // The implementation then sees the call without them.
  std::function<bool(const Params&, const Device&, std::string_view)> fuses{};

  // Whether the implementation can and should run the call, or the first reason why not.
  [[nodiscard]] Support eligible(const Params& params, const Device& device) const {
    Support support = supports(params, device);
    return support && prefers ? prefers(params, device) : support;
  }
};

// An implementation's answers for one call.
struct Candidate {
  std::string name;      // of the implementation
  Support support;       // whether it can run the call
  Support preference{};  // whether it should run the call; yes where support is no
  // Whether it can and should run the call.
  bool is_eligible() const { return support && preference; }
  // The first reason of a refusal; empty when eligible.
  const std::string& reason() const { return support ? preference.reason : support.reason; }
};

namespace detail {
// Throws unsupported, naming the op, the device, the forced implementation unless `forced` is empty, and every candidate with its reason.
[[noreturn]] void throw_no_implementation(std::string_view op, const Device& device, std::string_view forced,
                                          const std::vector<Candidate>& refused);
// Throws workspace_too_small, or invalid_argument for memory that is not aligned to 256 bytes. With needed == 0 any address is accepted.
void check_workspace(std::string_view op, std::string_view implementation, int64_t needed, const Workspace& given);
// Throws invalid_argument for an implementation of `op` that lacks its name or a required function.
void check_complete(std::string_view op, std::string_view name, bool functions);
// The name that the device's Config forces for this op; empty: none.
std::string forced_implementation(std::string_view op, const Device& device);
// The forced name of this op; else the one forced for "*", if the op has an implementation of that name; else empty.
template <class Params>
std::string forced_name(std::string_view op, const std::vector<Implementation<Params>>& implementations, const Device& device) {
  std::string name = forced_implementation(op, device);
  if (!name.empty()) return name;
  name = forced_implementation("*", device);
  const bool is_there = std::any_of(implementations.begin(), implementations.end(), [&](const auto& i) { return i.name == name; });
  return is_there ? name : std::string();
}
}  // namespace detail

// An op: the check of its contract, and its implementations in order. What holds for every op, unless a field says otherwise:
// - Memory may come from anywhere that the device can access: Device::allocate, an engine's pool, another library's tensor.
// - Alignment: elements begin at a multiple of their size, a schedule at a multiple of 4 bytes. CUDA devices require more. x and y of the
// linear ops, and q, out and the caches of sparse_attn_decode, begin at a multiple of the largest power of two, up to 16, that divides
// their row stride, or page stride, in bytes. Weights of the linear ops and their scales begin at a multiple of 16.
// - A call enqueues work on context.stream and returns; on a CPU the work is done on return. Params are read before the call returns. The
// memory of their views must stay valid until the stream has finished the work. The caller orders work on other streams.
// - Weights, norm weights, sinks, their scales and biases, and rotary tables must be complete before the call. GPU kernels may read them
// before the preceding kernel of the stream has finished: after a kernel that writes one, synchronise before the first call.
// - Several threads may call an op at once, each with its own workspace.
// - No output overlaps another view, cache or workspace, and no element of an output is stored twice. Inputs may overlap each other.
// - A call of 0 tokens is allowed and does nothing.
// - A call that throws has written nothing, except after device_failure: memory contents are then unspecified.
template <class Params>
class Op {
 public:
  // Throws invalid_argument for params that break the contract, as check() does.
  using Check = std::function<void(const Params&, DeviceId)>;

  // Adds to an implementation the prologues and epilogues that it does not fuse.
  using Complete = std::function<Implementation<Params>(Implementation<Params>)>;

  // Implementations fastest first. `complete`, if given, is applied to each of them, and to those that prepend() adds.
  Op(std::string name, Check check, std::vector<Implementation<Params>> implementations, Complete complete = {})
      : name_(std::move(name)), check_(std::move(check)), implementations_(std::move(implementations)), complete_(std::move(complete)) {
    if (!complete_) return;
    for (auto& implementation : implementations_) implementation = complete_(std::move(implementation));
  }

  // The op's name: "linear".
  const std::string& name() const { return name_; }
  // Fastest first, the reference last.
  const std::vector<Implementation<Params>>& implementations() const { return implementations_; }

  // Puts a caller's implementation before the built-in ones. Throws invalid_argument if its name or a required function is missing.
  void prepend(Implementation<Params> implementation) {
    detail::check_complete(name_, implementation.name, implementation.supports && implementation.workspace_bytes && implementation.run);
    implementations_.insert(implementations_.begin(), complete_ ? complete_(std::move(implementation)) : std::move(implementation));
  }

  // Every implementation in list order, with the reason of its refusal.
  [[nodiscard]] std::vector<Candidate> candidates(const Params& params, const Device& device) const {
    std::vector<Candidate> result;
    for (const auto& impl : implementations_) {
      result.push_back({impl.name, impl.supports(params, device)});
      if (result.back().support && impl.prefers) result.back().preference = impl.prefers(params, device);
    }
    return result;
  }

  // The first implementation that can and should run the call. With Config::force: the one of that name if it can run the call. A name
  // forced for "*" applies where the op has such an implementation. Throws unsupported, listing every refusal, if there is none.
  [[nodiscard]] const Implementation<Params>& select(const Params& params, const Device& device) const {
    const std::string forced = detail::forced_name(name_, implementations_, device);
    for (const auto& impl : implementations_) {
      if (!forced.empty() && impl.name != forced) continue;
      if (forced.empty() ? impl.eligible(params, device) : impl.supports(params, device)) return impl;
    }
    detail::throw_no_implementation(name_, device, forced, candidates(params, device));
  }

  // Checks the params against the contract. Throws invalid_argument naming the field, the expected and the actual value. Every view must
  // be on `device`.
  void check(const Params& params, DeviceId device) const { check_(params, device); }

  // Workspace of the implementation that is selected for these shapes. Fewer tokens may select another implementation, which may need more.
  [[nodiscard]] int64_t workspace_bytes(const Params& params, const Device& device) const {
    return select(params, device).workspace_bytes(params, device);
  }

  // Checks the params, selects an implementation, checks the workspace, and runs on context.stream.
  void operator()(const Params& params, const ExecutionContext& context) const {
    check_(params, context.device.id());
    const auto& impl = select(params, context.device);
    detail::check_workspace(name_, impl.name, impl.workspace_bytes(params, context.device), context.workspace);
    impl.run(params, context);
  }

 private:
  std::string name_;
  Check check_;
  std::vector<Implementation<Params>> implementations_;
  Complete complete_;
};

}  // namespace strata
