#include "backends/opencl/runtime/memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "backends/opencl/runtime/check.h"
#include "backends/opencl/runtime/platforms.h"
#include "core/check.h"

namespace strata::opencl {
namespace {

constexpr size_t kAlignment = 256;  // more than the 128 bytes that OpenCL guarantees

void* align(void* base) { return static_cast<char*>(base) + (kAlignment - reinterpret_cast<uintptr_t>(base) % kAlignment) % kAlignment; }

template <class Function>
Function extension(cl_platform_id platform, const char* name) {
  auto* const function = reinterpret_cast<Function>(api().clGetExtensionFunctionAddressForPlatform(platform, name));
  if (function == nullptr) fail(ErrorCode::unsupported, "OpenCL: the platform names cl_intel_unified_shared_memory and has no {}", name);
  return function;
}

}  // namespace

Memory::Memory(cl_context context, cl_device_id device, const Capabilities& capabilities)
    : context_(context),
      device_(device),
      has_usm_(capabilities.has_usm),
      // NVIDIA's driver needs no list of allocations, and a list costs hundreds of microseconds per launch.
      reaches_all_(capabilities.form == ModuleForm::ptx),
      max_allocation_(static_cast<size_t>(capabilities.max_allocation_bytes)) {
  if (!has_usm_) return;
  const auto platform = value_of<cl_platform_id>(device, CL_DEVICE_PLATFORM);
  device_alloc_ = extension<clDeviceMemAllocINTEL_fn>(platform, "clDeviceMemAllocINTEL");
  host_alloc_ = extension<clHostMemAllocINTEL_fn>(platform, "clHostMemAllocINTEL");
  blocking_free_ = extension<clMemBlockingFreeINTEL_fn>(platform, "clMemBlockingFreeINTEL");
  enqueue_copy_ = extension<clEnqueueMemcpyINTEL_fn>(platform, "clEnqueueMemcpyINTEL");
  enqueue_fill_ = extension<clEnqueueMemFillINTEL_fn>(platform, "clEnqueueMemFillINTEL");
}

void* Memory::allocate(size_t bytes) {
  if (bytes > SIZE_MAX - kAlignment) return nullptr;
  const size_t padded = bytes + kAlignment;
  void* base = nullptr;
  if (has_usm_) {
    // With this flag, Intel's GPUs allow allocations above the maximum size (4 GB on Arc).
    constexpr cl_mem_flags kUnrestrictedSize = cl_mem_flags{1} << 23;  // CL_MEM_ALLOW_UNRESTRICTED_SIZE_INTEL
    const cl_mem_properties_intel large[] = {CL_MEM_FLAGS, kUnrestrictedSize, 0};
    cl_int error = CL_SUCCESS;
    base = device_alloc_(context_, device_, padded > max_allocation_ ? large : nullptr, padded, 0, &error);
    const bool is_full = error == CL_MEM_OBJECT_ALLOCATION_FAILURE || error == CL_OUT_OF_HOST_MEMORY || error == CL_OUT_OF_RESOURCES ||
                         error == CL_INVALID_BUFFER_SIZE;
    if (base == nullptr && !is_full) check(error, "clDeviceMemAllocINTEL");
  } else if (padded <= max_allocation_) {
    base = api().clSVMAlloc(context_, CL_MEM_READ_WRITE, padded, 0);
  }
  if (base == nullptr) return nullptr;
  void* const data = align(base);
  const std::lock_guard lock(mutex_);
  bases_[data] = base;
  ++generation_;
  return data;
}

void Memory::release(void* data) noexcept {
  void* base = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto found = bases_.find(data);
    if (found == bases_.end()) return;
    base = found->second;
    bases_.erase(found);
    ++generation_;
  }
  has_usm_ ? static_cast<void>(blocking_free_(context_, base)) : api().clSVMFree(context_, base);
}

void* Memory::allocate_host(size_t bytes) {
  const size_t rounded = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  if (rounded < bytes) return nullptr;
  void* data = nullptr;
  if (has_usm_) {
    cl_int error = CL_SUCCESS;
    data = host_alloc_(context_, nullptr, rounded, kAlignment, &error);
    if (data == nullptr) data = host_alloc_(context_, nullptr, rounded, 0, &error);
    if (data != nullptr && data != align(data)) {
      blocking_free_(context_, data);
      fail(ErrorCode::device_failure, "OpenCL: clHostMemAllocINTEL gave memory that is not aligned to {} bytes", kAlignment);
    }
  } else {
    data = std::aligned_alloc(kAlignment, rounded);
  }
  if (data == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  host_[static_cast<const char*>(data)] = rounded;
  return data;
}

void Memory::release_host(void* data) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (host_.erase(static_cast<const char*>(data)) == 0) return;
  }
  has_usm_ ? static_cast<void>(blocking_free_(context_, data)) : std::free(data);
}

bool Memory::is_host(const void* data, size_t bytes) const {
  const auto* const begin = static_cast<const char*>(data);
  const std::lock_guard lock(mutex_);
  return std::any_of(host_.begin(), host_.end(),
                     [&](const auto& block) { return begin >= block.first && begin + bytes <= block.first + block.second; });
}

cl_int Memory::copy(cl_command_queue queue, void* dst, const void* src, size_t bytes) const {
  return has_usm_ ? enqueue_copy_(queue, CL_FALSE, dst, src, bytes, 0, nullptr, nullptr)
                  : api().clEnqueueSVMMemcpy(queue, CL_FALSE, dst, src, bytes, 0, nullptr, nullptr);
}
cl_int Memory::fill(cl_command_queue queue, void* dst, unsigned char value, size_t bytes) const {
  return has_usm_ ? enqueue_fill_(queue, dst, &value, 1, bytes, 0, nullptr, nullptr)
                  : api().clEnqueueSVMMemFill(queue, dst, &value, 1, bytes, 0, nullptr, nullptr);
}

void Memory::allow_all(cl_kernel kernel, size_t& known) const {
  if (reaches_all_) return;
  const std::lock_guard lock(mutex_);
  if (known == (has_usm_ ? 1 : generation_)) return;
  if (has_usm_) {
    const cl_bool yes = CL_TRUE;
    check(api().clSetKernelExecInfo(kernel, CL_KERNEL_EXEC_INFO_INDIRECT_DEVICE_ACCESS_INTEL, sizeof yes, &yes), "clSetKernelExecInfo");
    known = 1;
    return;
  }
  std::vector<void*> all;
  all.reserve(bases_.size());
  for (const auto& [data, base] : bases_) all.push_back(base);
  if (!all.empty())
    check(api().clSetKernelExecInfo(kernel, CL_KERNEL_EXEC_INFO_SVM_PTRS, all.size() * sizeof(void*), all.data()), "clSetKernelExecInfo");
  known = generation_;
}

}  // namespace strata::opencl
