// The order in which a layer's steps are launched, and their streams. As data: an order changes when work runs, and no result.
#pragma once

#include <cstdint>
#include <span>

namespace strata {

// A set of a layer's steps: bit s stands for step s.
using StepSet = uint32_t;

template <class... Steps>
constexpr StepSet steps(Steps... step) {
  return (StepSet{0} | ... | (StepSet{1} << static_cast<unsigned>(step)));
}

// A launch waits for the steps that its own step reads. `Step` has a function reads_of(Step) -> StepSet.
template <class Step>
struct Launch {
  Step step;
  int32_t stream = 0;      // 0: the caller's; i: side stream i - 1
  StepSet also_after = 0;  // further steps that the launch waits for, although its step does not read them
};

template <class Step>
constexpr StepSet launched_steps(std::span<const Launch<Step>> order) {
  StepSet set = 0;
  for (const Launch<Step>& launch : order) set |= steps(launch.step);
  return set;
}

}  // namespace strata
