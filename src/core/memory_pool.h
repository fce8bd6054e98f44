// Device memory that is kept when it is given back, because a device's own calls for memory wait for all of its work. Outside the forward
// path: layers live in their caller's workspace.
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
  // The device's own calls.
  struct Source {
    // Aligned to 256. Null where the device has no memory left and `must` is false; throws else.
    std::function<void*(size_t bytes, bool must)> allocate;
    std::function<void(void*)> release;  // waits for the work that uses it; must not throw
    std::function<void()> synchronize;   // returns when the device has finished the work of all streams
  };
  explicit MemoryPool(Source source) : source_(std::move(source)) {}
  // Frees everything, what was not given back too.
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // A free block of the size class, or a new one; when the device has no memory left, after all free blocks were returned to it.
  // may_synchronize: whether the device may be waited for before memory is used again. It may not while a thread captures a graph.
  void* allocate(size_t bytes, bool may_synchronize);
  // Null, and pointers that are not the pool's, do nothing.
  void deallocate(void* data) noexcept;

  // A quarter of a power of two up to 2 MiB, multiples of 2 MiB above: that is what cudaMalloc hands out, so large blocks waste nothing.
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
  std::map<size_t, Block*> free_;   // by size class; an entry exists once the class has a block, so that giving back allocates nothing
  uint64_t num_freed_ = 0;          // a block's freed_at is the count when it was given back
  uint64_t num_freed_at_sync_ = 0;  // the device has finished all work that used blocks freed up to here
};

}  // namespace strata
