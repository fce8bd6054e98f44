// What the functions of all ops share: how a call runs, and which implementations take it.
#ifndef STRATA_C_OP_H
#define STRATA_C_OP_H

#include "strata/c/device.h"

#if defined(__cplusplus)
extern "C" {
#endif

// Every op NAME has three functions. Their contract (mathematics, shapes, dtypes, errors, overlap, alignment) is that of the op's params.
//   strata_NAME(device, params, execution)              checks the params, selects an implementation, and enqueues the work
//   strata_NAME_workspace_bytes(device, params, bytes)  the workspace that strata_NAME needs for such params
//   strata_NAME_implementation(device, params, name)    the implementation that strata_NAME selects: "cpu/amx"; valid as long as the
//   library
//                                                       is loaded
// The last two look at shapes, strides, dtypes and formats only: data may be null.
// Several threads may call an op at once, each with a workspace of its own.

// How a call runs.
typedef struct strata_execution {
  size_t struct_size;               // sizeof(strata_execution)
  strata_stream stream;             // work is enqueued here; null: the device's default stream
  void* workspace;                  // memory of the device, aligned to 256; may be null where 0 bytes are needed
  int64_t workspace_bytes;          // its size: at least what strata_NAME_workspace_bytes says
  strata_tensor_view next_weights;  // hint: the weights [n, k] that the next op of the stream reads; absent: unknown
} strata_execution;
// A struct of zeros but struct_size: the default stream, no workspace.
static inline strata_execution strata_execution_default(void) {
  strata_execution execution;
  memset(&execution, 0, sizeof execution);
  execution.struct_size = sizeof execution;
  return execution;
}

// Every implementation of an op, fastest first, one line each: "cpu/amx: needs AMX", and "reference: eligible" for those that can and
// should run the call. `op` is the op's name, "linear"; `params` points to the op's params struct. Text, size and needed as of
// strata_device_description. Errors: STRATA_INVALID_ARGUMENT for an unknown op and for params that break the contract.
STRATA_API strata_status strata_op_candidates(const char* op, strata_device device, const void* params, char* text, int64_t size,
                                              int64_t* needed) STRATA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif
