// Memory that kernels reach by address: unified shared memory where the device has it, else shared virtual memory.
#pragma once

#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "backends/opencl/runtime/api.h"
#include "backends/opencl/runtime/capabilities.h"

namespace strata::opencl {

class Memory {
 public:
  Memory(cl_context context, cl_device_id device, const Capabilities& capabilities);

  // Device memory aligned to 256. Null where there is none left; throws device_failure for other errors.
  void* allocate(size_t bytes);
  // After the work that uses it.
  void release(void* data) noexcept;
  // Host memory that copies reach without a detour; ordinary memory where there is no unified shared memory. Null where there is none.
  void* allocate_host(size_t bytes);
  void release_host(void* data) noexcept;
  // Whether [data, data + bytes) lies in memory of allocate_host.
  bool is_host(const void* data, size_t bytes) const;

  cl_int copy(cl_command_queue queue, void* dst, const void* src, size_t bytes) const;
  cl_int fill(cl_command_queue queue, void* dst, unsigned char value, size_t bytes) const;

  // Kernels get addresses within their arguments, so OpenCL must be told what they may reach: once a kernel for unified shared memory, at
  // every new allocation for shared virtual memory. `known`: the number of this call's last answer for the kernel, 0 before the first.
  void allow_all(cl_kernel kernel, size_t& known) const;

 private:
  cl_context context_;
  cl_device_id device_;
  bool has_usm_;
  bool reaches_all_;  // kernels reach all memory without being told
  size_t max_allocation_;
  clDeviceMemAllocINTEL_fn device_alloc_ = nullptr;
  clHostMemAllocINTEL_fn host_alloc_ = nullptr;
  clMemBlockingFreeINTEL_fn blocking_free_ = nullptr;
  clEnqueueMemcpyINTEL_fn enqueue_copy_ = nullptr;
  clEnqueueMemFillINTEL_fn enqueue_fill_ = nullptr;
  mutable std::mutex mutex_;
  std::unordered_map<void*, void*> bases_;        // what was handed out -> what OpenCL allocated
  std::unordered_map<const char*, size_t> host_;  // of allocate_host: begin -> bytes
  size_t generation_ = 1;                         // counts the changes of bases_
};

}  // namespace strata::opencl
