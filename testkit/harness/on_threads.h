// Work on several threads at once.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <future>
#include <thread>
#include <vector>

#include "strata/error.h"

namespace strata::testkit {

// Runs f(0) on this thread and f(1), ..., f(threads - 1) on threads of their own; returns when all have finished. If the machine cannot
// start all threads, throws out_of_memory before any call begins. f(1) and later calls must not throw.
template <class F>
void on_threads(int threads, const F& f) {
  std::promise<bool> all_there;
  const std::shared_future<bool> begin = all_there.get_future().share();
  std::vector<std::jthread> team;  // declared after what the threads wait for: joined first
  try {
    for (int t = 1; t < threads; ++t) {
      team.emplace_back([&f, begin, t] {
        if (begin.get()) f(t);
      });
    }
  } catch (const std::exception& error) {
    all_there.set_value(false);
    throw Error(ErrorCode::out_of_memory,
                fmt::format("threads: {} must be started, could be {}: {}", threads, team.size() + 1, error.what()));
  }
  all_there.set_value(true);
  f(0);
}

}  // namespace strata::testkit
