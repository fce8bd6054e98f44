// Graphs. OpenCL on GPUs has none, so a capture records a list of commands, and a launch enqueues them again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "backends/opencl/runtime/memory.h"

namespace strata::opencl {

struct Range {
  std::array<size_t, 3> groups{1, 1, 1};
  std::array<size_t, 3> items{1, 1, 1};  // per group
};

// The widest grid of a kernel so far, by size of its groups. PoCL (3.1 and later) miscounts a kernel's users and aborts if a grid is wider
// than all earlier ones while another grid of the kernel is running (pocl_release_dlhandle_cache).
struct Widths {
  std::mutex mutex;
  std::map<std::array<size_t, 3>, size_t> widest;
};

struct Command {
  enum class Kind : uint8_t { kernel, copy, fill, record, wait } kind = Kind::kernel;
  cl_kernel kernel = nullptr;  // with its arguments set
  Range range{};
  Widths* widths = nullptr;  // of the kernel; PoCL only
  void* dst = nullptr;
  const void* src = nullptr;
  size_t bytes = 0;
  unsigned char value = 0;
  int mark = -1;     // record, wait: number of the point
  size_t queue = 0;  // number in the recording; 0 is the captured stream
};

// Enqueues a command that is neither record nor wait.
void enqueue(const Memory& memory, cl_command_queue queue, const Command& command);

struct Queue;

// The commands of a capture so far. Only one thread at a time may add to it.
class Recording {
 public:
  // `first` is the captured stream.
  explicit Recording(Queue& first);
  // Releases the kernels unless take() has taken them. The queues leave the capture.
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  void add(const Queue& queue, Command command);
  // Records a point after the queue's commands so far.
  int mark(const Queue& queue);
  // Later commands of the queue come after the point. A queue that is not in a capture joins this one.
  void wait(Queue& queue, int mark);
  // Unique in the process.
  uint64_t id() const { return id_; }
  // Makes take() fail, because `call` cannot be captured.
  void spoil(const char* call) { spoiled_ = call; }

  struct Taken {
    std::vector<Command> commands;
    size_t num_queues = 0, num_marks = 0;
  };
  // Throws device_failure if a call could not be captured, or if the captured stream does not wait for another stream's last command.
  Taken take();

 private:
  uint64_t id_;
  std::vector<Queue*> queues_;
  std::vector<Command> commands_;
  // For each queue's next command, and for each point: how many commands of every queue come before.
  std::vector<std::vector<size_t>> seen_;
  std::vector<std::vector<size_t>> marks_;
  const char* spoiled_ = nullptr;
};

// The handle of a stream: an in-order OpenCL queue. The default stream has one too.
struct Queue {
  cl_command_queue native = nullptr;
  Recording* recording = nullptr;  // that the queue is part of now
  size_t number = 0;               // number in the recording
};

// The handle of an event: its last recorded point.
struct EventState {
  cl_event native = nullptr;
  uint64_t capture = 0;  // id of the capture in which the point was recorded; 0: none
  int mark = -1;
};

// The handle of a graph.
class Replay {
 public:
  // Takes ownership of the kernels of `taken`, and of `queues`, which replay its streams other than the first.
  Replay(Recording::Taken taken, std::vector<cl_command_queue> queues);
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // Runs after earlier launches, whatever their stream.
  void launch(const Memory& memory, cl_command_queue queue);

 private:
  std::vector<Command> commands_;
  std::vector<cl_command_queue> queues_;
  size_t num_marks_;
  std::mutex mutex_;
  cl_event last_ = nullptr;  // the end of the last launch
};

}  // namespace strata::opencl
