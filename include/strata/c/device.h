// Devices, streams, events, graphs and memory.
#ifndef STRATA_C_DEVICE_H
#define STRATA_C_DEVICE_H

#include "strata/c/tensor.h"

#if defined(__cplusplus)
extern "C" {
#endif

// Settings of a device (not of a model), read when it is opened.
typedef struct strata_config {
  size_t struct_size;          // sizeof(strata_config)
  int32_t from_environment;    // 1: STRATA_CPU_THREADS, STRATA_CPU_ISA, STRATA_FORCE and so on first, then the fields below that are given
  int32_t cpu_threads;         // threads of the CPU backend, and of any device's host work (loading); 0: one per core of the process
  const char* cpu_isa;         // upper limit of the CPU backend: "portable", "avx2", "avx512", "avx512_bf16", "amx", "best"; null: best
  const char* force;           // "op=implementation,...", as STRATA_FORCE; "*=...": every op that has it; null: nothing is forced
  const char* opencl_cache;    // folder in which OpenCL devices cache built programs; null: no cache
  const char* opencl_library;  // the OpenCL loader: a path or a name for dlopen; null: libOpenCL.so.1
  int32_t opencl_subgroup_size;  // 8 or 16; 0: 8 where the device supports it, else 16
} strata_config;
// A struct of zeros but struct_size.
static inline strata_config strata_config_default(void) {
  strata_config config;
  memset(&config, 0, sizeof config);
  config.struct_size = sizeof config;
  return config;
}

// Opens a device: "cpu", "cuda:0", "opencl:1". config may be null. Errors: STRATA_UNSUPPORTED when the backend is not in this build or the
// device is not present; STRATA_INVALID_ARGUMENT for other ids and for settings that do not parse, unknown names in `force` included.
STRATA_API strata_status strata_device_open(const char* id, const strata_config* config, strata_device* device) STRATA_NOEXCEPT;
// Gives the handle back. Layers, pools, streams and so on that were made on the device stay valid. Memory of strata_device_allocate and
// strata_device_allocate_host is given back before. A null handle does nothing, as in every destroy function.
STRATA_API strata_status strata_device_close(strata_device device) STRATA_NOEXCEPT;
// Kind and index.
STRATA_API strata_status strata_device_get_id(strata_device device, strata_device_id* id) STRATA_NOEXCEPT;
// One line for users: the chip, its features, memory, threads. At most `size` bytes are written, a zero at the end included. *needed (may
// be null) is the whole text's size with its zero. size 0: text may be null.
STRATA_API strata_status strata_device_description(strata_device device, char* text, int64_t size, int64_t* needed) STRATA_NOEXCEPT;

// Properties that planning and benchmarks use. 0: does not apply or is unknown.
typedef struct strata_device_properties {
  size_t struct_size;              // sizeof(strata_device_properties)
  int32_t compute_major;           // CUDA compute capability: 9 of 9.0
  int32_t compute_minor;           // CUDA compute capability: 0 of 9.0
  int32_t num_sms;                 // streaming multiprocessors
  int64_t max_shared_bytes;        // shared memory that one thread block may use
  int64_t last_level_cache_bytes;  // a GPU: the L2 cache
  int64_t memory_bytes;            // device memory, used or not
} strata_device_properties;
// A struct of zeros but struct_size.
static inline strata_device_properties strata_device_properties_default(void) {
  strata_device_properties properties;
  memset(&properties, 0, sizeof properties);
  properties.struct_size = sizeof properties;
  return properties;
}
// Fills *properties, whose struct_size is given, as strata_device_properties_default() sets it.
STRATA_API strata_status strata_device_get_properties(strata_device device, strata_device_properties* properties) STRATA_NOEXCEPT;

// Device memory of at least `bytes` bytes, aligned to 256. Errors: STRATA_OUT_OF_MEMORY; STRATA_INVALID_ARGUMENT for bytes < 0. The memory
// is the caller's, who gives it back before strata_device_close: that needs an open handle of this device. A handle of a later
// strata_device_open is another device, also with the same id.
STRATA_API strata_status strata_device_allocate(strata_device device, int64_t bytes, void** data) STRATA_NOEXCEPT;
// Gives back memory of strata_device_allocate, by the handle that allocated it. May be called while work on any stream still uses the
// memory: it is not reused before that work is done. Null data: does nothing.
STRATA_API strata_status strata_device_deallocate(strata_device device, void* data) STRATA_NOEXCEPT;
// Host memory aligned to 256 that the device can copy directly and asynchronously (pinned). Given back before strata_device_close, too.
STRATA_API strata_status strata_device_allocate_host(strata_device device, int64_t bytes, void** data) STRATA_NOEXCEPT;
// Gives back memory of strata_device_allocate_host, when the copies that use it are done. Null data: does nothing.
STRATA_API strata_status strata_device_deallocate_host(strata_device device, void* data) STRATA_NOEXCEPT;

// Copies and fills of `bytes` bytes, ordered with the other work of `stream`. Host memory must stay valid until the stream has finished the
// copy, and is read after strata_stream_synchronize. Errors: STRATA_INVALID_ARGUMENT for bytes < 0 and null pointers with bytes > 0;
// STRATA_INVALID_HANDLE also for a stream of another device; STRATA_DEVICE_FAILURE.
STRATA_API strata_status strata_device_copy_from_host(strata_device device, void* device_dst, const void* host_src, int64_t bytes,
                                                      strata_stream stream) STRATA_NOEXCEPT;
// From device to host memory.
STRATA_API strata_status strata_device_copy_to_host(strata_device device, void* host_dst, const void* device_src, int64_t bytes,
                                                    strata_stream stream) STRATA_NOEXCEPT;
// Within device memory. The ranges do not overlap.
STRATA_API strata_status strata_device_copy(strata_device device, void* device_dst, const void* device_src, int64_t bytes,
                                            strata_stream stream) STRATA_NOEXCEPT;
// Sets bytes of device memory to `value`.
STRATA_API strata_status strata_device_fill(strata_device device, void* device_dst, uint8_t value, int64_t bytes,
                                            strata_stream stream) STRATA_NOEXCEPT;

// A new stream. On a CPU, which finishes every call before it returns, it is a handle of the default stream.
STRATA_API strata_status strata_stream_create(strata_device device, strata_stream* stream) STRATA_NOEXCEPT;
// A handle of an engine's own cudaStream_t (null: the default stream), which must outlive the handle. Errors: STRATA_INVALID_ARGUMENT on a
// CPU, which has no streams; STRATA_UNSUPPORTED on OpenCL, whose queues are the library's own. On both null is accepted.
STRATA_API strata_status strata_stream_wrap(strata_device device, void* native, strata_stream* stream) STRATA_NOEXCEPT;
// The native stream: the cudaStream_t; null for the default stream, and on a CPU; on OpenCL the library's own, of no use elsewhere.
STRATA_API strata_status strata_stream_native(strata_stream stream, void** native) STRATA_NOEXCEPT;
// Waits for the stream's work, then destroys it; of a wrapped stream only the handle.
STRATA_API strata_status strata_stream_destroy(strata_stream stream) STRATA_NOEXCEPT;
// Returns when all work of the stream is done. A null stream: the default stream of the device. Errors: STRATA_DEVICE_FAILURE if any of
// that work failed.
STRATA_API strata_status strata_stream_synchronize(strata_device device, strata_stream stream) STRATA_NOEXCEPT;

// A new event. One call runs at a time for each event.
STRATA_API strata_status strata_event_create(strata_device device, strata_event* event) STRATA_NOEXCEPT;
// Destroys the event.
STRATA_API strata_status strata_event_destroy(strata_event event) STRATA_NOEXCEPT;
// Marks the current end of a stream of the event's device. Does not block the host.
STRATA_API strata_status strata_event_record(strata_event event, strata_stream stream) STRATA_NOEXCEPT;
// Makes later work of the stream wait for the mark of strata_event_record. Does not block the host.
STRATA_API strata_status strata_event_wait(strata_event event, strata_stream stream) STRATA_NOEXCEPT;

// Work to capture: enqueues on the stream that is captured. A status other than STRATA_OK ends the capture, and is returned as it is.
typedef strata_status (*strata_work)(void* user);
// Captures what work(user) enqueues on `stream`, a created or wrapped one, instead of running it. Addresses, shapes and all host-side
// decisions are fixed at capture; memory contents are read at each launch. `work` must not allocate, synchronise, or copy to or from
// ordinary host memory: STRATA_DEVICE_FAILURE. Errors: STRATA_UNSUPPORTED on devices without graphs (a CPU).
STRATA_API strata_status strata_stream_capture(strata_stream stream, strata_work work, void* user, strata_graph* graph) STRATA_NOEXCEPT;
// Enqueues a captured graph on a stream of its device. One launch call runs at a time for each graph. What the graph's work uses must still
// exist: layers, pool, builder, rope tables, memory.
STRATA_API strata_status strata_graph_launch(strata_graph graph, strata_stream stream) STRATA_NOEXCEPT;
// Destroys the graph. All its launches must have finished.
STRATA_API strata_status strata_graph_destroy(strata_graph graph) STRATA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif
