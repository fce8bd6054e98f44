// The last tokens of a call whose other tokens use another implementation: by the FP8 kernel that is selected for this few tokens.
#pragma once

#include <vector>

#include "backends/cuda/linear/impls.h"

namespace strata::cuda {

class FewTokens {
 public:
  Support supports(const LinearParams& p, const Device& device) const {
    Support last = Support::yes();
    for (const auto& impl : impls_) {
      last = impl.eligible(p, device);
      if (last) return last;
    }
    return last;
  }
  // These kernels quantise alike.
  int64_t workspace_bytes(const LinearParams& p, const Device& device) const { return impls_.front().workspace_bytes(p, device); }
  void run(const LinearParams& p, const ExecutionContext& context) const {
    for (const auto& impl : impls_) {
      if (impl.eligible(p, context.device)) return impl.run(p, context);
    }
  }

 private:
  std::vector<Implementation<LinearParams>> impls_{streamed_linear(), many_tiles_linear()};
};

}  // namespace strata::cuda
