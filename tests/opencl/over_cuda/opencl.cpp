// The OpenCL functions that Strata uses, over the CUDA driver API: a libOpenCL.so.1 for tests. With it the kernels' PTX runs under
// compute-sanitizer, which does not follow NVIDIA's OpenCL. Errors of CUDA become OpenCL's; what is not needed is refused.
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <cuda.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

struct _cl_platform_id {};
struct _cl_device_id {
  CUdevice device = 0;
  CUcontext context = nullptr;  // the primary one
};
struct _cl_context {};
struct _cl_command_queue {
  CUstream stream = nullptr;
};
struct _cl_event {
  CUevent event = nullptr;
  int owners = 1;
};
struct _cl_program {
  std::string image;
  CUmodule module = nullptr;
  std::string log;
};
struct _cl_kernel {
  CUfunction function = nullptr;
  std::vector<std::byte> argument;
};

namespace {

cl_int opencl_error(CUresult result) {
  switch (result) {
    case CUDA_SUCCESS: return CL_SUCCESS;
    case CUDA_ERROR_OUT_OF_MEMORY: return CL_MEM_OBJECT_ALLOCATION_FAILURE;
    case CUDA_ERROR_INVALID_VALUE: return CL_INVALID_VALUE;
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_INVALID_PTX: return CL_INVALID_BINARY;
    case CUDA_ERROR_NOT_FOUND: return CL_INVALID_KERNEL_NAME;
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: return CL_OUT_OF_RESOURCES;
    default: std::fprintf(stderr, "OpenCL over CUDA: error %d of the driver\n", static_cast<int>(result)); return CL_OUT_OF_RESOURCES;
  }
}

_cl_platform_id* platform() {
  static _cl_platform_id only;
  return &only;
}

std::vector<_cl_device_id>& devices() {
  static std::vector<_cl_device_id> all = [] {
    std::vector<_cl_device_id> found;
    int count = 0;
    if (cuInit(0) != CUDA_SUCCESS || cuDeviceGetCount(&count) != CUDA_SUCCESS) count = 0;
    for (int i = 0; i < count; ++i) {
      _cl_device_id d;
      if (cuDeviceGet(&d.device, i) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&d.context, d.device) == CUDA_SUCCESS) found.push_back(d);
    }
    return found;
  }();
  return all;
}

// Every call may come from a thread of its own. One device is enough for these tests.
void use_device() { cuCtxSetCurrent(devices().front().context); }

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
int attribute(cl_device_id device, CUdevice_attribute what) {
  int value = 0;
  cuDeviceGetAttribute(&value, what, device->device);
  return value;
}

template <class T>
T* made(T* object, cl_int error, cl_int* to) {
  if (to != nullptr) *to = error;
  if (error == CL_SUCCESS) return object;
  delete object;
  return nullptr;
}

}  // namespace

