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

constexpr int64_t kMostElements = int64_t{1} << 59;  // of 8 bytes

// The number of elements, and the distance from the first to the last, fit 63 bits as bytes: sums of them do not overflow. Extents and
// strides are not negative.
bool fits(const TensorView& v) {
  int64_t count = 1, last = 0, reach = 0;
  bool ok = true;
  for (int32_t i = 0; i < v.rank; ++i) {
    const int64_t extent = std::max<int64_t>(v.shape[i], 1);
    ok = ok && !__builtin_mul_overflow(count, extent, &count) && !__builtin_mul_overflow(extent - 1, v.stride[i], &reach) &&
         !__builtin_add_overflow(last, reach, &last);
  }
  return ok && count <= kMostElements && last <= kMostElements;
}

// Whether to_view() and fits() accept the view, for almost every view and in a few nanoseconds. False: they have to look.
bool is_small_view(const strata_tensor_view& v) {
  static_assert(kMaxRank == 4);
  constexpr uint64_t kSmall = uint64_t{1} << 14;  // products of four are below 2^59
  if (v.rank < 1 || v.rank > kMaxRank) return false;
  uint64_t all = 0;
  for (int32_t i = 0; i < v.rank; ++i) all |= static_cast<uint64_t>(v.shape[i]) | static_cast<uint64_t>(v.stride[i]);
  return all < kSmall && static_cast<uint32_t>(v.dtype) <= static_cast<uint32_t>(DType::boolean) &&
         static_cast<uint32_t>(v.device.kind) <= static_cast<uint32_t>(DeviceKind::opencl);
}

}  // namespace

const OpSet& op_set() {
  static const OpSet& set = *new OpSet(default_ops());  // never destroyed: ops may be called while the process ends
  return set;
}

const TensorView CallReader::kAbsent;

TensorView CallReader::read_view(const strata_tensor_view& given, const char* field) {
  if (!is_small_view(given) || use_ == Use::planning_check) {
    require(given.rank <= kMaxRank, "{} must have at most {} dimensions, has {}", field, int{kMaxRank}, given.rank);
    TensorView v = to_view(given, field);
    require(fits(v), "{}: expected at most 2^59 elements, also from the first to the last, is {}", field, v);
    if (use_ == Use::planning_check) stand_in(v.data, v.device, field);
    return v;
  }
  const auto kept = [&](int32_t i, int64_t value) { return i < given.rank ? value : 0; };
  return {.data = given.data,
          .dtype = static_cast<DType>(given.dtype),
          .device = {.kind = static_cast<DeviceKind>(given.device.kind), .index = given.device.index},
          .rank = given.rank,
          .shape = {kept(0, given.shape[0]), kept(1, given.shape[1]), kept(2, given.shape[2]), kept(3, given.shape[3])},
          .stride = {kept(0, given.stride[0]), kept(1, given.stride[1]), kept(2, given.stride[2]), kept(3, given.stride[3])}};
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
  data = reinterpret_cast<void*>(kAlignment * ++stand_ins_);  // NOLINT(performance-no-int-to-ptr): an address that nothing reads
  device = check_device();
}

Execution::Execution(const strata_execution* given, Device& device) : Execution(StructView<strata_execution>(given, "execution"), device) {}

Execution::Execution(const StructView<strata_execution>& given, Device& device)
    : stream_(given->stream, device), context_{device, stream_, {given->workspace, given->workspace_bytes}, {}} {
  require(given->workspace_bytes >= 0, "execution.workspace_bytes: expected at least 0, is {}", given->workspace_bytes);
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
