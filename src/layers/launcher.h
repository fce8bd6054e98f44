// Launches a layer's steps in a given order on the caller's stream and on side streams. Waits follow from what each step reads.
#pragma once

#include <array>
#include <span>

#include "layers/launch_order/launch.h"
#include "layers/op_runner.h"

namespace strata {

// The streams of one forward. The caller's stream finally waits for the side streams, also when a step throws: launched work still runs,
// and later work on the caller's stream must not overtake it.
class StepStreams {
 public:
  static constexpr int32_t kStreams = 1 + SideStreams::kStreams;
  // Each step has the event of its index. The begin of the forward and the end of each side stream have events too.
  static constexpr unsigned kMaxSteps = SideStreams::kEvents - kStreams;
  static constexpr unsigned kBegin = kMaxSteps;

  // `recorded`: steps that launches on other streams wait for, and kBegin if there are launches on side streams.
  StepStreams(Device& device, Stream caller, const SideStreams& side, StepSet recorded);
  ~StepStreams();
  StepStreams(const StepStreams&) = delete;
  StepStreams& operator=(const StepStreams&) = delete;

  // Returns the stream of a launch, after it waits for the launched steps of `reads` and `also_after`. A wait for `reads` that an earlier
  // wait implies is omitted.
  Stream begin(int32_t stream, StepSet reads, StepSet also_after);
  // Notes that the step has been launched on the stream that begin() returned.
  void end(int32_t stream, unsigned step);
  // Later work of the caller's stream waits for all launches.
  void join();

 private:
  Stream stream_of(int32_t stream) const { return stream == 0 ? caller_ : side_.stream(stream - 1); }
  void join(int32_t stream);

  Device& device_;
  Stream caller_;
  const SideStreams& side_;
  StepSet recorded_;
  StepSet launched_ = 0;
  std::array<StepSet, kStreams> launched_on_{};
  std::array<StepSet, kStreams> ordered_{};  // by stream: the steps that its next launch runs after
  std::array<StepSet, kMaxSteps> after_{};   // by step: itself, and the steps that it runs after
  std::array<bool, kStreams> begun_{};       // by side stream: whether it has waited for the caller's stream
};

// Calls issue(step, runner) for every launch of `order`. With side streams all steps have separate memory, in a plan too: the same
// workspace serves every order of the same steps.
template <class Step, class Issue>
void launch_steps(const OpRunner& run, std::span<const Launch<Step>> order, Issue&& issue) {
  if (run.side_streams == nullptr) {
    for (const Launch<Step>& launch : order) {
      const ArenaScope scope(run.arena);
      issue(launch.step, run);
    }
    return;
  }
  const auto issue_on = [&](Stream stream, const Launch<Step>& launch) {
    const OpRunner on{run.ops, run.device, run.arena, stream, run.side_streams};
    run.arena.without_reuse([&] { issue(launch.step, on); });
  };
  if (run.arena.measuring()) {
    for (const Launch<Step>& launch : order) issue_on({}, launch);
    return;
  }
  StepSet recorded = 0;
  for (const Launch<Step>& from : order) {
    if (from.stream != 0) recorded |= steps(StepStreams::kBegin);
    for (const Launch<Step>& to : order) {
      if (to.stream != from.stream) recorded |= (reads_of(to.step) | to.also_after) & steps(from.step);
    }
  }
  StepStreams streams(run.device, run.stream, *run.side_streams, recorded);
  for (const Launch<Step>& launch : order) {
    issue_on(streams.begin(launch.stream, reads_of(launch.step), launch.also_after), launch);
    streams.end(launch.stream, static_cast<unsigned>(launch.step));
  }
  streams.join();
}

}  // namespace strata
