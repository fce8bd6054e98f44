// Threads that do one thing together, and machines that start too few of them.
#include "testkit/harness/on_threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <numeric>

namespace strata::testkit {
namespace {

TEST(OnThreads, EveryNumberOnce) {
  for (const int threads : {1, 2, 7}) {
    std::vector<int> calls(static_cast<size_t>(threads));
    on_threads(threads, [&](int t) { ++calls[static_cast<size_t>(t)]; });
    EXPECT_EQ(calls, std::vector<int>(static_cast<size_t>(threads), 1));
  }
}

TEST(OnThreads, WhatTheFirstThrowsIsThrownWhenAllAreDone) {
  std::atomic<int> done = 0;
  EXPECT_THROW(on_threads(4,
                          [&](int t) {
                            if (t == 0) throw std::runtime_error("no");
                            ++done;
                          }),
               std::runtime_error);
  EXPECT_EQ(done, 3);
}

// Sanitizers take terabytes of addresses.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STRATA_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define STRATA_SANITIZED
#endif
#endif

#if !defined(STRATA_SANITIZED)
// In a process of its own, whose addresses end while the threads' stacks are made.
TEST(OnThreadsDeathTest, TooFewThreadsAreARefusal) {
  const auto run_out = [] {
    const rlimit limit{size_t{1} << 30, size_t{1} << 30};
    std::atomic<int> begun = 0;
    if (setrlimit(RLIMIT_AS, &limit) != 0) std::exit(1);
    try {
      on_threads(4096, [&](int) { ++begun; });
    } catch (const Error& error) {
      fmt::print(stderr, "{}, {} begun", error.what(), begun.load());
      std::exit(error.code() == ErrorCode::out_of_memory ? 2 : 3);
    }
    std::exit(4);
  };
  EXPECT_EXIT(run_out(), testing::ExitedWithCode(2), "threads: 4096 must be started, could be [0-9]+: .*, 0 begun");
}
#endif

}  // namespace
}  // namespace strata::testkit