extern "C" {

cl_int clGetPlatformIDs(cl_uint room, cl_platform_id* to, cl_uint* count) {
  if (count != nullptr) *count = 1;
  if (to != nullptr && room > 0) to[0] = platform();
  return CL_SUCCESS;
}
cl_int clGetPlatformInfo(cl_platform_id, cl_platform_info what, size_t room, void* to, size_t* size) {
  return what == CL_PLATFORM_NAME ? give("OpenCL over CUDA", room, to, size) : CL_INVALID_VALUE;
}
void* clGetExtensionFunctionAddressForPlatform(cl_platform_id, const char*) { return nullptr; }

cl_int clGetDeviceIDs(cl_platform_id, cl_device_type, cl_uint room, cl_device_id* to, cl_uint* count) {
  if (devices().empty()) return CL_DEVICE_NOT_FOUND;
  if (count != nullptr) *count = 1;
  if (to != nullptr && room > 0) to[0] = devices().data();
  return CL_SUCCESS;
}
cl_int clGetDeviceInfo(cl_device_id d, cl_device_info what, size_t room, void* to, size_t* size) {
  size_t memory = 0;
  char name[256] = "";
  switch (what) {
    case CL_DEVICE_NAME:
      cuDeviceGetName(name, sizeof name, d->device);
      return give(std::string(name) + " through the CUDA driver", room, to, size);
    case CL_DEVICE_VENDOR: return give("NVIDIA", room, to, size);
    case CL_DEVICE_VERSION: return give("OpenCL 3.0 for tests", room, to, size);
    case CL_DRIVER_VERSION: return give("1", room, to, size);
    case CL_DEVICE_EXTENSIONS:
    case CL_DEVICE_IL_VERSION: return give("", room, to, size);
    case CL_DEVICE_TYPE: return give_value<cl_ulong>(CL_DEVICE_TYPE_GPU, room, to, size);
    case CL_DEVICE_SVM_CAPABILITIES: return give_value<cl_ulong>(CL_DEVICE_SVM_COARSE_GRAIN_BUFFER, room, to, size);
    case CL_DEVICE_PLATFORM: return give_value<cl_platform_id>(platform(), room, to, size);
    case CL_DEVICE_MAX_COMPUTE_UNITS:
      return give_value<cl_uint>(static_cast<cl_uint>(attribute(d, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)), room, to, size);
    case CL_DEVICE_MAX_WORK_GROUP_SIZE: return give_value<size_t>(1024, room, to, size);
    case CL_DEVICE_LOCAL_MEM_SIZE: return give_value<cl_ulong>(48 << 10, room, to, size);
    case CL_DEVICE_GLOBAL_MEM_CACHE_SIZE:
      return give_value<cl_ulong>(static_cast<cl_ulong>(attribute(d, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)), room, to, size);
    case CL_DEVICE_GLOBAL_MEM_SIZE:
    case CL_DEVICE_MAX_MEM_ALLOC_SIZE: cuDeviceTotalMem(&memory, d->device); return give_value<cl_ulong>(memory, room, to, size);
    default: return CL_INVALID_VALUE;
  }
}

cl_context clCreateContext(const cl_context_properties*, cl_uint, const cl_device_id*, void (*)(const char*, const void*, size_t, void*),
                           void*, cl_int* error) {
  return made(new _cl_context, CL_SUCCESS, error);
}
cl_int clReleaseContext(cl_context context) {
  delete context;
  return CL_SUCCESS;
}
cl_command_queue clCreateCommandQueueWithProperties(cl_context, cl_device_id, const cl_queue_properties*, cl_int* error) {
  use_device();
  auto* const queue = new _cl_command_queue;
  return made(queue, opencl_error(cuStreamCreate(&queue->stream, CU_STREAM_NON_BLOCKING)), error);
}
// Of PoCL alone, whose streams share a queue.
cl_int clRetainCommandQueue(cl_command_queue) { return CL_INVALID_OPERATION; }
cl_int clReleaseCommandQueue(cl_command_queue queue) {
  use_device();
  const cl_int error = opencl_error(cuStreamDestroy(queue->stream));
  delete queue;
  return error;
}
cl_int clFlush(cl_command_queue) { return CL_SUCCESS; }
cl_int clFinish(cl_command_queue queue) {
  use_device();
  return opencl_error(cuStreamSynchronize(queue->stream));
}

cl_int clEnqueueMarkerWithWaitList(cl_command_queue queue, cl_uint, const cl_event*, cl_event* event) {
  use_device();
  if (event == nullptr) return CL_SUCCESS;
  auto* const made_event = new _cl_event;
  const CUresult created = cuEventCreate(&made_event->event, CU_EVENT_DISABLE_TIMING);
  *event = made_event;
  return opencl_error(created == CUDA_SUCCESS ? cuEventRecord(made_event->event, queue->stream) : created);
}
cl_int clEnqueueBarrierWithWaitList(cl_command_queue queue, cl_uint count, const cl_event* events, cl_event*) {
  use_device();
  for (cl_uint i = 0; i < count; ++i) {
    if (const CUresult result = cuStreamWaitEvent(queue->stream, events[i]->event, 0); result != CUDA_SUCCESS) return opencl_error(result);
  }
  return CL_SUCCESS;
}
cl_int clWaitForEvents(cl_uint count, const cl_event* events) {
  use_device();
  for (cl_uint i = 0; i < count; ++i) {
    if (const CUresult result = cuEventSynchronize(events[i]->event); result != CUDA_SUCCESS) return opencl_error(result);
  }
  return CL_SUCCESS;
}
cl_int clGetEventProfilingInfo(cl_event, cl_profiling_info, size_t, void*, size_t*) { return CL_PROFILING_INFO_NOT_AVAILABLE; }
cl_int clGetEventInfo(cl_event, cl_event_info, size_t, void*, size_t*) { return CL_INVALID_VALUE; }
cl_int clRetainEvent(cl_event event) {
  ++event->owners;
  return CL_SUCCESS;
}
cl_int clReleaseEvent(cl_event event) {
  if (--event->owners > 0) return CL_SUCCESS;
  use_device();
  cuEventDestroy(event->event);
  delete event;
  return CL_SUCCESS;
}

void* clSVMAlloc(cl_context, cl_svm_mem_flags, size_t bytes, cl_uint) {
  use_device();
  CUdeviceptr data = 0;
  return cuMemAlloc(&data, bytes) == CUDA_SUCCESS ? reinterpret_cast<void*>(data) : nullptr;
}
void clSVMFree(cl_context, void* data) {
  use_device();
  cuMemFree(reinterpret_cast<CUdeviceptr>(data));
}
cl_int clEnqueueSVMMemcpy(cl_command_queue queue, cl_bool, void* to, const void* from, size_t bytes, cl_uint, const cl_event*, cl_event*) {
  if (to == nullptr || from == nullptr) return CL_INVALID_VALUE;
  use_device();
  return opencl_error(cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes, queue->stream));
}
cl_int clEnqueueSVMMemFill(cl_command_queue queue, void* to, const void* pattern, size_t pattern_bytes, size_t bytes, cl_uint,
                           const cl_event*, cl_event*) {
  if (to == nullptr || pattern_bytes != 1) return CL_INVALID_VALUE;
  use_device();
  return opencl_error(
      cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(to), *static_cast<const unsigned char*>(pattern), bytes, queue->stream));
}

