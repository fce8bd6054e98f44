#include "c_api/device.h"

#include "c_api/convert.h"
#include "core/forced_names.h"
#include "strata/op_set.h"

namespace strata::c_api {

STRATA_STRUCT(strata_config, 56);
STRATA_STRUCT(strata_device_properties, 48);

namespace {

Config to_config(const strata_config* given) {
  if (given == nullptr) return {};
  const strata_config c = read_struct(given, "config");
  Config config = to_bool(c.from_environment, "config.from_environment") ? Config::from_environment() : Config();
  if (c.cpu_threads != 0) config.cpu_threads = c.cpu_threads;
  if (c.cpu_isa != nullptr) config.cpu_isa = parse_cpu_isa(c.cpu_isa);
  if (c.force != nullptr) {
    for (const auto& [op, implementation] : parse_forced_names(c.force, "config.force")) config.force[op] = implementation;
  }
  if (c.opencl_cache != nullptr) config.opencl_cache = c.opencl_cache;
  if (c.opencl_library != nullptr) config.opencl_library = c.opencl_library;
  if (c.opencl_subgroup_size != 0) config.opencl_subgroup_size = c.opencl_subgroup_size;
  check_forced(default_ops(), config);
  return config;
}

// The arguments of a copy or a fill.
void check_range(const void* a, const void* b, int64_t bytes) {
  require(bytes >= 0, "bytes: expected at least 0, is {}", bytes);
  require(bytes == 0 || (a != nullptr && b != nullptr), "expected memory of {} bytes, a pointer is null", bytes);
}

}  // namespace

StreamUse::StreamUse(strata_stream handle, const Device& device) : owner_(find_optional(handle)) {
  if (owner_ != nullptr && !(owner_->device->id() == device.id())) {
    throw StatusError(STRATA_INVALID_HANDLE, fmt::format("stream: expected one of {}, is one of {}", device.id(), owner_->device->id()));
  }
}

}  // namespace strata::c_api

using namespace strata;
using namespace strata::c_api;

strata_status strata_device_open(const char* id, const strata_config* config, strata_device* device) noexcept {
  return guarded([&] {
    strata_device& out = result(device, "device");
    out = make_handle<strata_device>(open_device(parse_device_id(to_text(id, "id")), to_config(config)));
  });
}

strata_status strata_device_close(strata_device device) noexcept { return destroy(device); }

strata_status strata_device_get_id(strata_device device, strata_device_id* id) noexcept {
  return guarded([&] { result(id, "id") = from_device_id(find(device)->id()); });
}

strata_status strata_device_description(strata_device device, char* text, int64_t size, int64_t* needed) noexcept {
  return guarded([&] { write_text(find(device)->description(), text, size, needed); });
}

strata_status strata_device_get_properties(strata_device device, strata_device_properties* properties) noexcept {
  return guarded([&] {
    const StructResult out(properties, "properties");
    const DeviceProperties known = find(device)->properties();
    strata_device_properties p = strata_device_properties_default();
    p.compute_major = known.compute_major;
    p.compute_minor = known.compute_minor;
    p.num_sms = known.num_sms;
    p.max_shared_bytes = known.max_shared_bytes;
    p.last_level_cache_bytes = known.last_level_cache_bytes;
    p.memory_bytes = known.memory_bytes;
    out.write(p);
  });
}

strata_status strata_device_allocate(strata_device device, int64_t bytes, void** data) noexcept {
  return guarded([&] {
    void*& out = result(data, "data");
    out = find(device)->allocate(bytes);
  });
}
strata_status strata_device_deallocate(strata_device device, void* data) noexcept {
  return guarded([&] { find(device)->deallocate(data); });
}
strata_status strata_device_allocate_host(strata_device device, int64_t bytes, void** data) noexcept {
  return guarded([&] {
    void*& out = result(data, "data");
    out = find(device)->allocate_host(bytes);
  });
}
strata_status strata_device_deallocate_host(strata_device device, void* data) noexcept {
  return guarded([&] { find(device)->deallocate_host(data); });
}

