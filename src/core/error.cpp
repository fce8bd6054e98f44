#include "strata/error.h"

namespace strata {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::invalid_file: return "invalid_file";
    case ErrorCode::unsupported: return "unsupported";
    case ErrorCode::workspace_too_small: return "workspace_too_small";
    case ErrorCode::out_of_memory: return "out_of_memory";
    case ErrorCode::device_failure: return "device_failure";
  }
  return "unknown";
}

}  // namespace strata
