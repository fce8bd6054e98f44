// Errors. The library never prints, exits or aborts: bad input throws strata::Error.
#pragma once

#include <stdexcept>
#include <string>

namespace strata {

enum class ErrorCode {
  invalid_argument,     // a parameter, view or batch that contradicts the op's or layer's contract
  invalid_file,         // a checkpoint, config or case file that cannot be what it claims to be
  unsupported,          // correct, but no implementation on this device takes it; the message lists every refusal
  workspace_too_small,  // the message has the bytes needed and the bytes given
  out_of_memory,        // a device allocation failed
  device_failure,       // the device's runtime reported an error; the message has the call and its text
};

// "invalid_argument", "invalid_file", ...
const char* to_string(ErrorCode code);

// what() names the thing, the expected value and the value found, in that order.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace strata
