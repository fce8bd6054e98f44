// What an op is: a contract (params struct + check), and one ordered list of implementations, fastest first, the scalar
// reference last. Selecting is one loop over that list; candidates() has the reason of every refusal.
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
// - Sizes are signed: counts, extents, positions, strides, offsets and numbers of bytes are int64_t, or int32_t where a field says so, and
//   mix without casts. size_t is left to indices of the standard library's containers, to size_of(DType), which is like sizeof, and to the
//   bytes of tensors in files (checkpoint.h).
// - A result that must be looked at, because it refuses, states a size or owns something, is [[nodiscard]].

// Caller-owned scratch memory on the op's device, aligned to 256 bytes. Its contents before and after a call are unspecified; calls that
// may run at the same time, on several streams or threads, need one each.
struct Workspace {
  void* data = nullptr;
  int64_t bytes = 0;
};
// All of a tensor's memory.
[[nodiscard]] inline Workspace workspace_of(const Tensor& memory) { return {memory.view().data, memory.allocated_bytes()}; }

// What an implementation may use to be faster. Hints never change a result by a bit, and may be passed over.
struct Hints {
  // Weights that the next op of the stream reads, [n, k], contiguous: they may be prefetched. Absent: not known.
  TensorView next_weights{};
};

// Where and with what an op runs.
struct ExecutionContext {
  Device& device;
  Stream stream{};
  Workspace workspace{};
  Hints hints{};
};

// ok, or the reason why not.
struct [[nodiscard]] Support {
  std::string reason;
  static Support yes() { return {}; }
  static Support no(std::string why) { return {std::move(why)}; }
  explicit operator bool() const { return reason.empty(); }
};

// `supports`, `prefers` and `workspace_bytes` look at shapes, strides, dtypes, formats and the device, never at data or where it is (it may
// be null), so that a choice made while planning is the choice made while running: `run` takes memory of any alignment that the op's
// contract allows. workspace_bytes must not shrink when a number of tokens, requests, rows or candidates grows.
template <class Params>
struct Implementation {
  std::string name;                                               // "reference", "cpu/amx", "cuda/sm90": backend first
  std::function<Support(const Params&, const Device&)> supports;  // whether it can run the call
  std::function<int64_t(const Params&, const Device&)> workspace_bytes;
  std::function<void(const Params&, const ExecutionContext&)> run;
  // Whether it should run a call that it can run; the reason why not names what is faster. Absent: yes. It is not selected where it should
  // not run, unless Config::force names it.
  std::function<Support(const Params&, const Device&)> prefers{};
  // Whether run() does the prologue or epilogue of this name (a member of Params) itself. Absent: none. The op runs the others separately,
  // by the library's own implementations of that op (a forced one, or one of this backend); this one sees the call without them.
  std::function<bool(const Params&, const Device&, std::string_view)> fuses{};

  // Whether it can and should run the call, or the first reason why not.
  [[nodiscard]] Support eligible(const Params& params, const Device& device) const {
    Support support = supports(params, device);
    return support && prefers ? prefers(params, device) : support;
  }
};

struct Candidate {
  std::string name;
  Support support;
  Support preference{};  // yes where support is no
  bool is_eligible() const { return support && preference; }
  const std::string& reason() const { return support ? preference.reason : support.reason; }
};

namespace detail {
// Throws unsupported: op, device, and every candidate with its reason.
[[noreturn]] void throw_no_implementation(std::string_view op, const Device& device, const std::vector<Candidate>& refused);
// Throws workspace_too_small, or invalid_argument where the memory is not aligned to 256 bytes; 0 bytes may be anywhere.
void check_workspace(std::string_view op, std::string_view implementation, int64_t needed, const Workspace& given);
// Throws invalid_argument for an implementation of `op` without a name or one of its functions.
void check_complete(std::string_view op, std::string_view name, bool functions);
// The name that the device's Config forces for this op; empty: none.
std::string forced_implementation(std::string_view op, const Device& device);
// The same, or the one that it forces for "*" where the op has an implementation of that name.
template <class Params>
std::string forced_name(std::string_view op, const std::vector<Implementation<Params>>& implementations, const Device& device) {
  std::string name = forced_implementation(op, device);
  if (!name.empty()) return name;
  name = forced_implementation("*", device);
  const bool is_there = std::any_of(implementations.begin(), implementations.end(), [&](const auto& i) { return i.name == name; });
  return is_there ? name : std::string();
}
}  // namespace detail

