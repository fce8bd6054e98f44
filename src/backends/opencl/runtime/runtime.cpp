#include "backends/opencl/runtime/runtime.h"

#include <algorithm>

#include "backends/opencl/runtime/check.h"
#include "backends/opencl/runtime/platforms.h"
#include "backends/opencl/runtime/program.h"
#include "core/check.h"

namespace strata::opencl {
namespace {

// The minimum for opencl/basic.
constexpr int64_t kLeastLocalBytes = 32 << 10, kLeastGroupItems = 256;

struct Opened {
  std::mutex mutex;
  std::map<int, std::unique_ptr<Runtime>> runtimes;
};
// Never destroyed: at the end of the process, the platforms' libraries may be unloaded earlier.
Opened& opened() {
  static Opened* const all = new Opened;
  return *all;
}

}  // namespace

Runtime::Runtime(cl_device_id device, Capabilities capabilities) : device_(device), capabilities_(std::move(capabilities)) {
  cl_int error = CL_SUCCESS;
  context_ = api().clCreateContext(nullptr, 1, &device_, nullptr, nullptr, &error);
  check(error, fmt::format("clCreateContext for {}", capabilities_.name));
  memory_ = std::make_unique<Memory>(context_, device_, capabilities_);
  default_queue_.native = create_native_queue();
  queues_.push_back(&default_queue_);
}

cl_command_queue Runtime::create_native_queue() {
  // On PoCL all streams share one queue; see Widths.
  if (is_pocl() && default_queue_.native != nullptr) {
    check(api().clRetainCommandQueue(default_queue_.native), "clRetainCommandQueue");
    return default_queue_.native;
  }
  cl_int error = CL_SUCCESS;
  const cl_queue_properties properties[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0};
  const cl_command_queue queue = api().clCreateCommandQueueWithProperties(context_, device_, properties, &error);
  check(error, fmt::format("clCreateCommandQueueWithProperties for {}", capabilities_.name));
  return queue;
}

Queue* Runtime::create_queue() {
  auto queue = std::make_unique<Queue>(Queue{.native = create_native_queue()});
  const std::lock_guard lock(queues_mutex_);
  queues_.push_back(queue.get());
  return queue.release();
}

void Runtime::destroy_queue(Queue* queue) noexcept {
  if (queue == nullptr) return;
  {
    const std::lock_guard lock(queues_mutex_);
    std::erase(queues_, queue);
  }
  api().clFinish(queue->native);  // as memory is reused once all known queues have finished
  api().clReleaseCommandQueue(queue->native);
  delete queue;
}

void Runtime::finish() {
  const std::lock_guard lock(queues_mutex_);
  for (const Queue* queue : queues_) check(api().clFinish(queue->native), "clFinish");
}

cl_program Runtime::build(const Module& module, const std::string& cache_folder) const {
  return build_program(context_, device_, capabilities_, module, cache_folder);
}

void Runtime::put(Queue& queue, const Command& command) {
  queue.recording != nullptr ? queue.recording->add(queue, command) : enqueue(*memory_, queue.native, command);
}

Runtime::Kernel& Runtime::kernel(const KernelId& id, const std::string& cache_folder) {
  const std::lock_guard lock(programs_mutex_);
  // On devices without sub-groups of 8, Intel's compiler would choose 32 for `basic`, and kernels would spill.
  const Variant variant = id.variant == Variant::basic && capabilities_.subgroup_size == 16 ? Variant::basic16 : id.variant;
  auto program = programs_.find({id.module, variant});
  if (program == programs_.end()) {
    const cl_program built = build(find_module(id.module, variant), cache_folder);
    program = programs_.emplace(std::pair(id.module, variant), built).first;
  }
  Kernel& kernel = kernels_[{program->second, id.name}];
  if (kernel.native == nullptr) {
    cl_int error = CL_SUCCESS;
    const cl_kernel native = api().clCreateKernel(program->second, id.name, &error);
    check(error, fmt::format("clCreateKernel of {} in the module {}", id.name, id.module));
    kernel.native = native;
  }
  return kernel;
}

void Runtime::launch(const KernelId& id, const void* call, size_t bytes, const Range& range, Queue& queue,
                     const std::string& cache_folder) {
  if (range.groups[0] == 0 || range.groups[1] == 0 || range.groups[2] == 0) return;
  Kernel& k = kernel(id, cache_folder);
  const std::lock_guard lock(k.mutex);
  memory_->allow_all(k.native, k.known_memory);
  check(api().clSetKernelArg(k.native, 0, bytes, call), fmt::format("clSetKernelArg of {} in the module {}", id.name, id.module));
  Command command{.kind = Command::Kind::kernel, .kernel = k.native, .range = range, .widths = is_pocl() ? &k.widths : nullptr};
  if (queue.recording != nullptr) {
    cl_int error = CL_SUCCESS;
    command.kernel = api().clCloneKernel(k.native, &error);
    check(error, "clCloneKernel");
  }
  put(queue, command);
}

Runtime& open_runtime(int index, const Config& config) {
  open_api(config.opencl_library);
  Opened& all = opened();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.runtimes.find(index); found != all.runtimes.end()) {
    const int size = found->second->capabilities().subgroup_size;
    require(config.opencl_subgroup_size == 0 || config.opencl_subgroup_size == size,
            "Config::opencl_subgroup_size must be {}, with which opencl:{} is open, is {}", size, index, config.opencl_subgroup_size);
    return *found->second;
  }
  const FoundDevices found = find_devices();
  const std::string name = to_string(DeviceId{DeviceKind::opencl, index});
  if (index < 0 || static_cast<size_t>(index) >= found.devices.size()) {
    const std::string broken = found.broken.empty() ? "" : fmt::format("; {}", fmt::join(found.broken, "; "));
    const size_t devices = found.devices.size();
    const std::string count = devices == 0 ? "no OpenCL device" : fmt::format("{} OpenCL device{}", devices, devices == 1 ? "" : "s");
    fail(ErrorCode::unsupported, "device {}: this machine has {}{}", name, count, broken);
  }
  const cl_device_id device = found.devices[static_cast<size_t>(index)];
  const Capabilities c = capabilities_of(device, config.opencl_subgroup_size);
  if (!c.has_usm && !c.has_svm)
    fail(ErrorCode::unsupported, "device {}: {} has neither cl_intel_unified_shared_memory nor shared virtual memory", name, c.name);
  if (c.form == ModuleForm::none)
    fail(ErrorCode::unsupported, "device {}: {} takes neither SPIR-V (cl_khr_il_program), nor PTX, nor LLVM bitcode (cl_khr_spir)", name,
         c.name);
  if (c.local_memory_bytes < kLeastLocalBytes || c.max_group_items < kLeastGroupItems)
    fail(ErrorCode::unsupported, "device {}: {} has {} bytes of local memory and work-groups of {} items; opencl/basic needs {} and {}",
         name, c.name, c.local_memory_bytes, c.max_group_items, kLeastLocalBytes, kLeastGroupItems);
  return *all.runtimes.emplace(index, std::make_unique<Runtime>(device, c)).first->second;
}

Runtime* opened_runtime(int index) {
  Opened& all = opened();
  const std::lock_guard lock(all.mutex);
  const auto found = all.runtimes.find(index);
  return found == all.runtimes.end() ? nullptr : found->second.get();
}

}  // namespace strata::opencl
