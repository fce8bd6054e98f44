// The memory in which the ranks of one host meet: docs/decisions/0013.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "strata/tensor.h"

namespace strata::parallel {

enum class Operation : uint32_t { all_reduce_sum, all_gather, reduce_scatter_sum, barrier };
const char* to_string(Operation operation);

// What a rank calls, which must be the same on all ranks.
struct Call {
  Operation operation = Operation::barrier;
  DType dtype = DType::u8;
  int64_t bytes = 0;  // of the call's tensor, of one rank where ranks have parts
  bool operator==(const Call&) const = default;
};

// Both lie in memory that processes share, so they have fixed layouts and lock-free atomics. All zero: no rank has done anything.
struct BoardHeader {
  static constexpr size_t kTextBytes = 960;
  std::atomic<uint32_t> failure;  // kNone, kWriting, kWritten
  char text[kTextBytes];          // with a zero at the end; of kWritten
};
struct alignas(64) RankSlot {
  std::atomic<uint64_t> reached;  // the steps that the rank has reached
  std::atomic<uint32_t> joined;
  std::atomic<uint32_t> left;
  Call calls[2];  // of each buffer's step
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

// One rank's view of the board. One thread calls it, but for fail().
class Board {
 public:
  // Of a buffer: at 7168 bf16 values a token, 36 tokens.
  static constexpr int64_t kBufferBytes = 512 * 1024;

  static size_t bytes(int size);
  // Of the buffers, which lie at the end.
  static size_t buffer_bytes(int size);

  // memory: bytes(size) bytes that outlive the board. Before the first rank all but the buffers are zero.
  Board(void* memory, int rank, int size, double timeout_seconds);
  // Tells the peers that this rank has left.
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // alive(peer): whether the peer's process can still arrive. Without it only time shows that one has ended.
  void set_alive(std::function<bool(int)> alive) { alive_ = std::move(alive); }
  // Returns when every rank has joined; throws device_failure naming those that have not, in time.
  void join();

  // A step: fill(buffer) writes at most kBufferBytes; step() then waits for all ranks. Afterwards the step's buffer of every rank may be
  // read until this rank's next step() but one. Throws device_failure, and on every rank, where a rank does not arrive or calls other than
  // `call`.
  template <class Fill>
  void step(const Call& call, Fill&& fill) {
    check();
    fill(buffer(rank_, next_ & 1));
    arrive(call);
  }
  // Of the step that was completed last.
  const std::byte* read(int rank) const { return const_cast<Board*>(this)->buffer(rank, (next_ - 1) & 1); }

  // Throws a failure that has been written.
  void check() const;
  // The first failure is every rank's. Any thread.
  void fail(const std::string& text) noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  std::byte* buffer(int rank, uint64_t which) const {
    return buffers_ + (static_cast<int64_t>(rank) * 2 + static_cast<int64_t>(which)) * kBufferBytes;
  }
  void arrive(const Call& call);
  // Waits until done(rank) for every rank; late(rank, "has ended") is the text of a failure.
  template <class Done, class Late>
  void wait_for_all(Done&& done, Late&& late);

  BoardHeader* header_;
  RankSlot* slots_;
  std::byte* buffers_;
  int rank_, size_;
  double timeout_seconds_;
  std::function<bool(int)> alive_;
  uint64_t next_ = 0;  // the step that comes
};

// Throws invalid_argument for a number of ranks or a timeout that cannot be.
void check_ranks(int size, double timeout_seconds);

}  // namespace strata::parallel