// What holds for every op, unless a field says otherwise:
// - Memory may be from anywhere that the device reaches: Device::allocate, an engine's pool, another library's tensor.
// - Alignment: elements begin at a multiple of their size, a schedule at a multiple of 4 bytes. On CUDA devices besides: x and y of the
//   linear ops, q, out and the caches of sparse_attn_decode begin at a multiple of the largest power of two, up to 16, that divides the
//   distance of their rows, or pages, in bytes; weights of the linear ops and their scales at a multiple of 16.
// - A call puts work on context.stream and returns; on a CPU the work is done then. Params are read before it returns; what their views
//   point to must stay until the stream has reached the work. Work on other streams is the caller's to order.
// - Weights, of norms and sinks too, their scales and biases, and tables of rotations are there before the call. A GPU's kernels read them
//   while what is in front of them in the stream still runs: after a kernel that writes one, synchronise before the first call.
// - Several threads may call an op at once, each with a workspace of its own.
// - No output overlaps another view, cache or workspace, and no element of it is stored twice. Inputs may overlap each other.
// - A call of 0 tokens is fine, and does nothing.
// - A call that throws has written nothing, but for device_failure: after that memory may hold anything.
template <class Params>
class Op {
 public:
  using Check = std::function<void(const Params&, DeviceId)>;

  // Completes an implementation by the prologues and epilogues that it does not fuse.
  using Complete = std::function<Implementation<Params>(Implementation<Params>)>;

  Op(std::string name, Check check, std::vector<Implementation<Params>> implementations, Complete complete = {})
      : name_(std::move(name)), check_(std::move(check)), implementations_(std::move(implementations)), complete_(std::move(complete)) {
    if (!complete_) return;
    for (auto& implementation : implementations_) implementation = complete_(std::move(implementation));
  }

  const std::string& name() const { return name_; }
  const std::vector<Implementation<Params>>& implementations() const { return implementations_; }

  // A caller's own implementation goes before the built-in ones. Throws invalid_argument where its name or one of its functions is missing.
  void prepend(Implementation<Params> implementation) {
    detail::check_complete(name_, implementation.name, implementation.supports && implementation.workspace_bytes && implementation.run);
    implementations_.insert(implementations_.begin(), complete_ ? complete_(std::move(implementation)) : std::move(implementation));
  }

  // Every implementation in order, with why it is refused.
  [[nodiscard]] std::vector<Candidate> candidates(const Params& params, const Device& device) const {
    std::vector<Candidate> result;
    for (const auto& impl : implementations_) {
      result.push_back({impl.name, impl.supports(params, device)});
      if (result.back().support && impl.prefers) result.back().preference = impl.prefers(params, device);
    }
    return result;
  }

  // The first that can and should run the call; with Config::force, the one of that name where it can, or none. "*" in Config::force
  // applies where the op has an implementation of that name.
  [[nodiscard]] const Implementation<Params>& select(const Params& params, const Device& device) const {
    const std::string forced = detail::forced_name(name_, implementations_, device);
    for (const auto& impl : implementations_) {
      if (!forced.empty() && impl.name != forced) continue;
      if (forced.empty() ? impl.eligible(params, device) : impl.supports(params, device)) return impl;
    }
    detail::throw_no_implementation(name_, device, candidates(params, device));
  }

  // Throws Error(invalid_argument) naming the field, what it must be and what it is; every view must be on `device`.
  void check(const Params& params, DeviceId device) const { check_(params, device); }

  // Of the implementation that is chosen for these shapes: fewer tokens may be another one's, which takes more.
  [[nodiscard]] int64_t workspace_bytes(const Params& params, const Device& device) const {
    return select(params, device).workspace_bytes(params, device);
  }

  // check, choose, compare the workspace, run on context.stream.
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
