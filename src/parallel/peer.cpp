// Ranks on GPUs that reach each other's memory.
#include "backends/cuda/peer.h"
#include "core/check.h"
#include "parallel/board.h"

namespace strata {

std::shared_ptr<Collectives> make_peer_communicator(std::shared_ptr<Collectives> host, std::shared_ptr<Device> device,
                                                    double timeout_seconds) {
  require(host != nullptr, "make_peer_communicator: host must be a communicator, is null");
  require(device != nullptr, "make_peer_communicator: device must be a device, is null");
  parallel::check_ranks(host->size(), timeout_seconds);
  constexpr int kMost = 8;
  if (device->id().kind != DeviceKind::cuda || host->size() > kMost) {
    fail(ErrorCode::unsupported, "a communicator over peer memory needs at most {} ranks on GPUs of NVIDIA, has {} ranks, this one on {}",
         int{kMost}, host->size(), device->id());
  }
  return cuda::make_peer_communicator(std::move(host), std::move(device), timeout_seconds);
}

}  // namespace strata
