#include "ranks.h"

#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#include "numbers.h"
#include "strata/error.h"

namespace strata::cli {
namespace {

constexpr const char* kLauncher = "launcher";

[[noreturn]] void refuse(const std::string& text) { throw Error(ErrorCode::invalid_argument, text); }

}  // namespace

void add_rank_flags(CLI::App& app, RankFlags& flags) {
  auto* tp = app.add_option("--tp", flags.tp, "tensor-parallel ranks as threads of this process, each with a device of its own");
  tp->transform(count_in(1, 1024))->capture_default_str();
  auto* rank = app.add_option("--rank", flags.rank, "this process is this rank of --world-size processes; rank 0 prints and writes");
  rank->transform(count_in(0, 1023))->excludes(tp);
  auto* size = app.add_option("--world-size", flags.world_size, "number of processes, each one tensor-parallel rank");
  size->transform(count_in(1, 1024))->excludes(tp);
  app.add_option("--rendezvous", flags.rendezvous,
                 "where processes meet: file:PATH, tcp:HOST:PORT, or launcher: rank, size and place as torchrun, mpirun or srun set them")
      ->check(not_empty())
      ->excludes(tp);
  app.add_option("--rank-timeout", flags.timeout, "seconds to wait for another rank")->check(real_in(0.001, 86400))->capture_default_str();
}

Ranks::Ranks(const RankFlags& flags) {
  options_.timeout_seconds = flags.timeout;
  if (!flags.rendezvous) {
    if (flags.rank || flags.world_size) refuse("--rank and --world-size need --rendezvous");
    size_ = static_cast<int>(flags.tp);
    return;
  }
  threads_ = false;
  options_.rendezvous = *flags.rendezvous;
  if (*flags.rendezvous == kLauncher) {
    if (flags.rank || flags.world_size) refuse("--rendezvous launcher takes no --rank and no --world-size");
    const std::optional<LaunchedProcess> launch = launched_process();
    if (!launch) refuse("--rendezvous launcher needs the variables of torchrun, mpirun or srun, has none of them");
    if (launch->size > 1 && launch->rendezvous.empty())
      refuse("--rendezvous launcher: this launcher names no place to meet: set STRATA_RENDEZVOUS to file:PATH or tcp:HOST:PORT");
    rank_ = launch->rank;
    size_ = launch->size;
    place_ = launch->local_rank;
    options_.rendezvous = launch->rendezvous;
  } else {
    if (!flags.rank || !flags.world_size) refuse("--rendezvous needs --rank and --world-size");
    rank_ = static_cast<int>(*flags.rank);
    size_ = static_cast<int>(*flags.world_size);
    place_ = rank_;
    if (rank_ >= size_) refuse(fmt::format("--rank must be less than --world-size {}, is {}", size_, rank_));
  }
  options_.rank = rank_;
  options_.size = size_;
}

RankDevice Ranks::open(const CommonOptions& common, int rank, int place) const {
  DeviceId id = parse_device_id(common.device);
  if (id.kind != DeviceKind::cpu) id.index += place;
  CommonOptions own = common;
  own.device = to_string(id);
  return {rank, size_, open_device(own), nullptr};
}

void Ranks::run(const CommonOptions& common, const std::function<void(const RankDevice&)>& body) const {
  if (!threads_) {
    RankDevice own = open(common, rank_, place_);
    if (size_ > 1) own.communicator = make_local_communicator(options_);
    try {
      body(own);
    } catch (const std::exception& error) {
      if (own.communicator) own.communicator->abort(error.what());
      throw;
    }
    return;
  }
  if (size_ == 1) return body(open(common, 0, 0));
  std::vector<RankDevice> ranks;
  const auto communicators = make_thread_communicators(size_, options_.timeout_seconds);
  for (int rank = 0; rank < size_; ++rank) {
    ranks.push_back(open(common, rank, rank));
    ranks.back().communicator = communicators[static_cast<size_t>(rank)];
  }
  std::atomic<bool> thrown = false;
  std::exception_ptr first;  // the others' follow from it
  std::vector<std::thread> threads;
  threads.reserve(ranks.size());
  for (const RankDevice& own : ranks) {
    threads.emplace_back([&] {
      try {
        body(own);
      } catch (const std::exception& error) {
        if (!thrown.exchange(true)) first = std::current_exception();
        own.communicator->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace strata::cli
