#include "layers/launcher.h"

namespace strata {

StepStreams::StepStreams(Device& device, Stream caller, const SideStreams& side, StepSet recorded)
    : device_(device), caller_(caller), side_(side), recorded_(recorded) {
  if ((recorded_ & steps(kBegin)) != 0) device_.record(side_.event(kBegin), caller_);
}

StepStreams::~StepStreams() {
  for (int32_t stream = 1; stream < kStreams; ++stream) {
    try {
      join(stream);
    } catch (...) {
      // A failed device runs no further work; the other stream is joined all the same.
    }
  }
}

Stream StepStreams::begin(int32_t stream, StepSet reads, StepSet also_after) {
  const auto own = static_cast<size_t>(stream);
  const Stream handle = stream_of(stream);
  for (unsigned step = 0; step < kMaxSteps; ++step) {
    const StepSet bit = steps(step);
    const bool launched_elsewhere = (launched_ & ~launched_on_[own] & bit) != 0;
    if (!launched_elsewhere || (((reads & ~ordered_[own]) | also_after) & bit) == 0) continue;
    device_.wait(side_.event(step), handle);
    ordered_[own] |= after_[step];
    begun_[own] = true;  // as that step's stream has
  }
  if (stream != 0 && !begun_[own]) device_.wait(side_.event(kBegin), handle);
  begun_[own] = true;
  return handle;
}

void StepStreams::end(int32_t stream, unsigned step) {
  const auto own = static_cast<size_t>(stream);
  const StepSet bit = steps(step);
  launched_ |= bit;
  launched_on_[own] |= bit;
  ordered_[own] |= bit;
  after_[step] = ordered_[own];
  if ((recorded_ & bit) != 0) device_.record(side_.event(step), stream_of(stream));
}

void StepStreams::join(int32_t stream) {
  bool& begun = begun_[static_cast<size_t>(stream)];
  if (!begun) return;
  begun = false;
  const Event event = side_.event(kBegin + stream);
  device_.record(event, stream_of(stream));
  device_.wait(event, caller_);
}

void StepStreams::join() {
  for (int32_t stream = 1; stream < kStreams; ++stream) join(stream);
}

}  // namespace strata
