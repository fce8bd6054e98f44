// Errors. The library never prints, exits or aborts: bad input throws strata::Error.
#pragma once

#include <stdexcept>
#include <string>

namespace strata {

// The kind of an error. Callers may branch on it; messages are for people.
enum class ErrorCode {
  invalid_argument,     // a parameter, view or batch contradicts the op's or layer's contract
  invalid_file,         // a checkpoint, config or case file is malformed
  unsupported,          // a valid call that no implementation on this device takes; the message lists every refusal
  workspace_too_small,  // the message states the bytes needed and the bytes given
  out_of_memory,        // a device allocation failed
  device_failure,       // the device's runtime reported an error; the message has the call and the runtime's text
};

// "invalid_argument", "invalid_file", ...
const char* to_string(ErrorCode code);

// The library's only exception type. what() names the parameter, the expected value and the value found, in that order.
class Error : public std::runtime_error {
 public:
  // `message` becomes what().
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  // The kind of the error.
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace strata
