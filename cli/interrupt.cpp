#include "interrupt.h"

namespace strata::cli {
namespace {

volatile std::sig_atomic_t signal_received = 0;

void note(int signal) { signal_received = signal; }

}  // namespace

InterruptRequest::InterruptRequest() {
  signal_received = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, &terminate_);
  sigaction(SIGHUP, &action, &hang_up_);
  action.sa_flags |= static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, &interrupt_);
}

InterruptRequest::~InterruptRequest() {
  sigaction(SIGINT, &interrupt_, nullptr);
  sigaction(SIGTERM, &terminate_, nullptr);
  sigaction(SIGHUP, &hang_up_, nullptr);
}

bool InterruptRequest::received() const { return signal_received != 0; }

}  // namespace strata::cli