strata_status strata_device_copy_from_host(strata_device device, void* device_dst, const void* host_src, int64_t bytes,
                                           strata_stream stream) noexcept {
  return guarded([&] {
    const auto on = find(device);
    check_range(device_dst, host_src, bytes);
    const StreamUse use(stream, *on);
    if (bytes > 0) on->copy_from_host(device_dst, host_src, bytes, use);
  });
}
strata_status strata_device_copy_to_host(strata_device device, void* host_dst, const void* device_src, int64_t bytes,
                                         strata_stream stream) noexcept {
  return guarded([&] {
    const auto on = find(device);
    check_range(host_dst, device_src, bytes);
    const StreamUse use(stream, *on);
    if (bytes > 0) on->copy_to_host(host_dst, device_src, bytes, use);
  });
}
strata_status strata_device_copy(strata_device device, void* device_dst, const void* device_src, int64_t bytes,
                                 strata_stream stream) noexcept {
  return guarded([&] {
    const auto on = find(device);
    check_range(device_dst, device_src, bytes);
    const StreamUse use(stream, *on);
    if (bytes > 0) on->copy(device_dst, device_src, bytes, use);
  });
}
strata_status strata_device_fill(strata_device device, void* device_dst, uint8_t value, int64_t bytes, strata_stream stream) noexcept {
  return guarded([&] {
    const auto on = find(device);
    check_range(device_dst, device_dst, bytes);
    const StreamUse use(stream, *on);
    if (bytes > 0) on->fill(device_dst, value, bytes, use);
  });
}

strata_status strata_stream_create(strata_device device, strata_stream* stream) noexcept {
  return guarded([&] {
    strata_stream& out = result(stream, "stream");
    const auto on = find(device);
    out = make_handle<strata_stream>(std::make_shared<StreamObject>(on));
  });
}
strata_status strata_stream_wrap(strata_device device, void* native, strata_stream* stream) noexcept {
  return guarded([&] {
    strata_stream& out = result(stream, "stream");
    const auto on = find(device);
    require(native == nullptr || on->id().kind != DeviceKind::cpu, "native: expected null on a CPU, which has no streams, is {}", native);
    if (native != nullptr && on->id().kind == DeviceKind::opencl) {
      fail(ErrorCode::unsupported, "native: expected null on {}, whose queues are the library's own, is {}", on->id(), native);
    }
    out = make_handle<strata_stream>(std::make_shared<StreamObject>(on, Stream{native}));
  });
}
strata_status strata_stream_native(strata_stream stream, void** native) noexcept {
  return guarded([&] {
    void*& out = result(native, "native");
    out = find(stream)->stream.handle;
  });
}
strata_status strata_stream_destroy(strata_stream stream) noexcept { return destroy(stream); }
strata_status strata_stream_synchronize(strata_device device, strata_stream stream) noexcept {
  return guarded([&] {
    const auto on = find(device);
    on->synchronize(StreamUse(stream, *on));
  });
}

strata_status strata_event_create(strata_device device, strata_event* event) noexcept {
  return guarded([&] {
    strata_event& out = result(event, "event");
    out = make_handle<strata_event>(std::make_shared<EventObject>(find(device)));
  });
}
strata_status strata_event_destroy(strata_event event) noexcept { return destroy(event); }
strata_status strata_event_record(strata_event event, strata_stream stream) noexcept {
  return guarded([&] {
    const auto marked = find(event);
    marked->device->record(marked->event.get(), StreamUse(stream, *marked->device));
  });
}
strata_status strata_event_wait(strata_event event, strata_stream stream) noexcept {
  return guarded([&] {
    const auto marked = find(event);
    marked->device->wait(marked->event.get(), StreamUse(stream, *marked->device));
  });
}

strata_status strata_stream_capture(strata_stream stream, strata_work work, void* user, strata_graph* graph) noexcept {
  return guarded([&] {
    strata_graph& out = result(graph, "graph");
    require(work != nullptr, "work: expected a function, is null");
    const auto captured = find(stream);
    const auto made = captured->device->capture(captured->stream, [&] { run_callback("work", [&] { return work(user); }); });
    out = make_handle<strata_graph>(std::make_shared<GraphObject>(captured->device, made));
  });
}
strata_status strata_graph_launch(strata_graph graph, strata_stream stream) noexcept {
  return guarded([&] {
    const auto captured = find(graph);
    captured->device->launch(captured->graph, StreamUse(stream, *captured->device));
  });
}
strata_status strata_graph_destroy(strata_graph graph) noexcept { return destroy(graph); }
