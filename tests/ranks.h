// Ranks of a communicator, as threads of this process or as processes: what they return or throw.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "strata/collectives.h"

namespace strata::test {

enum class Over { threads, processes };
inline const char* to_string(Over over) { return over == Over::threads ? "threads" : "processes"; }

// A path that nothing else uses.
inline std::string new_rendezvous_path() {
  std::random_device random;
  return (std::filesystem::temp_directory_path() / ("strata_ranks_" + std::to_string(random()) + std::to_string(random()))).string();
}

// What a rank does; the text it returns, or "error: " and the text it throws, is its result.
using RankBody = std::function<std::string(Collectives&)>;

inline std::string result_of(const std::function<std::string()>& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return std::string("error: ") + error.what();
  }
}

// A child process and the end of a pipe at which its result arrives. A child that is killed has none.
class ChildProcess {
 public:
  explicit ChildProcess(const std::function<std::string()>& body) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("pipe");
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      const std::string text = result_of(body);
      for (size_t done = 0; done < text.size();) {
        const ssize_t written = write(ends[1], text.data() + done, text.size() - done);
        if (written <= 0) break;
        done += static_cast<size_t>(written);
      }
      _exit(0);
    }
    close(ends[1]);
    end_ = ends[0];
  }
  ChildProcess(ChildProcess&& other) noexcept : pid_(std::exchange(other.pid_, -1)), end_(std::exchange(other.end_, -1)) {}
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess() {
    if (pid_ > 0) kill(pid_, SIGKILL), wait();
  }
  pid_t pid() const { return pid_; }
  std::string wait() {
    std::string text;
    char part[4096];
    for (ssize_t n = 0; (n = read(end_, part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(n));
    close(end_);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return text;
  }

 private:
  pid_t pid_ = -1;
  int end_ = -1;
};

// Runs body(rank's communicator) on every rank; the results by rank.
inline std::vector<std::string> run_ranks(Over over, int size, const RankBody& body, double timeout_seconds = 60) {
  std::vector<std::string> results(static_cast<size_t>(size));
  if (over == Over::threads) {
    auto ranks = make_thread_communicators(size, timeout_seconds);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      const auto at = static_cast<size_t>(rank);
      threads.emplace_back([&results, &body, at, own = std::move(ranks[at])]() mutable {
        results[at] = result_of([&] {
          const auto mine = std::move(own);  // leaves when the body does
          return body(*mine);
        });
      });
    }
    ranks.clear();
    for (std::thread& thread : threads) thread.join();
    return results;
  }
  const std::string path = new_rendezvous_path();
  std::vector<ChildProcess> children;
  for (int rank = 0; rank < size; ++rank) {
    children.emplace_back([&, rank] {
      const auto own =
          make_local_communicator({.rank = rank, .size = size, .rendezvous = "file:" + path, .timeout_seconds = timeout_seconds});
      return body(*own);
    });
  }
  for (size_t rank = 0; rank < children.size(); ++rank) results[rank] = children[rank].wait();
  return results;
}

}  // namespace strata::test
