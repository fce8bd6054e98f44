// What the functions of all ops share: how a call runs, and which implementations take it.
#ifndef STRATA_C_OP_H
#define STRATA_C_OP_H

#include "strata/c/device.h"

#if defined(__cplusplus)
extern "C" {
#endif

// Every op NAME has a struct of params and three functions:
//   strata_NAME(device, params, execution)              checks the params, selects an implementation, and enqueues the work
//   strata_NAME_workspace_bytes(device, params, bytes)  the workspace that strata_NAME needs for such params
//   strata_NAME_implementation(device, params, name)    the implementation that strata_NAME selects: "cpu/amx"; valid as long as the
//                                                       library is loaded
// The last two look at shapes, strides, dtypes and formats only: data may be null. They check the rest of the contract as strata_NAME does.
//
// What holds for every op, unless a field says otherwise:
// - A view is absent when it is all zero, a cache or another struct when its pointer is null. A field may be absent only where its comment
// says so.
// - Errors of every op: STRATA_INVALID_ARGUMENT for params that break the contract, naming the field, the expected and the actual value;
// STRATA_UNSUPPORTED when no implementation on the device takes the call; STRATA_WORKSPACE_TOO_SMALL; STRATA_INVALID_HANDLE, also for a
// stream of another device. A call that fails has written nothing, except after STRATA_DEVICE_FAILURE: memory is then unspecified.
// - Memory may come from anywhere that the device can access: strata_device_allocate, an engine's pool, another library's tensor.
// - Host-visible memory is memory of the CPU device: views and caches whose device is STRATA_CPU. The library reads such values to check
// them, where the comment says so. Values in the memory of other devices are not checked.
// - Alignment: elements begin at a multiple of their size, a schedule at a multiple of 4 bytes. CUDA devices require more. x and y of the
// linear ops, and q, out and the caches of sparse_attn_decode, begin at a multiple of the largest power of two, up to 16, that divides
// their row stride, or page stride, in bytes. Weights of the linear ops and their scales begin at a multiple of 16.
// - A call enqueues work on the stream and returns; on a CPU the work is done on return. Structs are read before the call returns. The
// memory of their views must stay valid until the stream has finished the work. The caller orders work on other streams.
// - Weights, norm weights, sinks, their scales and biases, and rotary tables must be complete before the call. GPU kernels may read them
// before the preceding kernel of the stream has finished: after a kernel that writes one, synchronise before the first call.
// - Several threads may call an op at once, each with a workspace of its own. A workspace's contents are unspecified before and after a
// call.
// - No output overlaps another view, cache or workspace, and no element of an output is stored twice. Inputs may overlap each other.
// - A call of 0 tokens is allowed and does nothing.

// How a call runs.
typedef struct strata_execution {
  size_t struct_size;               // sizeof(strata_execution)
  strata_stream stream;             // work is enqueued here; null: the device's default stream
  void* workspace;                  // memory of the device, aligned to 256; may be null where 0 bytes are needed
  int64_t workspace_bytes;          // its size: at least what strata_NAME_workspace_bytes says
  strata_tensor_view next_weights;  // hint: the weights [n, k], contiguous, that the next op of the stream reads; absent: unknown
} strata_execution;
// A struct of zeros but struct_size: the default stream, no workspace.
static inline strata_execution strata_execution_default(void) {
  strata_execution execution;
  memset(&execution, 0, sizeof execution);
  execution.struct_size = sizeof execution;
  return execution;
}

// The number of ops.
STRATA_API int64_t strata_op_count(void) STRATA_NOEXCEPT;
// The name of op `index`, "linear"; null for index < 0 and from strata_op_count() on. Valid as long as the library is loaded.
STRATA_API const char* strata_op_name(int64_t index) STRATA_NOEXCEPT;

// Every implementation of an op, fastest first, one line each: "cpu/amx: needs AMX", and "reference: eligible" for those that can and
// should run the call. `op` is the op's name, "linear"; `params` points to the op's params struct. Text, size and needed as of
// strata_device_description. Data may be null. Errors: STRATA_INVALID_ARGUMENT for an unknown op and for params that break the contract.
STRATA_API strata_status strata_op_candidates(const char* op, strata_device device, const void* params, char* text, int64_t size,
                                              int64_t* needed) STRATA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif
