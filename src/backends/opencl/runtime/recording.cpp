#include "backends/opencl/runtime/recording.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "backends/opencl/runtime/check.h"
#include "core/check.h"

namespace strata::opencl {
namespace {

void release_kernels(const std::vector<Command>& commands) {
  for (const Command& c : commands) {
    if (c.kernel != nullptr) api().clReleaseKernel(c.kernel);
  }
}

uint64_t next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

// The events of one launch.
class Events {
 public:
  explicit Events(size_t count) : events_(count, nullptr) {}
  ~Events() {
    for (const cl_event event : events_) {
      if (event != nullptr) api().clReleaseEvent(event);
    }
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;
  cl_event& operator[](int i) { return events_[static_cast<size_t>(i)]; }

 private:
  std::vector<cl_event> events_;
};

}  // namespace

void enqueue(const Memory& memory, cl_command_queue queue, const Command& command) {
  switch (command.kind) {
    case Command::Kind::kernel: {
      std::array<size_t, 3> all{};
      for (size_t i = 0; i < 3; ++i) all[i] = command.range.groups[i] * command.range.items[i];
      std::unique_lock<std::mutex> lock;
      if (command.widths != nullptr) {
        lock = std::unique_lock(command.widths->mutex);
        size_t& widest = command.widths->widest[command.range.items];
        const size_t width = *std::max_element(all.begin(), all.end());
        if (width > widest) check(api().clFinish(queue), "clFinish");  // on PoCL all streams are this queue
        widest = std::max(width, widest);
      }
      check(api().clEnqueueNDRangeKernel(queue, command.kernel, 3, nullptr, all.data(), command.range.items.data(), 0, nullptr, nullptr),
            "clEnqueueNDRangeKernel");
      return;
    }
    case Command::Kind::copy: check(memory.copy(queue, command.dst, command.src, command.bytes), "the copy of memory"); return;
    case Command::Kind::fill: check(memory.fill(queue, command.dst, command.value, command.bytes), "the fill of memory"); return;
    case Command::Kind::record:
    case Command::Kind::wait: return;
  }
}

Recording::Recording(Queue& first) : id_(next_id()), queues_{&first}, seen_{{0}} {
  first.recording = this;
  first.number = 0;
}

Recording::~Recording() {
  for (Queue* queue : queues_) queue->recording = nullptr;
  release_kernels(commands_);
}

void Recording::add(const Queue& queue, Command command) {
  command.queue = queue.number;
  ++seen_[queue.number][queue.number];
  commands_.push_back(command);
}

int Recording::mark(const Queue& queue) {
  marks_.push_back(seen_[queue.number]);
  const int mark = static_cast<int>(marks_.size()) - 1;
  commands_.push_back({.kind = Command::Kind::record, .mark = mark, .queue = queue.number});
  return mark;
}

void Recording::wait(Queue& queue, int mark) {
  if (queue.recording == nullptr) {
    queue.recording = this;
    queue.number = queues_.size();
    queues_.push_back(&queue);
    for (std::vector<size_t>& seen : seen_) seen.push_back(0);
    seen_.emplace_back(queues_.size(), 0);
  }
  std::vector<size_t>& seen = seen_[queue.number];
  const std::vector<size_t>& before = marks_[static_cast<size_t>(mark)];
  for (size_t i = 0; i < before.size(); ++i) seen[i] = std::max(seen[i], before[i]);
  commands_.push_back({.kind = Command::Kind::wait, .mark = mark, .queue = queue.number});
}

Recording::Taken Recording::take() {
  if (spoiled_ != nullptr) fail(ErrorCode::device_failure, "OpenCL: {} was called while a graph is captured", spoiled_);
  for (size_t i = 1; i < queues_.size(); ++i) {
    if (seen_[0][i] < seen_[i][i])
      fail(ErrorCode::device_failure, "OpenCL: a stream joined the capture, and the captured stream does not wait for its last work");
  }
  return {std::exchange(commands_, {}), queues_.size(), marks_.size()};
}

Replay::Replay(Recording::Taken taken, std::vector<cl_command_queue> queues)
    : commands_(std::move(taken.commands)), queues_(std::move(queues)), num_marks_(taken.num_marks) {}

Replay::~Replay() {
  release_kernels(commands_);
  for (const cl_command_queue queue : queues_) api().clReleaseCommandQueue(queue);
  if (last_ != nullptr) api().clReleaseEvent(last_);
}

void Replay::launch(const Memory& memory, cl_command_queue queue) {
  const std::lock_guard lock(mutex_);
  Events marks(num_marks_);
  if (last_ != nullptr) check(api().clEnqueueBarrierWithWaitList(queue, 1, &last_, nullptr), "clEnqueueBarrierWithWaitList");
  for (const Command& command : commands_) {
    const cl_command_queue on = command.queue == 0 ? queue : queues_[command.queue - 1];
    if (command.kind == Command::Kind::record) {
      check(api().clEnqueueMarkerWithWaitList(on, 0, nullptr, &marks[command.mark]), "clEnqueueMarkerWithWaitList");
      check(api().clFlush(on), "clFlush");
    } else if (command.kind == Command::Kind::wait) {
      check(api().clEnqueueBarrierWithWaitList(on, 1, &marks[command.mark], nullptr), "clEnqueueBarrierWithWaitList");
    } else {
      enqueue(memory, on, command);
    }
  }
  cl_event end = nullptr;
  check(api().clEnqueueMarkerWithWaitList(queue, 0, nullptr, &end), "clEnqueueMarkerWithWaitList");
  if (last_ != nullptr) api().clReleaseEvent(last_);
  last_ = end;
  check(api().clFlush(queue), "clFlush");
}

}  // namespace strata::opencl
