// Ranks in threads of one process.
#include <cstring>
#include <new>

#include "parallel/host_collectives.h"

namespace strata {

std::vector<std::shared_ptr<Collectives>> make_thread_communicators(int size, double timeout_seconds) {
  using namespace parallel;
  check_ranks(size, timeout_seconds);
  constexpr std::align_val_t kPage{4096};
  // The buffers need no zeros: pages that no call reaches are never touched.
  const std::shared_ptr<void> memory(::operator new(Board::bytes(size), kPage), [](void* p) { ::operator delete(p, kPage); });
  std::memset(memory.get(), 0, Board::bytes(size) - Board::buffer_bytes(size));
  std::vector<std::shared_ptr<Collectives>> ranks;
  ranks.reserve(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_shared<HostCollectives>(memory, std::make_unique<Board>(memory.get(), rank, size, timeout_seconds)));
  }
  return ranks;
}

}  // namespace strata
