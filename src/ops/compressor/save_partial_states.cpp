#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "ops/compressor/save_checks.h"
#include "ops/factories.h"

namespace strata::ops {
namespace {

void check(const SavePartialStatesParams& p, DeviceId device) {
  ParamCheck c("save_partial_states", device);
  check_saves(c, p);
}

}  // namespace

Op<SavePartialStatesParams> make_save_partial_states() {
  return {"save_partial_states", check,
          join(cuda::save_partial_states(), opencl::save_partial_states(), cpu::save_partial_states(), reference::save_partial_states())};
}

}  // namespace strata::ops