cl_program clCreateProgramWithIL(cl_context, const void*, size_t, cl_int* error) {
  return made(new _cl_program, CL_INVALID_OPERATION, error);
}
cl_program clCreateProgramWithBinary(cl_context, cl_uint, const cl_device_id*, const size_t* bytes, const unsigned char** binary, cl_int*,
                                     cl_int* error) {
  auto* const program = new _cl_program;
  program->image.assign(reinterpret_cast<const char*>(binary[0]), bytes[0]);
  return made(program, CL_SUCCESS, error);
}
cl_int clBuildProgram(cl_program program, cl_uint, const cl_device_id*, const char*, void (*)(cl_program, void*), void*) {
  use_device();
  std::vector<char> log(16384, '\0');
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log.data(), reinterpret_cast<void*>(log.size())};
  const CUresult result = cuModuleLoadDataEx(&program->module, program->image.c_str(), 2, options, values);
  program->log = log.data();
  return result == CUDA_SUCCESS ? CL_SUCCESS : CL_BUILD_PROGRAM_FAILURE;
}
cl_int clGetProgramBuildInfo(cl_program program, cl_device_id, cl_program_build_info what, size_t room, void* to, size_t* size) {
  return what == CL_PROGRAM_BUILD_LOG ? give(program->log, room, to, size) : CL_INVALID_VALUE;
}
cl_int clGetProgramInfo(cl_program program, cl_program_info what, size_t room, void* to, size_t* size) {
  if (what == CL_PROGRAM_BINARY_SIZES) return give_value<size_t>(program->image.size(), room, to, size);
  if (what != CL_PROGRAM_BINARIES) return CL_INVALID_VALUE;
  std::memcpy(static_cast<unsigned char**>(to)[0], program->image.data(), program->image.size());
  return CL_SUCCESS;
}
cl_int clReleaseProgram(cl_program program) {
  use_device();
  if (program->module != nullptr) cuModuleUnload(program->module);
  delete program;
  return CL_SUCCESS;
}

cl_kernel clCreateKernel(cl_program program, const char* name, cl_int* error) {
  use_device();
  auto* const kernel = new _cl_kernel;
  return made(kernel, opencl_error(cuModuleGetFunction(&kernel->function, program->module, name)), error);
}
cl_kernel clCloneKernel(cl_kernel kernel, cl_int* error) { return made(new _cl_kernel(*kernel), CL_SUCCESS, error); }
cl_int clReleaseKernel(cl_kernel kernel) {
  delete kernel;
  return CL_SUCCESS;
}
cl_int clSetKernelArg(cl_kernel kernel, cl_uint index, size_t bytes, const void* value) {
  if (index != 0) return CL_INVALID_ARG_INDEX;
  const auto* const begin = static_cast<const std::byte*>(value);
  kernel->argument.assign(begin, begin + bytes);
  return CL_SUCCESS;
}
cl_int clSetKernelExecInfo(cl_kernel, cl_kernel_exec_info, size_t, const void*) { return CL_SUCCESS; }
cl_int clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions, const size_t*, const size_t* all,
                              const size_t* items, cl_uint, const cl_event*, cl_event*) {
  if (dimensions != 3) return CL_INVALID_WORK_DIMENSION;
  use_device();
  unsigned groups[3], local[3];
  for (int i = 0; i < 3; ++i) {
    if (items[i] == 0 || all[i] % items[i] != 0) return CL_INVALID_WORK_GROUP_SIZE;
    groups[i] = static_cast<unsigned>(all[i] / items[i]);
    local[i] = static_cast<unsigned>(items[i]);
  }
  void* arguments[] = {kernel->argument.data()};
  return opencl_error(cuLaunchKernel(kernel->function, groups[0], groups[1], groups[2], local[0], local[1], local[2], 0, queue->stream,
                                     arguments, nullptr));
}

}  // extern "C"
