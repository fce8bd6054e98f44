// An OpenCL library for tests of refusals: one platform with one device that does nothing, or as STRATA_FAKE_OPENCL names it, fails at one
// thing. Not for anything that needs results.
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <CL/cl_ext.h>

#include <cstdlib>
#include <cstring>
#include <string>

struct _cl_platform_id {};
struct _cl_device_id {};
struct _cl_context {};
struct _cl_command_queue {};
struct _cl_event {};
struct _cl_program {};
struct _cl_kernel {};

namespace {

// Whether the device lacks, or fails at, `what`.
bool lacks(const char* what) {
  const char* const chosen = std::getenv("STRATA_FAKE_OPENCL");
  return chosen != nullptr && std::strcmp(chosen, what) == 0;
}
cl_int result_of(const char* what, cl_int error) { return lacks(what) ? error : CL_SUCCESS; }

// The only object of its kind.
template <class T>
T* only() {
  static T object;
  return &object;
}
template <class T>
T* made(const char* what, cl_int failure, cl_int* error) {
  if (error != nullptr) *error = result_of(what, failure);
  return lacks(what) ? nullptr : only<T>();
}

cl_int give(const void* data, size_t bytes, size_t room, void* to, size_t* size) {
  if (size != nullptr) *size = bytes;
  if (to == nullptr) return CL_SUCCESS;
  if (room < bytes) return CL_INVALID_VALUE;
  std::memcpy(to, data, bytes);
  return CL_SUCCESS;
}
cl_int give(const std::string& text, size_t room, void* to, size_t* size) { return give(text.c_str(), text.size() + 1, room, to, size); }
template <class T>
cl_int give_value(T value, size_t room, void* to, size_t* size) {
  return give(&value, sizeof value, room, to, size);
}

}  // namespace

