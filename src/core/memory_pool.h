// Device memory that is cached when it is released, because a device's own allocation calls wait for all of its work. Not used in a
// forward: layers use their caller's workspace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>

namespace strata {

class MemoryPool {
 public:
  // The device's own allocation functions.
  struct Source {
    // Aligned to 256. Returns null if the device has no memory left and `must` is false; otherwise throws.
    std::function<void*(size_t bytes, bool must)> allocate;
    std::function<void(void*)> release;  // waits for the work that uses the memory; must not throw
    std::function<void()> synchronize;   // returns when the device has finished the work of all streams
  };
  explicit MemoryPool(Source source) : source_(std::move(source)) {}
  // Frees all memory, also memory that was not released.
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // A free block of the size class, or a new one. If the device has no memory left, all free blocks are returned to it first.
  // may_synchronize: whether the device may be synchronised before memory is reused. Not allowed while a thread captures a graph.
  void* allocate(size_t bytes, bool may_synchronize);
  // Null, and pointers that are not the pool's, are ignored.
  void deallocate(void* data) noexcept;

  // Quarters of a power of two up to 2 MiB, then multiples of 2 MiB, which is cudaMalloc's granularity, so large blocks waste nothing.
  static size_t size_class(size_t bytes);

 private:
  struct Block {
    void* data = nullptr;
    size_t bytes = 0;
    Block* next_free = nullptr;
    uint64_t freed_at = 0;
    bool in_use = true;
  };
  void* reuse(size_t bytes, bool may_synchronize);
  void release_free_blocks();

  Source source_;
  std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;
  std::map<size_t, Block*> free_;   // by size class; an entry exists once the class has a block, so that release allocates nothing
  uint64_t num_freed_ = 0;          // a block's freed_at is this count at its release
  uint64_t num_freed_at_sync_ = 0;  // the device has finished all work that used blocks released up to here
};

}  // namespace strata
