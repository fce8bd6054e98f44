// Runs ops one after the other on a device, each with what is left of the layer's workspace. With a measuring arena nothing runs and
// only the workspace is summed up, so that the same forward function plans and computes.
#pragma once

#include <bitset>

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

class OpRunner {
 public:
  // lanes: null, or what aside() uses.
  OpRunner(Device& device, Stream stream, const OpSet& op_set, Arena& memory, Lanes* lanes = nullptr)
      : ops(op_set), arena(memory), device_(device), stream_(stream), lanes_(lanes != nullptr && lanes->concurrent() ? lanes : nullptr) {}
  // Where an op threw, what the lanes were given before still runs: whoever uses the stream next must not overtake it.
  ~OpRunner() {
    for (int64_t lane = 0; lane < Lanes::kCount; ++lane) {
      try {
        join(lane);
      } catch (...) {
        // A device that failed does nothing any more; the other lane is joined all the same.
      }
    }
  }
  OpRunner(const OpRunner&) = delete;
  OpRunner& operator=(const OpRunner&) = delete;

  template <class Params>
  void operator()(const Op<Params>& op, const Params& params) {
    const Workspace workspace = arena.rest(op.workspace_bytes(params, device_));
    if (!arena.measuring()) op(params, ExecutionContext{device_, stream_, workspace});
  }

  // A call for later, on the stream of the runner that prepared it: when it is called it goes behind what that stream has.
  template <class Params>
  class Prepared {
   public:
    void operator()() const {
      if (!measuring_) (*op_)(params_, context_);
    }

   private:
    friend class OpRunner;
    Prepared(const Op<Params>& op, const Params& params, const ExecutionContext& context, bool measuring)
        : op_(&op), params_(params), context_(context), measuring_(measuring) {}
    const Op<Params>* op_;
    Params params_;
    ExecutionContext context_;
    bool measuring_;
  };
  // Its workspace is taken now: what is run in between has other memory.
  template <class Params>
  Prepared<Params> prepare(const Op<Params>& op, const Params& params) {
    const TensorView workspace = arena.tensor(DType::u8, {op.workspace_bytes(params, device_)});
    return {op, params, ExecutionContext{device_, stream_, {workspace.data, workspace.bytes()}}, arena.measuring()};
  }

  // Zeros in a contiguous view.
  void zero(const TensorView& view) {
    if (!arena.measuring() && view.numel() > 0) device_.fill(view.data, 0, view.bytes(), stream_);
  }

  // Whether there are lanes: what is run between aside() and join() shares the device.
  bool concurrent() const { return lanes_ != nullptr || on_lane_; }
  // f(runner): work that needs what was run before, and that nothing run from here on needs until join(). It runs beside the rest on lane
  // `lane`, after what the lane has, and what it takes of the arena stays taken; without lanes it runs here and now.
  template <class F>
  void aside(int64_t lane, F&& f) {
    if (lanes_ == nullptr) {
      const ArenaScope scope(arena);
      f(*this);
      return;
    }
    OpRunner runner(device_, arena.measuring() ? stream_ : lanes_->fork(lane, stream_), ops, arena);
    runner.on_lane_ = true;
    forked_.set(static_cast<size_t>(lane));
    arena.keep_all([&] { f(runner); });
  }
  // What lane `lane` is given next waits for what lane `other` has, both given work by aside().
  void order(int64_t other, int64_t lane) {
    if (lanes_ != nullptr && !arena.measuring()) lanes_->order(other, lane);
  }
  // What is run next waits for what lane `lane` has.
  void join(int64_t lane) {
    if (forked_[static_cast<size_t>(lane)] && !arena.measuring()) lanes_->join(lane, stream_);
    forked_.reset(static_cast<size_t>(lane));
  }
  void join() {
    for (int64_t lane = 0; lane < Lanes::kCount; ++lane) join(lane);
  }

  const OpSet& ops;
  Arena& arena;

 private:
  Device& device_;
  Stream stream_;
  Lanes* lanes_;
  bool on_lane_ = false;
  std::bitset<Lanes::kCount> forked_;
};

}  // namespace strata