extern "C" {

cl_int clGetPlatformIDs(cl_uint room, cl_platform_id* to, cl_uint* count) {
  if (lacks("platforms")) return CL_PLATFORM_NOT_FOUND_KHR;
  if (lacks("loader")) return CL_OUT_OF_HOST_MEMORY;
  if (count != nullptr) *count = 1;
  if (to != nullptr && room > 0) to[0] = only<_cl_platform_id>();
  return CL_SUCCESS;
}
cl_int clGetPlatformInfo(cl_platform_id, cl_platform_info what, size_t room, void* to, size_t* size) {
  return what == CL_PLATFORM_NAME ? give("a platform of tests", room, to, size) : CL_INVALID_VALUE;
}
void* clGetExtensionFunctionAddressForPlatform(cl_platform_id, const char*) { return nullptr; }

cl_int clGetDeviceIDs(cl_platform_id, cl_device_type, cl_uint room, cl_device_id* to, cl_uint* count) {
  if (lacks("devices")) return CL_DEVICE_NOT_FOUND;
  if (lacks("driver")) return CL_OUT_OF_RESOURCES;
  if (count != nullptr) *count = 1;
  if (to != nullptr && room > 0) to[0] = only<_cl_device_id>();
  return CL_SUCCESS;
}
cl_int clGetDeviceInfo(cl_device_id, cl_device_info what, size_t room, void* to, size_t* size) {
  if (lacks("properties") && what != CL_DEVICE_TYPE) return CL_INVALID_DEVICE;
  switch (what) {
    case CL_DEVICE_NAME: return give("a device of tests", room, to, size);
    case CL_DEVICE_VENDOR: return give("nobody", room, to, size);
    case CL_DEVICE_VERSION: return give("OpenCL 3.0 for tests", room, to, size);
    case CL_DRIVER_VERSION: return give("1", room, to, size);
    case CL_DEVICE_IL_VERSION: return give("", room, to, size);
    case CL_DEVICE_EXTENSIONS:
      return give(std::string(lacks("modules") ? "" : "cl_khr_il_program ") + (lacks("usm") ? "cl_intel_unified_shared_memory" : ""), room,
                  to, size);
    case CL_DEVICE_TYPE: return give_value<cl_ulong>(CL_DEVICE_TYPE_GPU, room, to, size);
    case CL_DEVICE_SVM_CAPABILITIES:
      return give_value<cl_ulong>(lacks("addresses") ? 0 : CL_DEVICE_SVM_COARSE_GRAIN_BUFFER, room, to, size);
    case CL_DEVICE_PLATFORM: return give_value<cl_platform_id>(only<_cl_platform_id>(), room, to, size);
    case CL_DEVICE_MAX_COMPUTE_UNITS: return give_value<cl_uint>(1, room, to, size);
    case CL_DEVICE_MAX_WORK_GROUP_SIZE: return give_value<size_t>(lacks("items") ? 64 : 1024, room, to, size);
    case CL_DEVICE_LOCAL_MEM_SIZE: return give_value<cl_ulong>(lacks("local") ? 16 << 10 : 64 << 10, room, to, size);
    case CL_DEVICE_GLOBAL_MEM_CACHE_SIZE: return give_value<cl_ulong>(1 << 20, room, to, size);
    case CL_DEVICE_GLOBAL_MEM_SIZE:
    case CL_DEVICE_MAX_MEM_ALLOC_SIZE: return give_value<cl_ulong>(cl_ulong{1} << 30, room, to, size);
    default: return CL_INVALID_VALUE;
  }
}

cl_context clCreateContext(const cl_context_properties*, cl_uint, const cl_device_id*, void (*)(const char*, const void*, size_t, void*),
                           void*, cl_int* error) {
  return made<_cl_context>("context", CL_OUT_OF_RESOURCES, error);
}
cl_int clReleaseContext(cl_context) { return CL_SUCCESS; }
cl_command_queue clCreateCommandQueueWithProperties(cl_context, cl_device_id, const cl_queue_properties*, cl_int* error) {
  return made<_cl_command_queue>("queue", CL_INVALID_QUEUE_PROPERTIES, error);
}
cl_int clRetainCommandQueue(cl_command_queue) { return CL_SUCCESS; }
cl_int clReleaseCommandQueue(cl_command_queue) { return CL_SUCCESS; }
cl_int clFlush(cl_command_queue) { return CL_SUCCESS; }
cl_int clFinish(cl_command_queue) { return CL_SUCCESS; }

cl_int clEnqueueMarkerWithWaitList(cl_command_queue, cl_uint, const cl_event*, cl_event* event) {
  if (event != nullptr) *event = only<_cl_event>();
  return CL_SUCCESS;
}
cl_int clEnqueueBarrierWithWaitList(cl_command_queue, cl_uint, const cl_event*, cl_event*) { return CL_SUCCESS; }
cl_int clWaitForEvents(cl_uint, const cl_event*) { return CL_SUCCESS; }
cl_int clGetEventInfo(cl_event, cl_event_info, size_t, void*, size_t*) { return CL_INVALID_VALUE; }
cl_int clGetEventProfilingInfo(cl_event, cl_profiling_info, size_t room, void* to, size_t* size) {
  return give_value<cl_ulong>(0, room, to, size);
}
cl_int clRetainEvent(cl_event) { return CL_SUCCESS; }
cl_int clReleaseEvent(cl_event) { return CL_SUCCESS; }

void* clSVMAlloc(cl_context, cl_svm_mem_flags, size_t bytes, cl_uint) { return std::malloc(bytes); }
void clSVMFree(cl_context, void* data) { std::free(data); }
cl_int clEnqueueSVMMemcpy(cl_command_queue, cl_bool, void* to, const void* from, size_t bytes, cl_uint, const cl_event*, cl_event*) {
  std::memmove(to, from, bytes);
  return CL_SUCCESS;
}
cl_int clEnqueueSVMMemFill(cl_command_queue, void* to, const void* pattern, size_t, size_t bytes, cl_uint, const cl_event*, cl_event*) {
  std::memset(to, *static_cast<const unsigned char*>(pattern), bytes);
  return CL_SUCCESS;
}

cl_program clCreateProgramWithIL(cl_context, const void*, size_t, cl_int* error) {
  return made<_cl_program>("program", CL_INVALID_VALUE, error);
}
cl_program clCreateProgramWithBinary(cl_context, cl_uint, const cl_device_id*, const size_t*, const unsigned char**, cl_int*,
                                     cl_int* error) {
  return made<_cl_program>("program", CL_INVALID_BINARY, error);
}
cl_int clBuildProgram(cl_program, cl_uint, const cl_device_id*, const char*, void (*)(cl_program, void*), void*) {
  return result_of("build", CL_BUILD_PROGRAM_FAILURE);
}
cl_int clGetProgramBuildInfo(cl_program, cl_device_id, cl_program_build_info, size_t room, void* to, size_t* size) {
  return give("line 7: no such instruction", room, to, size);
}
cl_int clGetProgramInfo(cl_program, cl_program_info, size_t, void*, size_t*) { return CL_INVALID_VALUE; }
cl_int clReleaseProgram(cl_program) { return CL_SUCCESS; }

cl_kernel clCreateKernel(cl_program, const char*, cl_int* error) { return made<_cl_kernel>("kernel", CL_INVALID_KERNEL_NAME, error); }
cl_kernel clCloneKernel(cl_kernel kernel, cl_int* error) {
  if (error != nullptr) *error = CL_SUCCESS;
  return kernel;
}
cl_int clReleaseKernel(cl_kernel) { return CL_SUCCESS; }
cl_int clSetKernelArg(cl_kernel, cl_uint, size_t, const void*) { return CL_SUCCESS; }
cl_int clSetKernelExecInfo(cl_kernel, cl_kernel_exec_info, size_t, const void*) { return CL_SUCCESS; }
cl_int clEnqueueNDRangeKernel(cl_command_queue, cl_kernel, cl_uint, const size_t*, const size_t*, const size_t*, cl_uint, const cl_event*,
                              cl_event*) {
  return result_of("launch", CL_OUT_OF_RESOURCES);
}

}  // extern "C"
