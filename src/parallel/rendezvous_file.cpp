// A rendezvous at a file: rank 0 writes PATH, every other rank reads it and answers with PATH.RANK. Rank 0 then removes PATH and says in
// PATH.RANK that all have joined; the other rank removes that.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "core/check.h"
#include "parallel/rendezvous.h"

namespace strata::parallel {
namespace {

constexpr auto kPause = std::chrono::milliseconds(2);
constexpr const char* kDone = "joined\n";

// Appears whole or not at all.
void write_whole(const std::string& path, const std::string& text) {
  const std::string temporary = fmt::format("{}.{:08x}", path, std::random_device{}());
  std::ofstream file(temporary, std::ios::binary);
  file << text;
  file.close();
  if (file && std::rename(temporary.c_str(), path.c_str()) == 0) return;
  const int error = errno;
  std::remove(temporary.c_str());
  fail(ErrorCode::invalid_argument, "rendezvous file:{}: expected a file that can be written: {}", path, std::strerror(error));
}

// Empty where there is no such file: what is written is never empty.
std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string answer_path(const std::string& path, int rank) { return fmt::format("{}.{}", path, rank); }

// Text of rank 0's file: a nonce, the number of ranks, and the bytes. The nonce makes an answer to an earlier job's file no answer.
std::string header(uint64_t nonce, int size) { return fmt::format("strata {:016x} {}\n", nonce, size); }

}  // namespace

namespace {

std::vector<uint8_t> give(const std::string& path, const RankOptions& o, const std::vector<uint8_t>& bytes) {
  const Deadline deadline(o.timeout_seconds);
  std::random_device random;
  const std::string head = header((uint64_t{random()} << 32) | random(), o.size);
  write_whole(path, head + std::string(bytes.begin(), bytes.end()));
  int missing = 0;
  for (int rank = 1; rank < o.size && missing == 0; ++rank) {
    while (read_whole(answer_path(path, rank)) != head && !deadline.passed()) std::this_thread::sleep_for(kPause);
    if (read_whole(answer_path(path, rank)) != head) missing = rank;
  }
  std::remove(path.c_str());
  for (int rank = 1; rank < o.size; ++rank) {
    missing == 0 ? write_whole(answer_path(path, rank), kDone) : static_cast<void>(std::remove(answer_path(path, rank).c_str()));
  }
  if (missing != 0) {
    fail(ErrorCode::device_failure, "rank 0 of {}: joining at file:{}: rank {} has not arrived within {} s", o.size, path, missing,
         o.timeout_seconds);
  }
  return bytes;
}

std::vector<uint8_t> take(const std::string& path, const RankOptions& o) {
  const Deadline deadline(o.timeout_seconds);
  const std::string own = answer_path(path, o.rank);
  // An answer to a file that an earlier job left has another nonce: rank 0 replaces that file, and it is answered again.
  std::string answered, taken;
  while (true) {
    const std::string text = read_whole(path);
    const size_t end = text.find('\n');
    if (end != std::string::npos && text.substr(0, end + 1) != answered) {
      answered = text.substr(0, end + 1);
      taken = text.substr(end + 1);
      const int size = std::atoi(answered.c_str() + answered.rfind(' ') + 1);
      require(size == o.size, "rank {} of {}: joining at file:{}: expected rank 0's number of ranks, {}", o.rank, o.size, path, size);
      write_whole(own, answered);
    } else if (!answered.empty() && text.empty()) {  // rank 0 has removed its file, and then says why
      const std::string said = read_whole(own);
      if (said != answered) {
        std::remove(own.c_str());
        if (said == kDone) return {taken.begin(), taken.end()};
        fail(ErrorCode::device_failure, "rank {} of {}: joining at file:{}: rank 0 has given up", o.rank, o.size, path);
      }
    }
    if (deadline.passed()) {
      std::remove(own.c_str());
      fail(ErrorCode::device_failure, "rank {} of {}: joining at file:{}: {} within {} s", o.rank, o.size, path,
           answered.empty() ? "rank 0 has not arrived" : "not all ranks have arrived", o.timeout_seconds);
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

std::vector<uint8_t> share_by_file(const std::string& path, const RankOptions& o, const std::vector<uint8_t>& bytes) {
  return o.rank == 0 ? give(path, o, bytes) : take(path, o);
}

}  // namespace strata::parallel
