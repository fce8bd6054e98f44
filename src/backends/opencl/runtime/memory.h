// Memory that kernels access by address: unified shared memory if the device has it, otherwise shared virtual memory.
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

  // Device memory aligned to 256 bytes. Null if out of memory; throws device_failure for other errors.
  void* allocate(size_t bytes);
  // Call it after the work that uses the memory has finished.
  void release(void* data) noexcept;
  // Host memory that copies access directly; ordinary memory without unified shared memory. Null if out of memory.
  void* allocate_host(size_t bytes);
  void release_host(void* data) noexcept;
  // Whether [data, data + bytes) lies in memory from allocate_host.
  bool is_host(const void* data, size_t bytes) const;

  cl_int copy(cl_command_queue queue, void* dst, const void* src, size_t bytes) const;
  cl_int fill(cl_command_queue queue, void* dst, unsigned char value, size_t bytes) const;

  // Declares to OpenCL which memory a kernel may access, because addresses are hidden in its argument. Unified shared memory is declared
  // once per kernel, shared virtual memory after every allocation. `known`: state of the kernel between calls; initially 0.
  void allow_all(cl_kernel kernel, size_t& known) const;

 private:
  cl_context context_;
  cl_device_id device_;
  bool has_usm_;
  bool reaches_all_;  // kernels may access all memory without a declaration
  size_t max_allocation_;
  clDeviceMemAllocINTEL_fn device_alloc_ = nullptr;
  clHostMemAllocINTEL_fn host_alloc_ = nullptr;
  clMemBlockingFreeINTEL_fn blocking_free_ = nullptr;
  clEnqueueMemcpyINTEL_fn enqueue_copy_ = nullptr;
  clEnqueueMemFillINTEL_fn enqueue_fill_ = nullptr;
  mutable std::mutex mutex_;
  std::unordered_map<void*, void*> bases_;        // returned address -> address that OpenCL allocated
  std::unordered_map<const char*, size_t> host_;  // memory from allocate_host: begin -> bytes
  size_t generation_ = 1;                         // number of changes of bases_
};

}  // namespace strata::opencl
