// One OpenCL device of the process: its context, memory, queues and programs. All Device objects of the same number share it, so that their
// tensors and streams can be used together. It lives until the process ends.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/opencl/runtime/capabilities.h"
#include "backends/opencl/runtime/memory.h"
#include "backends/opencl/runtime/modules.h"
#include "backends/opencl/runtime/recording.h"
#include "strata/device.h"

namespace strata::opencl {

// Names are string literals.
struct KernelId {
  std::string_view module;
  Variant variant = Variant::basic;
  const char* name = nullptr;
};

class Runtime {
 public:
  Runtime(cl_device_id device, Capabilities capabilities);

  const Capabilities& capabilities() const { return capabilities_; }
  Memory& memory() { return *memory_; }
  Queue& queue(Stream stream) { return stream.handle == nullptr ? default_queue_ : *static_cast<Queue*>(stream.handle); }
  // The caller releases the queue.
  cl_command_queue create_native_queue();
  Queue* create_queue();
  void destroy_queue(Queue* queue) noexcept;
  // Waits for all queues.
  void finish();

  // Builds a program that launch() does not use.
  cl_program build(const Module& module, const std::string& cache_folder) const;
  // Enqueues the command, or adds it to the recording that the queue is part of. The recording releases the kernel at its end.
  void put(Queue& queue, const Command& command);
  // The kernel's only argument is the struct at `call`. Its module is built at the first use. `cache_folder` caches built programs; empty:
  // none are cached.
  void launch(const KernelId& id, const void* call, size_t bytes, const Range& range, Queue& queue, const std::string& cache_folder);

 private:
  struct Kernel {
    cl_kernel native = nullptr;
    size_t known_memory = 0;
    std::mutex mutex;  // held from setting the argument to enqueueing
    Widths widths;
  };
  bool is_pocl() const { return capabilities_.form == ModuleForm::bitcode; }
  Kernel& kernel(const KernelId& id, const std::string& cache_folder);

  cl_device_id device_;
  Capabilities capabilities_;
  cl_context context_ = nullptr;
  std::unique_ptr<Memory> memory_;
  Queue default_queue_;
  std::mutex queues_mutex_;
  std::vector<Queue*> queues_;
  std::mutex programs_mutex_;
  // Names are those of KernelId, string literals.
  std::map<std::pair<std::string_view, Variant>, cl_program> programs_;
  std::map<std::pair<cl_program, std::string_view>, Kernel> kernels_;
};

// Opens opencl:index. Throws unsupported, with each platform's reason, if the machine has no such device, and invalid_argument if it is
// open with other settings.
Runtime& open_runtime(int index, const Config& config);
// Null until the device is open.
Runtime* opened_runtime(int index);

}  // namespace strata::opencl
