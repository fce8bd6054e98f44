// Ctrl-C, SIGTERM and SIGHUP (a closed terminal) as a request: a command that goes through many cases ends with what it has, one that
// writes files removes them.
#pragma once

#include <csignal>

namespace strata::cli {

// While one lives, SIGTERM, SIGHUP and the first SIGINT are noted instead of ending the process; a second SIGINT ends it. SIGTERM may come
// twice: `timeout` sends it to the process and to its group.
class InterruptRequest {
 public:
  InterruptRequest();
  ~InterruptRequest();
  InterruptRequest(const InterruptRequest&) = delete;
  InterruptRequest& operator=(const InterruptRequest&) = delete;

  bool received() const;

 private:
  struct sigaction interrupt_ {
  }, terminate_{}, hang_up_{};  // as they were
};

}  // namespace strata::cli
