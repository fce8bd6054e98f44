// The host's threads: every index once, by threads that have an index of their own, whoever calls and however many do.
#include "core/thread_team.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace strata {
namespace {

using namespace std::chrono_literals;

// A job of `count` indices by up to `threads` threads, each index checked to be done once and each thread index to be held by one thread.
void check_job(int64_t count, int threads) {
  std::vector<std::atomic<int>> done(static_cast<size_t>(count));
  std::vector<std::atomic<bool>> held(static_cast<size_t>(threads));
  std::atomic<int> shared{0}, outside{0};
  for_each_of(count, threads, [&](int64_t i) {
    const int index = thread_index();
    if (index < 0 || index >= threads) {
      ++outside;
    } else if (held[static_cast<size_t>(index)].exchange(true)) {
      ++shared;
    }
    ++done[static_cast<size_t>(i)];
    if (index >= 0 && index < threads) held[static_cast<size_t>(index)] = false;
  });
  EXPECT_EQ(outside, 0);
  EXPECT_EQ(shared, 0);
  for (int64_t i = 0; i < count; ++i) ASSERT_EQ(done[static_cast<size_t>(i)], 1) << i << " of " << count << " by " << threads;
}

TEST(ThreadTeam, DoesEveryIndexOnce) {
  for (const int threads : {1, 2, 3, 16, 100}) {
    for (const int64_t count : {0, 1, 2, 3, 17, 5000}) {
      for (int i = 0; i < 20; ++i) check_job(count, threads);
    }
  }
}

// Two indices that wait for each other need two threads at a time: those that sleep are woken.
TEST(ThreadTeam, WakesThreadsThatSleep) {
  for (const auto pause : {0ms, 1ms, 50ms}) {
    std::this_thread::sleep_for(pause);
    std::atomic<int> here{0};
    for_each_of(2, 2, [&](int64_t) {
      ++here;
      while (here < 2) std::this_thread::yield();
    });
    EXPECT_EQ(here, 2);
  }
}

TEST(ThreadTeam, JobsInsideJobsAreDoneByTheirCaller) {
  std::atomic<int64_t> sum{0}, elsewhere{0};
  for_each_of(8, 4, [&](int64_t i) {
    const auto self = std::this_thread::get_id();
    const int index = thread_index();
    for_each_of(10, 4, [&](int64_t j) {
      if (std::this_thread::get_id() != self || thread_index() != 0) ++elsewhere;
      sum += i * 10 + j;
    });
    if (thread_index() != index) ++elsewhere;
  });
  EXPECT_EQ(sum, 79 * 80 / 2);
  EXPECT_EQ(elsewhere, 0);
  EXPECT_EQ(thread_index(), 0);
}

// More callers than jobs that may have help.
TEST(ThreadTeam, TakesAnyNumberOfCallers) {
  std::vector<std::thread> callers;
  for (int i = 0; i < 80; ++i) {
    callers.emplace_back([] {
      for (int round = 0; round < 20; ++round) check_job(50, 4);
    });
  }
  for (auto& caller : callers) caller.join();
}

// A caller does not wait for threads that have not begun: here all others are held by another job.
TEST(ThreadTeam, AJobEndsThoughAllOthersAreBusy) {
  constexpr int kThreads = 4;
  std::atomic<int> held{0};
  std::atomic<bool> release{false};
  std::thread holder([&] {
    for_each_of(kThreads, kThreads, [&](int64_t) {
      ++held;
      while (!release) std::this_thread::sleep_for(1ms);
    });
  });
  while (held < kThreads) std::this_thread::sleep_for(1ms);
  check_job(1000, kThreads);
  release = true;
  holder.join();
}

TEST(ThreadTeam, AChildProcessHasATeamOfItsOwn) {
  check_job(100, 4);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::atomic<int64_t> sum{0};
    for_each_of(100, 4, [&](int64_t i) { sum += i; });
    _exit(sum == 4950 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(ThreadTeam, CountsTheCoresThatItMayUse) {
  EXPECT_GE(available_cores(), 1);
  EXPECT_LE(available_cores(), static_cast<int>(sysconf(_SC_NPROCESSORS_CONF)));
}

}  // namespace
}  // namespace strata
