// From exceptions to status codes.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

#include "core/check.h"
#include "strata/c/api.h"

namespace strata::c_api {

// Fails a call with a status that strata::Error has no code for, or that a caller's function returned.
class StatusError : public std::runtime_error {
 public:
  StatusError(strata_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  strata_status status() const { return status_; }

 private:
  strata_status status_;
};

// Makes the exception that is being handled this thread's last error, and returns its status.
strata_status report_current_exception() noexcept;

// Every function of the C API: runs the body, which throws on errors and writes results last.
template <class Body>
strata_status guarded(Body&& body) noexcept {
  try {
    body();
    return STRATA_OK;
  } catch (...) {
    return report_current_exception();
  }
}

// A result's address.
template <class T>
T& result(T* pointer, const char* name) {
  require(pointer != nullptr, "{}: expected a pointer, is null", name);
  return *pointer;
}

// Runs a caller's function. Throws what it returned, with the text that it left (strata_last_error) if it called this library and that
// failed.
void run_callback(const char* name, const std::function<strata_status()>& callback);

}  // namespace strata::c_api
