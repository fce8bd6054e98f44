// Runs ops one after the other on a device, each with what is left of the layer's workspace. With a measuring arena nothing runs and
// only the workspace is summed up, so that the same forward function plans and computes.
#pragma once

#include "core/arena.h"
#include "strata/op_set.h"

namespace strata {

class OpRunner {
 public:
  OpRunner(Device& device, Stream stream, const OpSet& op_set, Arena& memory)
      : ops(op_set), arena(memory), device_(device), stream_(stream) {}

  template <class Params>
  void operator()(const Op<Params>& op, const Params& params) {
    const Workspace workspace = arena.rest(op.workspace_bytes(params, device_));
    if (!arena.measuring()) op(params, ExecutionContext{device_, stream_, workspace});
  }

  // Zeros in a contiguous view.
  void zero(const TensorView& view) {
    if (!arena.measuring() && view.numel() > 0) device_.fill(view.data, 0, view.bytes(), stream_);
  }

  const OpSet& ops;
  Arena& arena;

 private:
  Device& device_;
  Stream stream_;
};

// Gives the arena's memory taken within a scope back at its end.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.release(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  size_t mark_;
};

}  // namespace strata
