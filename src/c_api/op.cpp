#include "c_api/op_call.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "core/unread_host.h"

namespace strata::c_api {

namespace {

struct NamedOp {
  const char* name;
  std::string (*candidates)(const Device& device, const void* params);
};
#define STRATA_C_OP_ENTRY(op) {#op, candidates_##op},
constexpr NamedOp kOps[] = {STRATA_C_OPS(STRATA_C_OP_ENTRY)};
#undef STRATA_C_OP_ENTRY

// The bytes from a view's first element to its last fit 63 bits, and so does its number of elements: sums of them do not overflow.
bool fits(const TensorView& v) {
  int64_t count = 1, last = 0, reach = 0;
  bool ok = true;
  for (int32_t i = 0; i < v.rank; ++i) {
    const int64_t extent = std::max<int64_t>(v.shape[i], 1);
    ok = ok && !__builtin_mul_overflow(count, extent, &count) && !__builtin_mul_overflow(extent - 1, v.stride[i], &reach) &&
         !__builtin_add_overflow(last, reach, &last);
  }
  constexpr int64_t kMostElements = int64_t{1} << 59;  // of 8 bytes
  return ok && count <= kMostElements && last <= kMostElements;
}

}  // namespace

const OpSet& op_set() {
  static const OpSet& set = *new OpSet(default_ops());  // never destroyed: ops may be called while the process ends
  return set;
}

TensorView CallReader::view(const strata_tensor_view& given, const char* field) {
  TensorView v = to_view(given, field);
  if (!v.present()) return v;
  require(fits(v), "{}: expected at most 2^59 elements, also from the first to the last, is {}", field, v);
  if (use_ == Use::planning_check) stand_in(v.data, v.device, field);
  return v;
}

PagedCache CallReader::cache(const strata_paged_cache* given, const char* field) {
  PagedCache c = to_cache(given, field);
  if (use_ == Use::planning_check && c.present()) stand_in(c.data, c.device, field);
  return c;
}

DeviceId CallReader::check_device() const { return device_.kind == DeviceKind::cpu ? kUnreadHost : device_; }

void CallReader::stand_in(void*& data, DeviceId& device, const char* field) {
  require(device == device_, "{} must be on {}, is on {}", field, device_, device);
  constexpr uintptr_t kAlignment = 256;
  data = reinterpret_cast<void*>(kAlignment * ++stand_ins_);
  device = check_device();
}

Execution::Execution(const strata_execution* given, Device& device) : Execution(StructView<strata_execution>(given, "execution"), device) {}

Execution::Execution(const StructView<strata_execution>& given, Device& device)
    : stream_(given->stream, device), context_{device, stream_, {given->workspace, given->workspace_bytes}, {}} {
  if (given->next_weights.rank == 0) return;
  const TensorView weights = to_view(given->next_weights, "execution.next_weights");
  require(weights.device == device.id(), "execution.next_weights must be on {}, is on {}", device.id(), weights.device);
  require(fits(weights) && weights.is_contiguous() && weights.data != nullptr,
          "execution.next_weights must be contiguous and have memory, is {} at {}", weights, weights.data);
  context_.hints.next_weights = weights;
}

}  // namespace strata::c_api

using namespace strata;
using namespace strata::c_api;

int64_t strata_op_count(void) noexcept { return static_cast<int64_t>(std::size(kOps)); }

const char* strata_op_name(int64_t index) noexcept { return index >= 0 && index < strata_op_count() ? kOps[index].name : nullptr; }

strata_status strata_op_candidates(const char* op, strata_device device, const void* params, char* text, int64_t size,
                                   int64_t* needed) noexcept {
  return guarded([&] {
    const std::string_view name = to_text(op, "op");
    const auto on = find(device);
    const auto* const found = std::find_if(std::begin(kOps), std::end(kOps), [&](const NamedOp& o) { return name == o.name; });
    require(found != std::end(kOps), "op: expected the name of an op, strata_op_name(0) and so on, is '{}'", name);
    write_text(found->candidates(*on, params), text, size, needed);
  });
}
