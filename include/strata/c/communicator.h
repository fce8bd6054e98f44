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

// The ranks of one process: communicators[r] is rank r's, for a thread of its own, on any device. Rows of a device that is not a CPU are
// copied over the host, so a call waits for its stream and cannot be captured. timeout_seconds: how long a rank waits for a peer's call,
// above 0. Errors: STRATA_INVALID_ARGUMENT for a size outside [1, 1024].
STRATA_API strata_status strata_communicator_threads(int32_t size, double timeout_seconds,
                                                     strata_communicator* communicators) STRATA_NOEXCEPT;

// Where the processes of a job meet. The same rendezvous and size on every rank.
typedef struct strata_rank_options {
  size_t struct_size;      // sizeof(strata_rank_options)
  int32_t rank;            // of this process, in [0, size)
  int32_t size;            // the number of ranks, at least 1
  const char* rendezvous;  // "file:PATH": a path that every rank can write and that no other job uses; or "tcp:HOST:PORT", which rank 0
                           // listens at; null: one rank
  double timeout_seconds;  // how long a rank waits for the others to join, and for a peer's call; 0: 60
} strata_rank_options;
// Rank 0 of 1, and otherwise zeros.
static inline strata_rank_options strata_rank_options_default(void) {
  strata_rank_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.size = 1;
  return options;
}
// This rank of several processes of one host, over shared memory; devices are as above. Returns when all ranks have joined. Errors:
// STRATA_DEVICE_FAILURE naming the ranks that have not joined in time; STRATA_INVALID_ARGUMENT for options that cannot be, and on ranks
// whose sizes differ or that are on different hosts.
STRATA_API strata_status strata_communicator_local(const strata_rank_options* options, strata_communicator* communicator) STRATA_NOEXCEPT;

// Collective operations of the library's own communicators: of the two functions above. Every rank makes the same calls in the same order,
// with equal dtypes and shapes. Sums are of ranks 0, 1, ... in this order, in float32, rounded once. Views are contiguous, on `device`; the
// streams are the device's. A peer that ends, stalls for the timeout, destroys its communicator, aborts, or makes another call gives
// STRATA_DEVICE_FAILURE on every rank, with a text that names rank and operation. The communicator stays failed. Errors else:
// STRATA_INVALID_ARGUMENT for other views, and for communicators of callbacks and of a single rank.
// In place, bf16 or f32.
STRATA_API strata_status strata_communicator_all_reduce_sum(strata_communicator communicator, const strata_tensor_view* tensor,
                                                            strata_device device, strata_stream stream) STRATA_NOEXCEPT;
// out [size * n, ...] = the rows of every rank's in [n, ...], rank 0's first. Any dtype.
STRATA_API strata_status strata_communicator_all_gather(strata_communicator communicator, const strata_tensor_view* in,
                                                        const strata_tensor_view* out, strata_device device,
                                                        strata_stream stream) STRATA_NOEXCEPT;
// out [n, ...] = rows [rank * n, rank * n + n) of the sum over all ranks of in [size * n, ...]. bf16 or f32.
STRATA_API strata_status strata_communicator_reduce_scatter_sum(strata_communicator communicator, const strata_tensor_view* in,
                                                                const strata_tensor_view* out, strata_device device,
                                                                strata_stream stream) STRATA_NOEXCEPT;
// Work after it on the stream begins when every rank has called.
STRATA_API strata_status strata_communicator_barrier(strata_communicator communicator, strata_device device,
                                                     strata_stream stream) STRATA_NOEXCEPT;
// Makes the present and later calls of every rank fail with this reason: for a rank that cannot go on. Any thread may call it.
STRATA_API strata_status strata_communicator_abort(strata_communicator communicator, const char* reason) STRATA_NOEXCEPT;

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
