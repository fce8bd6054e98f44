// Graphs. OpenCL on GPUs has none, so a capture makes a list of commands, and a launch enqueues them again.
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
  std::array<size_t, 3> items{1, 1, 1};  // of a group
};

// The widest grid of a kernel by the size of its groups, for PoCL: it counts the users of a kernel wrongly, and aborts, where a grid is
// wider than all before while another one of the kernel has not ended (pocl_release_dlhandle_cache, in 3.1 and later).
struct Widths {
  std::mutex mutex;
  std::map<std::array<size_t, 3>, size_t> widest;
};

struct Command {
  enum class Kind : uint8_t { kernel, copy, fill, record, wait } kind = Kind::kernel;
  cl_kernel kernel = nullptr;  // with its arguments
  Range range{};
  Widths* widths = nullptr;  // of the kernel, on PoCL
  void* dst = nullptr;
  const void* src = nullptr;
  size_t bytes = 0;
  unsigned char value = 0;
  int mark = -1;     // record, wait: which point
  size_t queue = 0;  // of a recording: 0 is the captured stream
};

// Puts a command that is neither record nor wait on a queue.
void enqueue(const Memory& memory, cl_command_queue queue, const Command& command);

struct Queue;

// What a capture has seen so far. One thread at a time adds to it.
class Recording {
 public:
  // `first`: the captured stream.
  explicit Recording(Queue& first);
  // The kernels of what take() has not taken are released, and the queues leave the capture.
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  void add(const Queue& queue, Command command);
  // A point after what is on the queue now.
  int mark(const Queue& queue);
  // What comes on the queue is after the point. A queue that is not in a capture joins this one.
  void wait(Queue& queue, int mark);
  // No other capture of the process has the same.
  uint64_t id() const { return id_; }
  // Makes take() fail: a call that cannot be captured was made.
  void spoil(const char* call) { spoiled_ = call; }

  struct Taken {
    std::vector<Command> commands;
    size_t num_queues = 0, num_marks = 0;
  };
  // Throws device_failure where a call could not be captured, and where work of another stream is not waited for in the end.
  Taken take();

 private:
  uint64_t id_;
  std::vector<Queue*> queues_;
  std::vector<Command> commands_;
  // How many commands of each queue come before: the next command of a queue, and a point.
  std::vector<std::vector<size_t>> seen_;
  std::vector<std::vector<size_t>> marks_;
  const char* spoiled_ = nullptr;
};

// An in-order queue of OpenCL, as a stream's handle. The default stream has one too.
struct Queue {
  cl_command_queue native = nullptr;
  Recording* recording = nullptr;  // that has the queue now
  size_t number = 0;               // in the recording
};

// An event's handle: the last point that was recorded.
struct EventState {
  cl_event native = nullptr;
  uint64_t capture = 0;  // a capture's id, and its point; 0: none
  int mark = -1;
};

// A graph's handle.
class Replay {
 public:
  // Takes over the kernels of `taken`, and `queues` for its streams other than the first.
  Replay(Recording::Taken taken, std::vector<cl_command_queue> queues);
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // After the launches before, on whatever stream they were.
  void launch(const Memory& memory, cl_command_queue queue);

 private:
  std::vector<Command> commands_;
  std::vector<cl_command_queue> queues_;
  size_t num_marks_;
  std::mutex mutex_;
  cl_event last_ = nullptr;  // the end of the last launch
};

}  // namespace strata::opencl
