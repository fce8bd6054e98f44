// Going through cases, one after the other, until all are done or the process is asked to stop.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "case.h"
#include "common.h"
#include "interrupt.h"

namespace strata::cli {

class CaseRun {
 public:
  explicit CaseRun(std::string command) : command_(std::move(command)) {}

  // run(case). `quiet`: no bar.
  template <class Run>
  void for_each(const std::vector<const cases::AnyCase*>& selected, bool quiet, const Run& run) {
    for_each_number(selected.size(), quiet, [&](size_t i) {
      run(*selected[i]);
      return true;
    });
  }
  // run(0), run(1), ... until `count` are done or one returns false.
  template <class Run>
  void for_each_number(size_t count, bool quiet, const Run& run) {
    Progress progress(command_, static_cast<double>(count), quiet);
    num_selected_ = count;
    while (num_done_ < num_selected_ && !interrupt_.received()) {
      const bool more = run(num_done_++);
      if (!more) num_selected_ = num_done_;
      progress.update(static_cast<double>(num_done_));
    }
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
