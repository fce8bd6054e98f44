// A rendezvous at a TCP address: rank 0 listens, every other rank connects and says who it is; rank 0 answers once all have arrived.
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>

#include "core/check.h"
#include "parallel/rendezvous.h"

namespace strata::parallel {
namespace {

constexpr int kPollMilliseconds = 50;
constexpr uint32_t kMagic = 0x53525431;

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

  // Whole, or false where the peer goes away or time runs out.
  bool send_all(const void* data, size_t bytes, const Deadline& deadline) const {
    return move_all(POLLOUT, bytes, deadline, [&](size_t done) {
      return send(fd_, static_cast<const char*>(data) + done, bytes - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    });
  }
  bool receive_all(void* data, size_t bytes, const Deadline& deadline) const {
    return move_all(POLLIN, bytes, deadline,
                    [&](size_t done) { return recv(fd_, static_cast<char*>(data) + done, bytes - done, MSG_DONTWAIT); });
  }

 private:
  template <class Move>
  bool move_all(short event, size_t bytes, const Deadline& deadline, Move&& move) const {
    for (size_t done = 0; done < bytes;) {
      const ssize_t moved = move(done);
      if (moved > 0) {
        done += static_cast<size_t>(moved);
        continue;
      }
      if (moved == 0 || (errno != EAGAIN && errno != EINTR) || deadline.passed()) return false;
      pollfd wait{fd_, event, 0};
      poll(&wait, 1, deadline.milliseconds(kPollMilliseconds));
    }
    return true;
  }
  int fd_;
};

struct Hello {
  uint32_t magic, rank, size;
};
struct Answer {
  uint32_t magic, size, bytes;
};

struct Freed {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, Freed>;

// "host:port" or "[v6]:port".
Addresses resolve(const std::string& where, bool listens) {
  const size_t colon = where.rfind(':');
  require(colon != std::string::npos && colon > 0 && colon + 1 < where.size(), "rendezvous must be tcp:HOST:PORT, is 'tcp:{}'", where);
  std::string host = where.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (listens ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), where.c_str() + colon + 1, &hints, &list);
  require(error == 0, "rendezvous tcp:{}: expected a host and a port number: {}", where, gai_strerror(error));
  return Addresses(list);
}

Socket listen_at(const std::string& where) {
  const Addresses addresses = resolve(where, true);
  int error = 0;
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    Socket socket(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol));
    const int on = 1;
    if (socket.get() >= 0 && setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(socket.get(), a->ai_addr, a->ai_addrlen) == 0 && listen(socket.get(), 1024) == 0) {
      return socket;
    }
    error = errno;
  }
  fail(ErrorCode::invalid_argument, "rendezvous tcp:{}: expected an address of rank 0's host with a free port: {}", where,
       std::strerror(error));
}

