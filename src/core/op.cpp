#include "strata/op.h"

#include "core/check.h"

namespace strata::detail {

void throw_no_implementation(std::string_view op, const Device& device, const std::vector<Candidate>& refused) {
  std::string text = fmt::format("{}: no implementation takes this call on {}", op, to_string(device.id()));
  const std::string forced = forced_implementation(op, device);
  if (!forced.empty()) text += fmt::format(" (forced to {})", forced);
  for (const Candidate& candidate : refused) {
    text += fmt::format("; {}: {}", candidate.name, candidate.support ? "not the forced one" : candidate.support.reason);
  }
  throw Error(ErrorCode::unsupported, text);
}

void throw_workspace_too_small(std::string_view op, std::string_view implementation, size_t needed, size_t given) {
  fail(ErrorCode::workspace_too_small, "{}: {} needs a workspace of {} bytes, got {}", op, implementation, needed, given);
}

std::string forced_implementation(std::string_view op, const Device& device) {
  const auto found = device.config().force.find(std::string(op));
  return found == device.config().force.end() ? std::string() : found->second;
}

}  // namespace strata::detail
