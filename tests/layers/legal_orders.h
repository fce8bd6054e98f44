// Orders in which a layer's steps may be launched: each step after the steps that it reads.
#pragma once

#include <algorithm>
#include <random>
#include <span>
#include <vector>

#include "layers/launch_order/launch.h"

namespace strata::test {

template <class Step>
using LaunchList = std::vector<Launch<Step>>;

// Whether every step comes after those that it reads, as far as the list has these.
template <class Step>
bool is_legal(std::span<const Launch<Step>> order) {
  const StepSet all = launched_steps(order);
  StepSet done = 0;
  for (const Launch<Step>& launch : order) {
    if ((reads_of(launch.step) & all & ~done) != 0) return false;
    done |= steps(launch.step);
  }
  return true;
}

// Every legal order of the steps of `order`, or the first `most` of them.
template <class Step>
std::vector<LaunchList<Step>> legal_orders(std::span<const Launch<Step>> order, size_t most) {
  const StepSet all = launched_steps(order);
  std::vector<LaunchList<Step>> found;
  LaunchList<Step> begun;
  const auto extend = [&](auto&& self, StepSet done) -> void {
    if (found.size() == most) return;
    if (done == all) return found.push_back(begun);
    for (const Launch<Step>& launch : order) {
      if ((steps(launch.step) & done) != 0 || (reads_of(launch.step) & all & ~done) != 0) continue;
      begun.push_back({.step = launch.step});
      self(self, done | steps(launch.step));
      begun.pop_back();
    }
  };
  extend(extend, 0);
  return found;
}

// `count` legal orders by chance.
template <class Step>
std::vector<LaunchList<Step>> random_orders(std::span<const Launch<Step>> order, size_t count, std::mt19937& random) {
  const StepSet all = launched_steps(order);
  std::vector<LaunchList<Step>> found(count);
  for (LaunchList<Step>& list : found) {
    for (StepSet done = 0; done != all; done |= steps(list.back().step)) {
      std::vector<Step> ready;
      for (const Launch<Step>& launch : order) {
        if ((steps(launch.step) & done) == 0 && (reads_of(launch.step) & all & ~done) == 0) ready.push_back(launch.step);
      }
      list.push_back({.step = ready[random() % ready.size()]});
    }
  }
  return found;
}

// All legal orders if they are at most 2,000, otherwise 500 by chance.
template <class Step>
std::vector<LaunchList<Step>> orders_to_try(std::span<const Launch<Step>> order) {
  constexpr size_t kMost = 2000, kSample = 500;
  std::vector<LaunchList<Step>> all = legal_orders(order, kMost + 1);
  if (all.size() <= kMost) return all;
  std::mt19937 random(1);
  return random_orders(order, kSample, random);
}

}  // namespace strata::test
