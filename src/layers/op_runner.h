// Runs ops on a stream of a device, each with what is left of the layer's workspace. With a measuring arena nothing runs and only the
// workspace is summed up, so that the same forward function plans and computes.
#pragma once

#include "core/arena.h"
#include "strata/attention.h"
#include "strata/op_set.h"

namespace strata {

// Gives the arena's memory taken within a scope back at its end.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.release(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  int64_t mark_;
};

// What can run concurrently with the caller's stream; null: nothing.
inline const SideStreams* concurrent(const std::shared_ptr<SideStreams>& streams) {
  return streams != nullptr && streams->concurrent() ? streams.get() : nullptr;
}

struct OpRunner {
  const OpSet& ops;
  Device& device;
  Arena& arena;
  Stream stream{};
  const SideStreams* side_streams = nullptr;  // null: everything runs on `stream`, in order

  template <class Params>
  void operator()(const Op<Params>& op, const Params& params, const Hints& hints = {}) const {
    const Workspace workspace = arena.rest(op.workspace_bytes(params, device));
    if (!arena.measuring()) op(params, ExecutionContext{device, stream, workspace, hints});
  }

  // Zeros in a contiguous view.
  void zero(const TensorView& view) const {
    if (!arena.measuring() && view.numel() > 0) device.fill(view.data, 0, view.bytes(), stream);
  }
};

}  // namespace strata
