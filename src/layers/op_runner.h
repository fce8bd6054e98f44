// Runs ops on a stream of a device, each with the rest of the layer's workspace. With a measuring arena nothing runs and only the workspace
// is summed, so that one forward function both plans and computes.
#pragma once

#include "core/arena.h"
#include "strata/attention.h"
#include "strata/op_set.h"

namespace strata {

// Releases at the end of a scope the arena's memory taken within it.
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

// Streams that can run concurrently with the caller's; null: none.
inline const SideStreams* concurrent(const std::shared_ptr<SideStreams>& streams) {
  return streams != nullptr && streams->concurrent() ? streams.get() : nullptr;
}

struct OpRunner {
  const OpSet& ops;
  Device& device;
  Arena& arena;
  Stream stream{};
  const SideStreams* side_streams = nullptr;  // null: all work runs on `stream`, in order

  template <class Params>
  void operator()(const Op<Params>& op, const Params& params, const Hints& hints = {}) const {
    const Workspace workspace = arena.rest(op.workspace_bytes(params, device));
    if (!arena.measuring()) op(params, ExecutionContext{device, stream, workspace, hints});
  }

  // Sets a contiguous view to zero.
  void zero(const TensorView& view) const {
    if (!arena.measuring() && view.numel() > 0) device.fill(view.data, 0, view.bytes(), stream);
  }
};

}  // namespace strata
