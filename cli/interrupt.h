// Ctrl-C and SIGTERM as a request: a command that measures case by case ends with what it has.
#pragma once

#include <csignal>

namespace strata::cli {

// While one lives, the first SIGINT or SIGTERM is noted instead of ending the process; the second one ends it.
class InterruptRequest {
 public:
  InterruptRequest();
  ~InterruptRequest();
  InterruptRequest(const InterruptRequest&) = delete;
  InterruptRequest& operator=(const InterruptRequest&) = delete;

  bool received() const;

 private:
  struct sigaction interrupt_{}, terminate_{};  // as they were
};

}  // namespace strata::cli
