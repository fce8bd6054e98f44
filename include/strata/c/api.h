// What holds for the whole C API: status codes, error texts, handles, structs that may grow.
#ifndef STRATA_C_API_H
#define STRATA_C_API_H

#include <stddef.h>
#include <stdint.h>

#include "strata/version.h"

// Marks every function that a shared library exports.
#if defined(__GNUC__)
#define STRATA_API __attribute__((visibility("default")))
#else
#define STRATA_API
#endif
#if defined(__cplusplus)
#define STRATA_NOEXCEPT noexcept
extern "C" {
#else
#define STRATA_NOEXCEPT
#endif

// Rules of every function, unless its comment says otherwise:
// - A function returns a status. On STRATA_OK its results are written; on an error no result is written, and strata_last_error() has the
// text. No C++ exception leaves a function.
// - Enumerations are int32_t, so that their size is fixed; flags are int32_t, 0 or 1. Another value is STRATA_INVALID_ARGUMENT.
// - Texts are UTF-8 and end with a zero. A text argument may be freed after the call.
// - A pointer to an object that the function only reads may be freed after the call. Memory that views and caches name must stay valid
// until the stream has finished the work.
// - A function of the caller returns a status too. Any other than STRATA_OK ends the library's call, which returns it as it is, also a
// number that is not listed below.
// - Functions may be called by several threads at once, on different objects. For one object: devices, streams, checkpoints and model
// configs are thread-safe; of pools, builders, layers, rope tables, side streams, events and graphs one call runs at a time (the comments
// and docs/c-api.md say more).

// Structs that may grow begin with struct_size: sizeof the struct as the caller was compiled. Each has a function NAME_default() that sets
// struct_size and the defaults. A library accepts
// - the size that it knows;
// - smaller sizes of earlier releases: the missing fields are zero, which keeps the behaviour of those releases;
// - larger sizes of later releases, if every byte that it does not know is zero.
// Other sizes are STRATA_INVALID_ARGUMENT, naming the struct and both sizes. Results are written up to the caller's size.

// What a function returns.
typedef int32_t strata_status;
enum {
  STRATA_OK = 0,
  STRATA_INVALID_ARGUMENT = 1,     // a parameter, view or batch contradicts the contract of the op, layer or function
  STRATA_INVALID_FILE = 2,         // a checkpoint, config or case file is malformed
  STRATA_UNSUPPORTED = 3,          // a valid call that no implementation on this device takes; the text lists every refusal
  STRATA_WORKSPACE_TOO_SMALL = 4,  // the text states the bytes needed and the bytes given
  STRATA_OUT_OF_MEMORY = 5,        // an allocation of device or host memory failed
  STRATA_DEVICE_FAILURE = 6,       // the device's runtime reported an error; the text has the call and the runtime's text
  STRATA_INVALID_HANDLE = 7,       // a handle is null, freed, of another kind, or was never made; the text says which
  STRATA_INTERNAL_ERROR = 8        // an exception that the library does not expect: please report it
};

// "STRATA_OK", "STRATA_INVALID_ARGUMENT", ...; "unknown status" for another number. Valid as long as the library is loaded.
STRATA_API const char* strata_status_name(strata_status status) STRATA_NOEXCEPT;

// The text of this thread's last error: what, expected, got. Empty before the first error. A later call that succeeds leaves the text as it
// is; it is valid until this thread's next error.
STRATA_API const char* strata_last_error(void) STRATA_NOEXCEPT;

// The version of the library that is loaded: STRATA_VERSION_MAJOR, _MINOR and _PATCH of its headers. A null pointer is skipped.
STRATA_API void strata_version(int32_t* major, int32_t* minor, int32_t* patch) STRATA_NOEXCEPT;

// Handles name objects that the library owns. {0} is the null handle. A handle is a number without a pointer in it: each use looks it up,
// so a freed, null or foreign handle is STRATA_INVALID_HANDLE, never a wrong access. That holds across threads: an object that one thread
// destroys while another one uses it lives until that use ends.
// Handles can be destroyed in any order, as soon as no later call names them. Streams, events, graphs, pools, builders, rope tables, side
// streams and layers keep their device alive; a layer also its rope tables, communicator and side streams. Three objects are not kept:
// - The checkpoint of a layer. The layer copies what it needs, so strata_layer_create alone needs the checkpoint.
// - The model config of a checkpoint. The checkpoint copies it.
// - The pool of a builder. The builder copies the groups and the numbers of pages. strata_batch_build for the pool's requests and
// strata_layer_forward with its pages name the pool in their arguments, so the pool must exist then.
typedef struct strata_device {
  uint64_t value;  // 0: null
} strata_device;   // a device: strata_device_open
typedef struct strata_stream {
  uint64_t value;  // 0: the device's default stream, where a stream may be left out
} strata_stream;   // a queue of work on a device: strata_stream_create, strata_stream_wrap
typedef struct strata_event {
  uint64_t value;  // 0: null
} strata_event;    // a point in a stream: strata_event_create
typedef struct strata_graph {
  uint64_t value;  // 0: null
} strata_graph;    // captured work: strata_stream_capture
typedef struct strata_model_config {
  uint64_t value;       // 0: null
} strata_model_config;  // the contents of a config.json: strata_model_config_load
typedef struct strata_checkpoint {
  uint64_t value;     // 0: null
} strata_checkpoint;  // weights in files or in memory: strata_checkpoint_open
typedef struct strata_pool {
  uint64_t value;  // 0: null
} strata_pool;     // pages of a set of layers: strata_pool_create
typedef struct strata_batch_builder {
  uint64_t value;        // 0: null
} strata_batch_builder;  // the metadata of each step: strata_batch_builder_create
typedef struct strata_rope_tables {
  uint64_t value;      // 0: null
} strata_rope_tables;  // rotary tables of a model: strata_rope_tables_create
typedef struct strata_side_streams {
  uint64_t value;       // 0: null
} strata_side_streams;  // streams on which layers overlap work: strata_side_streams_create
typedef struct strata_communicator {
  uint64_t value;       // 0: null
} strata_communicator;  // the ranks of tensor parallelism: strata_communicator_create
typedef struct strata_layer {
  uint64_t value;  // 0: null
} strata_layer;    // one attention layer: strata_layer_create

#if defined(__cplusplus)
}
#endif

#endif
