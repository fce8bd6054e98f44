// One OpenCL device of the process: its context, memory, queues and programs, which all Device objects of the same number share, so that
// their tensors and streams go together. Lives until the process ends.
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

// Names are literals.
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
  // To be released.
  cl_command_queue create_native_queue();
  Queue* create_queue();
  void destroy_queue(Queue* queue) noexcept;
  // Waits for all queues.
  void finish();

  // A program of its own, which kernels of launch() are not of.
  cl_program build(const Module& module, const std::string& cache_folder) const;
  // Now, or into the recording that has the queue. The command's kernel is released at the end of the recording.
  void put(Queue& queue, const Command& command);
  // The kernel's one argument is the struct that `call` points to. Its module is built at its first use; `cache_folder`: where built
  // programs are kept, empty: nowhere.
  void launch(const KernelId& id, const void* call, size_t bytes, const Range& range, Queue& queue, const std::string& cache_folder);

 private:
  struct Kernel {
    cl_kernel native = nullptr;
    size_t known_memory = 0;
    std::mutex mutex;  // arguments and enqueueing go together
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
  // Names are those of KernelId, which last as long as the process.
  std::map<std::pair<std::string_view, Variant>, cl_program> programs_;
  std::map<std::pair<cl_program, std::string_view>, Kernel> kernels_;
};

// Of opencl:index. Throws unsupported where the machine has no such device, with what each platform said; invalid_argument where it is open
// with other settings.
Runtime& open_runtime(int index, const Config& config);
// Null before it was opened.
Runtime* opened_runtime(int index);

}  // namespace strata::opencl
