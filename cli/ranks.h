// Tensor-parallel ranks of `strata run`: threads of this process, or one of several processes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common.h"
#include "strata/collectives.h"

namespace strata::cli {

struct RankFlags {
  int64_t tp = 1;
  std::optional<int64_t> rank, world_size;
  std::optional<std::string> rendezvous;
  double timeout = 60;
};
void add_rank_flags(CLI::App& app, RankFlags& flags);

// What one rank runs on.
struct RankDevice {
  int rank = 0, size = 1;
  std::shared_ptr<Device> device;
  std::shared_ptr<Collectives> communicator;  // null: one rank
};

// The ranks that this process has.
class Ranks {
 public:
  // Opens no device yet. Throws strata::Error for flags that do not fit together.
  explicit Ranks(const RankFlags& flags);

  // Number of ranks of the job, and the first of this process, whose results it reports.
  int size() const { return size_; }
  int first() const { return rank_; }
  // Runs body(rank's device) for each rank of this process, each in a thread of its own where there are several. Where one throws, the
  // others are ended, and what it threw comes out. With --device cuda:2 rank 1 has cuda:3; a process under a launcher counts from there by
  // its number on the host. Ranks on CPUs share the threads.
  void run(const CommonOptions& common, const std::function<void(const RankDevice&)>& body) const;

 private:
  RankDevice open(const CommonOptions& common, int rank, int place) const;

  int rank_ = 0, size_ = 1, place_ = 0;
  bool threads_ = true;
  RankOptions options_;
};

}  // namespace strata::cli