// Not connected: no socket.
std::optional<Socket> connect_to(const addrinfo& a, const Deadline& deadline) {
  Socket socket(::socket(a.ai_family, a.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a.ai_protocol));
  if (socket.get() < 0) return std::nullopt;
  if (connect(socket.get(), a.ai_addr, a.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return std::nullopt;
    pollfd wait{socket.get(), POLLOUT, 0};
    int error = 0;
    socklen_t size = sizeof error;
    if (poll(&wait, 1, deadline.milliseconds(2000)) != 1 || getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 ||
        error != 0) {
      return std::nullopt;
    }
  }
  return socket;
}

std::vector<uint8_t> give(const std::string& where, const RankOptions& o, const std::vector<uint8_t>& bytes) {
  const Deadline deadline(o.timeout_seconds);
  const Socket listener = listen_at(where);
  std::vector<Socket> peers;
  peers.reserve(static_cast<size_t>(o.size));
  for (int rank = 0; rank < o.size; ++rank) peers.emplace_back();
  std::string wrong;
  for (int missing = o.size - 1; missing > 0 && wrong.empty();) {
    if (deadline.passed()) {
      int rank = 1;
      while (peers[static_cast<size_t>(rank)].get() >= 0) ++rank;
      fail(ErrorCode::device_failure, "rank 0 of {}: joining at tcp:{}: rank {} has not arrived within {} s", o.size, where, rank,
           o.timeout_seconds);
    }
    pollfd wait{listener.get(), POLLIN, 0};
    if (poll(&wait, 1, deadline.milliseconds(kPollMilliseconds)) != 1) continue;
    Socket peer(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    Hello hello{};
    // Who says nothing within a second, or something else, is no rank: a port scanner must not end a job.
    if (peer.get() < 0 || !peer.receive_all(&hello, sizeof hello, Deadline(1.0)) || hello.magic != kMagic) continue;
    const Answer answer{kMagic, static_cast<uint32_t>(o.size), 0};
    if (hello.size != static_cast<uint32_t>(o.size) || hello.rank == 0 || hello.rank >= hello.size) {
      static_cast<void>(peer.send_all(&answer, sizeof answer, deadline));
      wrong = fmt::format("expected ranks 1 to {} of {}, rank {} of {} arrived", o.size - 1, o.size, hello.rank, hello.size);
      continue;
    }
    Socket& place = peers[hello.rank];
    if (place.get() >= 0) {
      wrong = fmt::format("rank {} arrived twice", hello.rank);
      continue;
    }
    place = std::move(peer);
    --missing;
  }
  if (!wrong.empty()) fail(ErrorCode::invalid_argument, "rank 0 of {}: joining at tcp:{}: {}", o.size, where, wrong);
  const Answer answer{kMagic, static_cast<uint32_t>(o.size), static_cast<uint32_t>(bytes.size())};
  for (int rank = 1; rank < o.size; ++rank) {
    const Socket& peer = peers[static_cast<size_t>(rank)];
    if (!peer.send_all(&answer, sizeof answer, deadline) || !peer.send_all(bytes.data(), bytes.size(), deadline)) {
      fail(ErrorCode::device_failure, "rank 0 of {}: joining at tcp:{}: rank {} has ended", o.size, where, rank);
    }
  }
  return bytes;
}

std::vector<uint8_t> take(const std::string& where, const RankOptions& o) {
  const Deadline deadline(o.timeout_seconds);
  const Hello hello{kMagic, static_cast<uint32_t>(o.rank), static_cast<uint32_t>(o.size)};
  while (!deadline.passed()) {
    const Addresses addresses = resolve(where, false);
    for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
      const std::optional<Socket> socket = connect_to(*a, deadline);
      if (!socket || !socket->send_all(&hello, sizeof hello, deadline)) continue;
      Answer answer{};
      if (!socket->receive_all(&answer, sizeof answer, deadline)) {
        if (deadline.passed()) continue;
        fail(ErrorCode::device_failure, "rank {} of {}: joining at tcp:{}: rank 0 has ended, or has refused this rank", o.rank, o.size,
             where);
      }
      require(answer.magic == kMagic && answer.bytes <= kMostSharedBytes,
              "rank {} of {}: joining at tcp:{}: expected rank 0 there, another program answers", o.rank, o.size, where);
      require(answer.size == hello.size, "rank {} of {}: joining at tcp:{}: expected rank 0's number of ranks, {}", o.rank, o.size, where,
              answer.size);
      std::vector<uint8_t> bytes(answer.bytes);
      if (socket->receive_all(bytes.data(), bytes.size(), deadline)) return bytes;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  fail(ErrorCode::device_failure, "rank {} of {}: joining at tcp:{}: rank 0 has not arrived, or not all ranks have, within {} s", o.rank,
       o.size, where, o.timeout_seconds);
}

}  // namespace

std::vector<uint8_t> share_by_tcp(const std::string& where, const RankOptions& o, const std::vector<uint8_t>& bytes) {
  return o.rank == 0 ? give(where, o, bytes) : take(where, o);
}

}  // namespace strata::parallel
