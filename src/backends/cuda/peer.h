// The communicator over the memory of GPUs.
#pragma once

#include <memory>

#include "strata/collectives.h"

namespace strata::cuda {

// As strata::make_peer_communicator, for a device of this backend. Throws unsupported in a build without CUDA.
std::shared_ptr<Collectives> make_peer_communicator(std::shared_ptr<Collectives> host, std::shared_ptr<Device> device,
                                                    double timeout_seconds);

}  // namespace strata::cuda
