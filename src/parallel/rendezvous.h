// How processes of a job meet: rank 0 gives bytes to all others.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "strata/collectives.h"

namespace strata::parallel {

inline constexpr size_t kMostSharedBytes = 4096;

// A moment after which waiting is an error.
class Deadline {
 public:
  explicit Deadline(double seconds)
      : at_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}
  bool passed() const { return Clock::now() >= at_; }
  // What is left, at least 0 and at most `most`.
  int milliseconds(int most) const;

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point at_;
};

// Throws invalid_argument for options that cannot be.
void check_rank_options(const RankOptions& options);

// The two kinds. `where` is what follows "file:" and "tcp:".
std::vector<uint8_t> share_by_file(const std::string& where, const RankOptions& options, const std::vector<uint8_t>& bytes);
std::vector<uint8_t> share_by_tcp(const std::string& where, const RankOptions& options, const std::vector<uint8_t>& bytes);

}  // namespace strata::parallel
