#include "c_api/error.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace strata::c_api {
namespace {

// Without a destructor: functions that a thread or the process runs as it ends may fail too.
struct LastError {
  strata_status status;
  char text[4096];  // longer texts end with "..."
};
constinit thread_local LastError last_error = {STRATA_OK, ""};

strata_status set_error(strata_status status, const char* text) noexcept {
  last_error.status = status;
  constexpr size_t kMost = sizeof last_error.text - 1;
  const size_t length = std::strlen(text);
  std::memmove(last_error.text, text, std::min(length, kMost));  // a caller may pass this thread's own text
  last_error.text[std::min(length, kMost)] = '\0';
  if (length > kMost) std::memcpy(last_error.text + kMost - 3, "...", 3);
  return status;
}

strata_status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return STRATA_INVALID_ARGUMENT;
    case ErrorCode::invalid_file: return STRATA_INVALID_FILE;
    case ErrorCode::unsupported: return STRATA_UNSUPPORTED;
    case ErrorCode::workspace_too_small: return STRATA_WORKSPACE_TOO_SMALL;
    case ErrorCode::out_of_memory: return STRATA_OUT_OF_MEMORY;
    case ErrorCode::device_failure: return STRATA_DEVICE_FAILURE;
  }
  return STRATA_INTERNAL_ERROR;
}

}  // namespace

strata_status report_current_exception() noexcept {
  try {
    throw;
  } catch (const Error& e) {
    return set_error(status_of(e.code()), e.what());
  } catch (const StatusError& e) {
    return set_error(e.status(), e.what());
  } catch (const std::bad_alloc&) {
    return set_error(STRATA_OUT_OF_MEMORY, "out of host memory");
  } catch (const std::length_error&) {
    return set_error(STRATA_OUT_OF_MEMORY, "out of host memory: a count is larger than an array can be");
  } catch (const std::exception& e) {
    return set_error(STRATA_INTERNAL_ERROR, e.what());
  } catch (...) {
    return set_error(STRATA_INTERNAL_ERROR, "an exception of unknown type");
  }
}

void run_callback(const char* name, const std::function<strata_status()>& callback) {
  last_error.status = STRATA_OK;
  const strata_status returned = callback();
  if (returned == STRATA_OK) return;
  std::string text = fmt::format("{} of the caller returned {} ({})", name, returned, strata_status_name(returned));
  if (last_error.status == returned) text += fmt::format(": {}", last_error.text);
  throw StatusError(returned, text);
}

}  // namespace strata::c_api

using namespace strata::c_api;

const char* strata_status_name(strata_status status) noexcept {
  switch (status) {
    case STRATA_OK: return "STRATA_OK";
    case STRATA_INVALID_ARGUMENT: return "STRATA_INVALID_ARGUMENT";
    case STRATA_INVALID_FILE: return "STRATA_INVALID_FILE";
    case STRATA_UNSUPPORTED: return "STRATA_UNSUPPORTED";
    case STRATA_WORKSPACE_TOO_SMALL: return "STRATA_WORKSPACE_TOO_SMALL";
    case STRATA_OUT_OF_MEMORY: return "STRATA_OUT_OF_MEMORY";
    case STRATA_DEVICE_FAILURE: return "STRATA_DEVICE_FAILURE";
    case STRATA_INVALID_HANDLE: return "STRATA_INVALID_HANDLE";
    case STRATA_INTERNAL_ERROR: return "STRATA_INTERNAL_ERROR";
    default: return "unknown status";
  }
}

const char* strata_last_error(void) noexcept { return last_error.text; }

void strata_version(int32_t* major, int32_t* minor, int32_t* patch) noexcept {
  if (major != nullptr) *major = STRATA_VERSION_MAJOR;
  if (minor != nullptr) *minor = STRATA_VERSION_MINOR;
  if (patch != nullptr) *patch = STRATA_VERSION_PATCH;
}
