// The objects that handles name. A handle is a slot of one table and the slot's generation, which grows when the object is destroyed.
#pragma once

#include <cstdint>
#include <memory>

#include "c_api/error.h"
#include "strata/attention.h"
#include "strata/c/api.h"

namespace strata::c_api {

struct StreamObject;
struct EventObject;
struct GraphObject;
struct Pool;
struct Builder;
struct Layer;

enum class Kind : uint8_t {
  free,
  device,
  stream,
  event,
  graph,
  model_config,
  checkpoint,
  pool,
  batch_builder,
  rope_tables,
  side_streams,
  communicator,
  layer,
};

// What a type of handles names.
template <class Handle>
struct Named;
template <Kind kind, class T>
struct NamedAs {
  static constexpr Kind kKind = kind;
  using Type = T;
};
// clang-format off
template <> struct Named<strata_device> : NamedAs<Kind::device, Device> {};
template <> struct Named<strata_stream> : NamedAs<Kind::stream, StreamObject> {};
template <> struct Named<strata_event> : NamedAs<Kind::event, EventObject> {};
template <> struct Named<strata_graph> : NamedAs<Kind::graph, GraphObject> {};
template <> struct Named<strata_model_config> : NamedAs<Kind::model_config, const ModelConfig> {};
template <> struct Named<strata_checkpoint> : NamedAs<Kind::checkpoint, const Checkpoint> {};
template <> struct Named<strata_pool> : NamedAs<Kind::pool, Pool> {};
template <> struct Named<strata_batch_builder> : NamedAs<Kind::batch_builder, Builder> {};
template <> struct Named<strata_rope_tables> : NamedAs<Kind::rope_tables, RopeTables> {};
template <> struct Named<strata_side_streams> : NamedAs<Kind::side_streams, SideStreams> {};
template <> struct Named<strata_communicator> : NamedAs<Kind::communicator, Communicator> {};
template <> struct Named<strata_layer> : NamedAs<Kind::layer, Layer> {};
// clang-format on

namespace detail {
uint64_t add_object(Kind kind, std::shared_ptr<const void> object);
std::shared_ptr<const void> find_object(uint64_t handle, Kind kind);
std::shared_ptr<const void> remove_object(uint64_t handle, Kind kind);
}  // namespace detail

// Number of objects that handles name now.
int64_t num_objects();

// A new handle of the object. Thread-safe, like the functions below.
template <class Handle>
Handle make_handle(std::shared_ptr<typename Named<Handle>::Type> object) {
  return {detail::add_object(Named<Handle>::kKind, std::move(object))};
}
// The object of a handle, which lives at least as long as the result. Throws StatusError with STRATA_INVALID_HANDLE for a handle that is
// null, freed, of another kind, or was never made.
template <class Handle>
std::shared_ptr<typename Named<Handle>::Type> find(Handle handle) {
  using Type = typename Named<Handle>::Type;
  return std::static_pointer_cast<Type>(std::const_pointer_cast<void>(detail::find_object(handle.value, Named<Handle>::kKind)));
}
// Null for the null handle.
template <class Handle>
std::shared_ptr<typename Named<Handle>::Type> find_optional(Handle handle) {
  return handle.value == 0 ? nullptr : find(handle);
}
// The body of every destroy function: the handle is freed, and the object destroyed unless it is in use. A null handle does nothing.
template <class Handle>
strata_status destroy(Handle handle) noexcept {
  return guarded([&] {
    if (handle.value != 0) (void)detail::remove_object(handle.value, Named<Handle>::kKind);
  });
}

}  // namespace strata::c_api
