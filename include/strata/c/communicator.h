// Tensor parallelism: heads, groups and output columns are split over ranks; caches are replicated. V4 specification 4.3.
#ifndef STRATA_C_COMMUNICATOR_H
#define STRATA_C_COMMUNICATOR_H

#include "strata/c/device.h"

#if defined(__cplusplus)
extern "C" {
#endif

// The collective operations that layers need, as functions of the caller.
typedef struct strata_communicator_callbacks {
  size_t struct_size;  // sizeof(strata_communicator_callbacks)
  void* user;          // passed to the functions
  int32_t rank;        // this rank, in [0, size)
  int32_t size;        // the number of ranks, at least 1
  // In-place sum over all ranks of a contiguous bf16 or f32 tensor, ordered with the other work of the stream: a cudaStream_t;
  // null: the device's default stream, and on a CPU; on OpenCL the library's own, of no use elsewhere. A layer calls it exactly once, at
  // the end of every forward, so that ranks stay in step. This includes dummy runs and steps without tokens. It runs on the thread that
  // called strata_layer_forward. `tensor` is valid during the call, its memory until the stream has finished the work. A status other than
  // STRATA_OK is the forward's status, as it is. Required. Forwards of several threads may call it at once.
  strata_status (*all_reduce_sum)(void* user, const strata_tensor_view* tensor, strata_device_id device, void* native_stream);
  // Called once, when the handle and all layers made with it are destroyed; may be null. Not called where strata_communicator_create fails.
  // It runs on the thread that destroys the last of them. Work that all_reduce_sum has enqueued may still be on its stream.
  void (*destroy)(void* user);
} strata_communicator_callbacks;
// Rank 0 of 1, and otherwise zeros.
static inline strata_communicator_callbacks strata_communicator_callbacks_default(void) {
  strata_communicator_callbacks callbacks;
  memset(&callbacks, 0, sizeof callbacks);
  callbacks.struct_size = sizeof callbacks;
  callbacks.size = 1;
  return callbacks;
}

// A communicator of the caller's functions. The struct may be freed after the call. Errors: STRATA_INVALID_ARGUMENT for a rank outside
// [0, size), a size below 1 and a null all_reduce_sum.
STRATA_API strata_status strata_communicator_create(const strata_communicator_callbacks* callbacks,
                                                    strata_communicator* communicator) STRATA_NOEXCEPT;
// For a single rank: the sum over ranks is the tensor itself.
STRATA_API strata_status strata_communicator_single(strata_communicator* communicator) STRATA_NOEXCEPT;
// This rank.
STRATA_API strata_status strata_communicator_rank(strata_communicator communicator, int32_t* rank) STRATA_NOEXCEPT;
// The number of ranks.
STRATA_API strata_status strata_communicator_size(strata_communicator communicator, int32_t* size) STRATA_NOEXCEPT;
// Gives the handle back. Layers that were made with the communicator keep it.
STRATA_API strata_status strata_communicator_destroy(strata_communicator communicator) STRATA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif
