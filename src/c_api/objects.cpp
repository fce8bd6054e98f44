#include "c_api/objects.h"

#include <mutex>
#include <shared_mutex>
#include <vector>

namespace strata::c_api {
namespace {

struct Slot {
  uint32_t generation = 1;
  Kind kind = Kind::free;
  std::shared_ptr<const void> object;
};

// Never destroyed: handles may be given back while the process ends.
struct Table {
  std::shared_mutex mutex;
  std::vector<Slot> slots;
  std::vector<uint32_t> free;
};
Table& table() {
  static Table& table = *new Table;
  return table;
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::free: return "free";
    case Kind::device: return "strata_device";
    case Kind::stream: return "strata_stream";
    case Kind::event: return "strata_event";
    case Kind::graph: return "strata_graph";
    case Kind::model_config: return "strata_model_config";
    case Kind::checkpoint: return "strata_checkpoint";
    case Kind::pool: return "strata_pool";
    case Kind::batch_builder: return "strata_batch_builder";
    case Kind::rope_tables: return "strata_rope_tables";
    case Kind::side_streams: return "strata_side_streams";
    case Kind::communicator: return "strata_communicator";
    case Kind::layer: return "strata_layer";
  }
  return "unknown";
}

// A handle: the slot's number and one in the low half, so that no handle is 0; the generation in the high half.
constexpr uint64_t handle_of(uint32_t slot, uint32_t generation) { return uint64_t{generation} << 32 | (slot + 1); }

[[noreturn]] void refuse(uint64_t handle, Kind expected, const char* got) {
  throw StatusError(STRATA_INVALID_HANDLE, fmt::format("expected a handle of {}, got {:#x}, {}", name_of(expected), handle, got));
}

// The slot of a live object of this kind. The caller holds the mutex.
Slot& slot_of(uint64_t handle, Kind kind) {
  Table& t = table();
  if (handle == 0) throw StatusError(STRATA_INVALID_HANDLE, fmt::format("expected a handle of {}, is null", name_of(kind)));
  const uint32_t number = static_cast<uint32_t>(handle), generation = static_cast<uint32_t>(handle >> 32);
  if (number == 0 || number > t.slots.size()) refuse(handle, kind, "which was never made");
  Slot& slot = t.slots[number - 1];
  if (generation == 0 || generation > slot.generation) refuse(handle, kind, "which was never made");
  if (generation < slot.generation) refuse(handle, kind, "which is destroyed");
  if (slot.kind == Kind::free) refuse(handle, kind, "which was never made");
  if (slot.kind != kind) refuse(handle, kind, fmt::format("which is a {}", name_of(slot.kind)).c_str());
  return slot;
}

}  // namespace

namespace detail {

uint64_t add_object(Kind kind, std::shared_ptr<const void> object) {
  Table& t = table();
  const std::unique_lock lock(t.mutex);
  if (t.free.empty()) {
    t.slots.emplace_back();
    t.free.reserve(t.slots.capacity());  // so that remove_object never allocates
    t.free.push_back(static_cast<uint32_t>(t.slots.size() - 1));
  }
  const uint32_t number = t.free.back();
  t.free.pop_back();
  Slot& slot = t.slots[number];
  slot.kind = kind;
  slot.object = std::move(object);
  return handle_of(number, slot.generation);
}

std::shared_ptr<const void> find_object(uint64_t handle, Kind kind) {
  const std::shared_lock lock(table().mutex);
  return slot_of(handle, kind).object;
}

std::shared_ptr<const void> remove_object(uint64_t handle, Kind kind) {
  Table& t = table();
  const std::unique_lock lock(t.mutex);
  Slot& slot = slot_of(handle, kind);
  slot.kind = Kind::free;
  // A slot whose generations are used up is not used again.
  if (++slot.generation != 0) {
    t.free.push_back(static_cast<uint32_t>(handle) - 1);
  }
  return std::move(slot.object);  // the caller destroys it, without the mutex
}

}  // namespace detail

int64_t num_objects() {
  Table& t = table();
  const std::shared_lock lock(t.mutex);
  int64_t count = 0;
  for (const Slot& slot : t.slots) count += slot.kind != Kind::free;
  return count;
}

}  // namespace strata::c_api
