// OpenCL devices as Device, and functions for launchers of kernels.
#pragma once

#include <type_traits>

#include "backends/opencl/device/cache_view.h"
#include "backends/opencl/runtime/runtime.h"
#include "strata/kv_format.h"
#include "strata/op.h"

namespace strata::opencl {

bool is_opencl(const Device& device);
// For any device for which is_opencl is true. A device that exists only for planning has the capabilities that "opencl/basic" needs.
const Capabilities& capabilities(const Device& device);

inline CacheView cache_view(const PagedCache& c) {
  return {.data = reinterpret_cast<uintptr_t>(c.data),
          .num_pages = c.num_pages,
          .page_stride = c.page_stride,
          .page_size = c.page_size,
          .row_dim = c.row_dim,
          .scale = c.scale,
          .format = static_cast<int32_t>(c.format)};
}
// An address as a kernel argument; 0 for an absent view.
inline uint64_t address(const void* data) { return reinterpret_cast<uintptr_t>(data); }
inline uint64_t address(const TensorView& view) { return address(view.data); }

void launch(const ExecutionContext& context, const KernelId& id, const void* call, size_t bytes, const Range& range);

// A kernel has one argument, a struct that host and device code share. PoCL 3.1 allows 1024 bytes of arguments.
template <class Call>
void launch(const ExecutionContext& context, const KernelId& id, const Call& call, const Range& range) {
  static_assert(std::is_trivially_copyable_v<Call> && sizeof(Call) <= 1024);
  launch(context, id, &call, sizeof call, range);
}

}  // namespace strata::opencl
