// Loads libOpenCL by dlopen, so that one binary runs on machines with and without it.
#pragma once

#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <CL/cl_ext.h>

#include <string>

namespace strata::opencl {

#define STRATA_OPENCL_FUNCTIONS(X)            \
  X(clBuildProgram)                           \
  X(clCloneKernel)                            \
  X(clCreateCommandQueueWithProperties)       \
  X(clCreateContext)                          \
  X(clCreateKernel)                           \
  X(clCreateProgramWithBinary)                \
  X(clCreateProgramWithIL)                    \
  X(clEnqueueBarrierWithWaitList)             \
  X(clEnqueueMarkerWithWaitList)              \
  X(clEnqueueNDRangeKernel)                   \
  X(clEnqueueSVMMemFill)                      \
  X(clEnqueueSVMMemcpy)                       \
  X(clFinish)                                 \
  X(clFlush)                                  \
  X(clGetDeviceIDs)                           \
  X(clGetEventProfilingInfo)                  \
  X(clGetDeviceInfo)                          \
  X(clGetEventInfo)                           \
  X(clGetExtensionFunctionAddressForPlatform) \
  X(clGetPlatformIDs)                         \
  X(clGetPlatformInfo)                        \
  X(clGetProgramBuildInfo)                    \
  X(clGetProgramInfo)                         \
  X(clReleaseCommandQueue)                    \
  X(clReleaseContext)                         \
  X(clReleaseEvent)                           \
  X(clReleaseKernel)                          \
  X(clReleaseProgram)                         \
  X(clRetainCommandQueue)                     \
  X(clRetainEvent)                            \
  X(clSVMAlloc)                               \
  X(clSVMFree)                                \
  X(clSetKernelArg)                           \
  X(clSetKernelExecInfo)                      \
  X(clWaitForEvents)

struct Api {
#define STRATA_OPENCL_MEMBER(name) decltype(&::name) name = nullptr;  // NOLINT(bugprone-macro-parentheses): declares it
  STRATA_OPENCL_FUNCTIONS(STRATA_OPENCL_MEMBER)
#undef STRATA_OPENCL_MEMBER
};

// Opens the library, by default libOpenCL.so.1. The first successful call opens it; later calls do nothing. Throws unsupported, with the
// loader's reason, if the library is absent or lacks a function, and invalid_argument if another library is open.
void open_api(const std::string& library);
// Call open_api first.
const Api& api();

}  // namespace strata::opencl
