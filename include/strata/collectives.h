// Communicators of the library: ranks that are threads of one process, or processes of one host. docs/parallel.md has a guide.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/parallel.h"

namespace strata {

// Collective operations. Every rank makes the same calls in the same order, with equal dtypes and shapes. A rank makes one call at a time.
// Sums are of ranks 0, 1, ... in this order, in float32, rounded once: equal bits on every rank and from run to run. Views are contiguous
// and on the device that is passed.
// A peer that ends, stalls for the communicator's timeout, gives its communicator back, aborts, or makes another call gives an error on
// every rank: device_failure naming rank and operation. The communicator stays failed, and the memory of the call's views is unspecified.
class Collectives : public Communicator {
 public:
  // out [size() * n, ...] = the rows of every rank's in [n, ...], rank 0's first. Any dtype. out does not overlap in.
  virtual void all_gather(const TensorView& in, const TensorView& out, Device& device, Stream stream) = 0;
  // out [n, ...] = this rank's rows, n of them from rank() * n on, of the sum over all ranks of in [size() * n, ...]. bf16 or f32. out does
  // not overlap in.
  virtual void reduce_scatter_sum(const TensorView& in, const TensorView& out, Device& device, Stream stream) = 0;
  // Work after it on the stream begins when every rank has called.
  virtual void barrier(Device& device, Stream stream) = 0;
  // Makes the present and later calls of every rank throw device_failure with this reason: for a rank that cannot go on. May be called
  // by any thread, and after a failure, when it does nothing.
  virtual void abort(const std::string& reason) noexcept = 0;
  // Throws the failure that this rank knows of, as the next call would: after a graph's launches, which call nothing on the host.
  virtual void check() = 0;
};

// Ranks in threads of one process, on any devices: entry r is rank r's. Rows of a device that is not a CPU are copied over the host, so a
// call waits for its stream and cannot be captured. timeout_seconds: how long a rank waits for a peer's call, above 0. Throws
// invalid_argument for a size outside [1, 1024].
[[nodiscard]] std::vector<std::shared_ptr<Collectives>> make_thread_communicators(int size, double timeout_seconds = 60);

// Where the processes of a job meet. The same rendezvous and size on every rank.
struct RankOptions {
  int rank = 0;  // of this process, in [0, size)
  int size = 1;  // ranks of the job
  // "file:PATH": a path that every rank can write and that no other job uses; or "tcp:HOST:PORT", which rank 0 listens at. One rank alone
  // needs none.
  std::string rendezvous{};
  double timeout_seconds = 60;  // how long a rank waits for the others to join, and for a peer's call; above 0
};

// This rank of several processes of one host, over shared memory. Devices are as in make_thread_communicators. Returns when all ranks have
// joined. Throws device_failure naming the ranks that have not joined in time; invalid_argument for options that cannot be, and on ranks
// whose sizes differ or that are on different hosts.
[[nodiscard]] std::shared_ptr<Collectives> make_local_communicator(const RankOptions& options);

// Sums on NVIDIA GPUs by stores to each other's memory, for 2 to 8 ranks of one host, each with a GPU of its own; two ranks may also share
// one. Calls are on the stream, without waiting for it, and graphs can hold them. The other operations are the host communicator's. host:
// of the same ranks, made by one of the two functions above; every rank calls with its own. A kernel waits at most timeout_seconds for a
// peer; then its output is unspecified, and the next call or check() throws. A tensor whose bytes are no multiple of 16 goes over the host.
// Throws unsupported for other devices and sizes, and, on every rank, where a GPU cannot reach another's memory.
[[nodiscard]] std::shared_ptr<Collectives> make_peer_communicator(std::shared_ptr<Collectives> host, std::shared_ptr<Device> device,
                                                                  double timeout_seconds = 60);

// Gives rank 0's bytes, at most 4096, to every rank: for an id that a communicator of the caller's own needs. Returns when all ranks have
// them. `bytes` of other ranks is not read. Ranks may be on different hosts with "tcp:". Errors: as make_local_communicator.
[[nodiscard]] std::vector<uint8_t> share_bytes(const RankOptions& options, const std::vector<uint8_t>& bytes);

// A process among those that a launcher started.
struct LaunchedProcess {
  int rank = 0;              // in [0, size)
  int size = 1;              // processes of the job
  int local_rank = 0;        // among those of this host: which device to open
  std::string rendezvous{};  // as RankOptions has it; empty: the launcher names no place where processes could meet
};
// What torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), mpirun of Open MPI (OMPI_COMM_WORLD_RANK ...) or of MPICH
// (PMI_RANK ...), or srun (SLURM_PROCID ...) set in the environment, in this order; absent: nothing of these. STRATA_RENDEZVOUS decides
// where processes meet. Without it: at the port after MASTER_PORT, which torchrun takes itself; with srun alone at the step's first host,
// at a port that follows from the job. Throws invalid_argument for values that do not parse or do not fit.
[[nodiscard]] std::optional<LaunchedProcess> launched_process();

}  // namespace strata
