#include "strata/op.h"

#include <cstdint>

#include "core/check.h"

namespace strata::detail {

void check_complete(std::string_view op, std::string_view name, bool functions) {
  require(!name.empty() && functions, "{}: an implementation must have a name, supports, workspace_bytes and run, '{}' has not", op, name);
}

void throw_no_implementation(std::string_view op, const Device& device, std::string_view forced, const std::vector<Candidate>& refused) {
  std::string text = fmt::format("{}: no implementation takes this call on {}", op, to_string(device.id()));
  if (!forced.empty()) text += fmt::format(" (forced to {})", forced);
  for (const Candidate& candidate : refused) {
    text += fmt::format("; {}: {}", candidate.name, candidate.is_eligible() ? "not the forced one" : candidate.reason());
  }
  throw Error(ErrorCode::unsupported, text);
}

void check_workspace(std::string_view op, std::string_view implementation, int64_t needed, const Workspace& given) {
  constexpr uintptr_t kAlignment = 256;
  if (needed == 0) return;
  if (needed > given.bytes || given.data == nullptr) {
    fail(ErrorCode::workspace_too_small, "{}: {} needs a workspace of {} bytes, got {}", op, implementation, needed,
         given.data == nullptr ? 0 : given.bytes);
  }
  if (reinterpret_cast<uintptr_t>(given.data) % kAlignment != 0) {
    fail(ErrorCode::invalid_argument, "{}: {}: workspace must be aligned to {} bytes, is at {}", op, implementation, kAlignment,
         given.data);
  }
}

std::string forced_implementation(std::string_view op, const Device& device) {
  const auto found = device.config().force.find(std::string(op));
  return found == device.config().force.end() ? std::string() : found->second;
}

}  // namespace strata::detail
