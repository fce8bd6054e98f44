#include "backends/opencl/runtime/api.h"

#include <dlfcn.h>

#include <mutex>

#include "core/check.h"

namespace strata::opencl {
namespace {

struct Opened {
  std::mutex mutex;
  std::string library;  // empty until opened
  Api api;
};
Opened& opened() {
  static Opened all;
  return all;
}

Api load(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) fail(ErrorCode::unsupported, "OpenCL: {}", dlerror());
  Api api;
#define STRATA_OPENCL_LOOK_UP(name)                                                              \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(handle, #name));                         \
  if (api.name == nullptr) {                                                                     \
    dlclose(handle);                                                                             \
    fail(ErrorCode::unsupported, "OpenCL: {} has no " #name " (OpenCL 2.1 is needed)", library); \
  }
  STRATA_OPENCL_FUNCTIONS(STRATA_OPENCL_LOOK_UP)
#undef STRATA_OPENCL_LOOK_UP
  return api;
}

}  // namespace

void open_api(const std::string& library) {
  const std::string name = library.empty() ? "libOpenCL.so.1" : library;
  Opened& all = opened();
  const std::lock_guard lock(all.mutex);
  if (all.library.empty()) {
    all.api = load(name);
    all.library = name;
  }
  require(all.library == name, "Config::opencl_library must be {}, which this process has opened, is {}", all.library, name);
}

const Api& api() { return opened().api; }

}  // namespace strata::opencl
