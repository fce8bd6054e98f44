// Runs cases until all are done or a signal stops the process.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "testkit/harness/case.h"
#include "common.h"
#include "interrupt.h"

namespace strata::cli {

class CaseRun {
 public:
  // report(): prints what has been done so far. An interrupt ends the case that is running within a second: where it does not end by
  // itself, another thread reports and ends the process.
  CaseRun(std::string command, std::function<void()> report);
  ~CaseRun();
  CaseRun(const CaseRun&) = delete;
  CaseRun& operator=(const CaseRun&) = delete;

  // What run() and report() share is changed under this lock alone.
  std::mutex& mutex() { return mutex_; }

  // How many cases there are to be, where much comes before the first.
  void announce(size_t count) { num_selected_ = count; }
  // run(case). `quiet`: no bar.
  void for_each(const std::vector<const testkit::AnyCase*>& selected, bool quiet, const std::function<void(const testkit::AnyCase&)>& run);
  // Once: run(0), run(1), ... on this many threads, until `count` are done or one returns false. What one throws ends them, and is thrown.
  // name(i): what the bar calls it; may be empty.
  void for_each_number(size_t count, int threads, bool quiet, const std::function<bool(size_t)>& run,
                       const std::function<std::string(size_t)>& name = nullptr);
  // Takes the bar away, for a line of output. Called under the lock.
  void clear_bar();

  bool interrupted() const { return num_done_ < num_selected_; }
  // The exit code: `code` unless the run was interrupted. Then it reports the progress on stderr.
  int finish(int code) const;

 private:
  void watch();

  std::string command_;
  std::function<void()> report_;
  InterruptRequest interrupt_;
  std::mutex mutex_;
  std::atomic<size_t> num_selected_ = 0, num_done_ = 0;
  Progress* bar_ = nullptr;
  bool ended_ = false;  // no case is left to interrupt
  std::condition_variable end_;
  std::thread watcher_;
};

}  // namespace strata::cli
