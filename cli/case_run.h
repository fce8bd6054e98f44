// Going through cases until all are done or the process is asked to stop.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "case.h"
#include "common.h"
#include "interrupt.h"
#include "on_threads.h"

namespace strata::cli {

class CaseRun {
 public:
  explicit CaseRun(std::string command) : command_(std::move(command)) {}

  // run(case). `quiet`: no bar.
  template <class Run>
  void for_each(const std::vector<const cases::AnyCase*>& selected, bool quiet, const Run& run) {
    for_each_number(selected.size(), 1, quiet, [&](size_t i) {
      run(*selected[i]);
      return true;
    });
  }
  // run(0), run(1), ... by so many threads, until `count` are done or one returns false. What one throws ends them, and is thrown.
  template <class Run>
  void for_each_number(size_t count, int threads, bool quiet, const Run& run) {
    Progress progress(command_, static_cast<double>(count), quiet);
    num_selected_ = count;
    std::atomic<size_t> next = 0;
    std::atomic<bool> more = true;
    std::mutex mutex;
    std::exception_ptr error;
    const auto work = [&](int) {
      try {
        for (size_t i = 0; more && !interrupt_.received() && (i = next++) < count;) {
          if (!run(i)) more = false;
          const std::lock_guard lock(mutex);
          progress.update(static_cast<double>(++num_done_));
        }
      } catch (...) {
        more = false;
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
    };
    cases::on_threads(threads, work);
    if (error) std::rethrow_exception(error);
    if (!more) num_selected_ = num_done_;
  }

  bool interrupted() const { return num_done_ < num_selected_; }
  // What the command returns that otherwise returned `code`; says on stderr how far it came if it was interrupted.
  int finish(int code) const {
    if (!interrupted()) return code;
    fmt::print(stderr, "strata {}: interrupted after {} of {} cases\n", command_, num_done_, num_selected_);
    return kFailed;
  }

 private:
  std::string command_;
  InterruptRequest interrupt_;
  size_t num_selected_ = 0, num_done_ = 0;
};

}  // namespace strata::cli
