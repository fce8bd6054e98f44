#include "parallel/board.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "core/check.h"

namespace strata::parallel {
namespace {

constexpr uint32_t kNone = 0, kWriting = 1, kWritten = 2;
constexpr size_t kPage = 4096;

size_t up_to_page(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
size_t buffers_at(int size) { return up_to_page(sizeof(BoardHeader)) + up_to_page(sizeof(RankSlot) * static_cast<size_t>(size)); }

// A call of one rank, for messages: "all_reduce_sum of 14336 bytes of bf16".
std::string describe(const Call& call) {
  if (call.operation == Operation::barrier) return "barrier";
  return fmt::format("{} of {} bytes of {}", to_string(call.operation), call.bytes, to_string(call.dtype));
}

// Waits a little longer each time: a few microseconds in place, then it gives up its core, then it sleeps.
class Patience {
 public:
  void wait() {
    ++tries_;
    if (tries_ < 64) return;
    if (tries_ < 512) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(tries_ < 2048 ? 50 : 500));
    }
  }
  bool sleeps() const { return tries_ >= 512; }

 private:
  int tries_ = 0;
};

}  // namespace

const char* to_string(Operation operation) {
  switch (operation) {
    case Operation::all_reduce_sum: return "all_reduce_sum";
    case Operation::all_gather: return "all_gather";
    case Operation::reduce_scatter_sum: return "reduce_scatter_sum";
    case Operation::barrier: return "barrier";
  }
  return "unknown";
}

void check_ranks(int size, double timeout_seconds) {
  require(size >= 1 && size <= 1024, "the number of ranks must be in [1, 1024], is {}", size);
  require(timeout_seconds > 0 && timeout_seconds <= 1e6, "timeout_seconds must be above 0 and at most 1000000, is {}", timeout_seconds);
}

size_t Board::buffer_bytes(int size) { return static_cast<size_t>(size) * 2 * kBufferBytes; }
size_t Board::bytes(int size) { return buffers_at(size) + buffer_bytes(size); }

Board::Board(void* memory, int rank, int size, double timeout_seconds)
    : header_(static_cast<BoardHeader*>(memory)),
      slots_(reinterpret_cast<RankSlot*>(static_cast<std::byte*>(memory) + up_to_page(sizeof(BoardHeader)))),
      buffers_(static_cast<std::byte*>(memory) + buffers_at(size)),
      rank_(rank),
      size_(size),
      timeout_seconds_(timeout_seconds) {}

Board::~Board() { slots_[rank_].left.store(1, std::memory_order_release); }

void Board::fail(const std::string& text) noexcept {
  uint32_t none = kNone;
  if (!header_->failure.compare_exchange_strong(none, kWriting)) return;
  const size_t bytes = std::min(text.size(), BoardHeader::kTextBytes - 1);
  std::memcpy(header_->text, text.data(), bytes);
  header_->text[bytes] = '\0';
  header_->failure.store(kWritten, std::memory_order_release);
}

void Board::check() const {
  uint32_t failure = header_->failure.load(std::memory_order_acquire);
  if (failure == kNone) return;
  // A rank that is stopped while it writes must not stop the others.
  for (int i = 0; failure == kWriting && i < 100; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    failure = header_->failure.load(std::memory_order_acquire);
  }
  strata::fail(ErrorCode::device_failure, "rank {} of {}: {}", rank_, size_,
               failure == kWritten ? header_->text : "a rank stopped while it reported a failure");
}

template <class Done, class Late>
void Board::wait_for_all(Done&& done, Late&& late) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_seconds_));
  auto next_look = Clock::now() + std::chrono::milliseconds(20);
  for (int peer = 0; peer < size_; ++peer) {
    Patience patience;
    while (!done(peer)) {
      check();
      // What a rank did before it left counts, so it is looked at once more.
      if (slots_[peer].left.load(std::memory_order_acquire) != 0 && !done(peer)) late(peer, "has left");
      patience.wait();
      if (!patience.sleeps()) continue;
      const auto now = Clock::now();
      if (now >= next_look) {
        if (alive_ && !alive_(peer) && !done(peer)) late(peer, "has ended");
        next_look = now + std::chrono::milliseconds(20);
      }
      if (now >= deadline && !done(peer)) late(peer, fmt::format("has not arrived within {} s", timeout_seconds_));
    }
  }
}

void Board::join() {
  slots_[rank_].joined.store(1, std::memory_order_release);
  wait_for_all([&](int peer) { return slots_[peer].joined.load(std::memory_order_acquire) != 0; },
               [&](int peer, const std::string& what) {
                 fail(fmt::format("joining: rank {} {}", peer, what));
                 check();
               });
}

void Board::arrive(const Call& call) {
  const uint64_t step = next_;
  RankSlot& own = slots_[rank_];
  own.calls[step & 1] = call;
  own.reached.store(step + 1, std::memory_order_release);
  ++next_;
  wait_for_all([&](int peer) { return slots_[peer].reached.load(std::memory_order_acquire) > step; },
               [&](int peer, const std::string& what) {
                 fail(fmt::format("{}: rank {} {}", describe(call), peer, what));
                 check();
               });
  for (int peer = 0; peer < size_; ++peer) {
    const Call& other = slots_[peer].calls[step & 1];
    if (other == call) continue;
    // Named from the lowest rank that differs from rank 0, so that the text does not depend on who saw it.
    for (int differs = 1; differs < size_; ++differs) {
      if (slots_[differs].calls[step & 1] == slots_[0].calls[step & 1]) continue;
      fail(fmt::format("rank 0 calls {}, rank {} calls {}", describe(slots_[0].calls[step & 1]), differs,
                       describe(slots_[differs].calls[step & 1])));
      check();
    }
  }
}

}  // namespace strata::parallel
