#include "backends/opencl/runtime/platforms.h"

#include <algorithm>
#include <utility>

#include "backends/opencl/runtime/check.h"
#include "core/check.h"

namespace strata::opencl {
namespace {

int order_of(cl_device_type type) {
  if ((type & CL_DEVICE_TYPE_GPU) != 0) return 0;
  return (type & CL_DEVICE_TYPE_CPU) != 0 ? 2 : 1;
}

std::string name_of(cl_platform_id platform) {
  char name[256] = "";
  if (api().clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof name, name, nullptr) != CL_SUCCESS) return "a platform without a name";
  return name;
}

}  // namespace

FoundDevices find_devices() {
  FoundDevices found;
  cl_uint count = 0;
  const cl_int error = api().clGetPlatformIDs(0, nullptr, &count);
  if (error == CL_PLATFORM_NOT_FOUND_KHR || (error == CL_SUCCESS && count == 0)) {
    found.broken.emplace_back("no platform is installed");
    return found;
  }
  if (error != CL_SUCCESS) {
    found.broken.push_back(fmt::format("clGetPlatformIDs: {} ({})", error_name(error), error));
    return found;
  }
  std::vector<cl_platform_id> platforms(count);
  if (count > 0) check(api().clGetPlatformIDs(count, platforms.data(), nullptr), "clGetPlatformIDs");
  std::vector<std::pair<int, cl_device_id>> ordered;
  for (const cl_platform_id platform : platforms) {
    cl_uint size = 0;
    cl_int status = api().clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &size);
    std::vector<cl_device_id> devices(size);
    if (status == CL_SUCCESS && size > 0) status = api().clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, size, devices.data(), nullptr);
    if (status != CL_SUCCESS) {
      found.broken.push_back(fmt::format("{}: clGetDeviceIDs: {} ({})", name_of(platform), error_name(status), status));
      continue;
    }
    for (const cl_device_id device : devices) ordered.emplace_back(order_of(value_of<cl_device_type>(device, CL_DEVICE_TYPE)), device);
  }
  std::stable_sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [order, device] : ordered) found.devices.push_back(device);
  return found;
}

std::string text_of(cl_device_id device, cl_device_info what) {
  size_t size = 0;
  check(api().clGetDeviceInfo(device, what, 0, nullptr, &size), "clGetDeviceInfo");
  std::string text(size, '\0');
  check(api().clGetDeviceInfo(device, what, size, text.data(), nullptr), "clGetDeviceInfo");
  while (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

template <class T>
T value_of(cl_device_id device, cl_device_info what) {
  T value{};
  // NOLINTNEXTLINE(bugprone-sizeof-expression): of a handle the size is its own
  check(api().clGetDeviceInfo(device, what, sizeof(T), &value, nullptr), "clGetDeviceInfo");
  return value;
}
template cl_uint value_of(cl_device_id, cl_device_info);
template cl_ulong value_of(cl_device_id, cl_device_info);
template cl_platform_id value_of(cl_device_id, cl_device_info);

}  // namespace strata::opencl
