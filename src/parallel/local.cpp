// Ranks in processes of one host, over a file in shared memory.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>

#include "core/check.h"
#include "parallel/host_collectives.h"
#include "parallel/rendezvous.h"

namespace strata {
namespace parallel {
namespace {

[[noreturn]] void fail_call(const char* call, const std::string& name) {
  fail(ErrorCode::device_failure, "shared memory {}: {}: {}", name, call, std::strerror(errno));
}

// A byte of the file for each rank, locked while the rank's process lives. Locks are of the open file, so a second one of the same process
// is another holder: ranks may be threads, too.
struct flock byte_of(int rank, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

class SharedMemory {
 public:
  SharedMemory(const std::string& name, size_t bytes, bool creates)
      : bytes_(bytes), fd_(shm_open(name.c_str(), O_RDWR | O_CLOEXEC | (creates ? O_CREAT | O_EXCL : 0), 0600)) {
    if (fd_ < 0) fail_call("shm_open", name);
    try {
      if (creates && ftruncate(fd_, static_cast<off_t>(bytes)) != 0) fail_call("ftruncate", name);
      // Memory that is short is an error here, not a signal at the first access.
      if (creates && (errno = posix_fallocate(fd_, 0, static_cast<off_t>(bytes))) != 0) fail_call("posix_fallocate", name);
      data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
      if (data_ == MAP_FAILED) fail_call("mmap", name);
    } catch (...) {
      close(fd_);
      if (creates) shm_unlink(name.c_str());
      throw;
    }
  }
  ~SharedMemory() {
    munmap(data_, bytes_);
    close(fd_);
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  void* data() const { return data_; }
  void hold(int rank) const {
    struct flock lock = byte_of(rank, F_WRLCK);
    if (fcntl(fd_, F_OFD_SETLK, &lock) != 0) {
      fail(ErrorCode::invalid_argument, "rank {} has joined twice: expected one process for each rank", rank);
    }
  }
  bool held(int rank) const {
    struct flock lock = byte_of(rank, F_WRLCK);
    return fcntl(fd_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
  }

 private:
  size_t bytes_;
  int fd_;
  void* data_ = nullptr;
};

// The kernel that runs, which two hosts do not share. Containers of one host do.
std::string host() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

}  // namespace
}  // namespace parallel

std::shared_ptr<Collectives> make_local_communicator(const RankOptions& o) {
  using namespace parallel;
  check_rank_options(o);
  const size_t bytes = Board::bytes(o.size);
  std::shared_ptr<SharedMemory> memory;
  std::string name;
  struct Unlink {
    std::string name;
    ~Unlink() {
      if (!name.empty()) shm_unlink(name.c_str());
    }
  } unlink;
  if (o.rank == 0) {
    std::random_device random;
    name = fmt::format("/strata.{:08x}{:08x}", random(), random());
    memory = std::make_shared<SharedMemory>(name, bytes, true);
    unlink.name = name;
    memory->hold(0);
  }
  const std::string own = name + " " + host();
  const std::vector<uint8_t> shared = share_bytes(o, {own.begin(), own.end()});
  if (o.rank != 0) {
    const std::string text(shared.begin(), shared.end());
    const size_t space = text.find(' ');
    require(space != std::string::npos && text.substr(space + 1) == host(),
            "rank {} of {}: a local communicator is of one host: expected rank 0's, this is another", o.rank, o.size);
    memory = std::make_shared<SharedMemory>(text.substr(0, space), bytes, false);
    memory->hold(o.rank);
  }
  SharedMemory* const raw = memory.get();
  auto board = std::make_unique<Board>(raw->data(), o.rank, o.size, o.timeout_seconds);
  board->join();  // nobody's lock is looked at before it has it
  board->set_alive([raw](int rank) { return raw->held(rank); });
  return std::make_shared<HostCollectives>(std::shared_ptr<void>(memory, memory->data()), std::move(board));
}

}  // namespace strata
