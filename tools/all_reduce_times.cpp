// Times of all_reduce_sum over peer memory in graphs: strata_all_reduce_times [RANKS [HIDDEN]]. Rank r has cuda:r. Prints a row for each
// number of tokens: the median over graphs of the time of one sum, of rank 0.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "strata/collectives.h"
#include "strata/owned_stream.h"

namespace {

using namespace strata;

constexpr int kSums = 50, kGraphs = 40;

// Medians in microseconds, by entry of `tokens`.
std::vector<double> times_of_rank(const std::shared_ptr<Collectives>& host, int64_t hidden, const std::vector<int64_t>& tokens) {
  const auto device = open_device({DeviceKind::cuda, host->rank()});
  const auto ranks = make_peer_communicator(host, device, 10);
  const OwnedStream stream(device);
  std::vector<double> medians;
  for (const int64_t count : tokens) {
    const Tensor tensor(device, DType::bf16, {count, hidden});
    device->fill(tensor.view().data, 0, tensor.allocated_bytes(), stream.get());
    const Graph graph = device->capture(stream.get(), [&] {
      for (int i = 0; i < kSums; ++i) ranks->all_reduce_sum(tensor, *device, stream.get());
    });
    std::vector<double> seconds;
    for (int i = 0; i < kGraphs + 5; ++i) {
      host->barrier(*device, stream.get());
      seconds.push_back(device->elapsed_seconds(stream.get(), [&] { device->launch(graph, stream.get()); }));
    }
    ranks->check();
    device->destroy_graph(graph);
    seconds.erase(seconds.begin(), seconds.begin() + 5);
    std::sort(seconds.begin(), seconds.end());
    medians.push_back(seconds[seconds.size() / 2] / kSums * 1e6);
  }
  host->barrier(*device, stream.get());
  return medians;
}

}  // namespace

int main(int argc, char** argv) {
  const int size = argc > 1 ? std::atoi(argv[1]) : 2;
  const int64_t hidden = argc > 2 ? std::atoll(argv[2]) : 7168;
  const std::vector<int64_t> tokens{1, 8, 32, 64, 128, 512, 4096};
  std::vector<double> first;
  std::atomic<bool> failed = false;
  try {
    const auto hosts = make_thread_communicators(size, 30);
    std::vector<std::thread> threads;
    for (const auto& host : hosts) {
      threads.emplace_back([&, host] {
        try {
          std::vector<double> times = times_of_rank(host, hidden, tokens);
          if (host->rank() == 0) first = std::move(times);
        } catch (const std::exception& error) {
          host->abort(error.what());
          fmt::print(stderr, "rank {}: {}\n", host->rank(), error.what());
          failed = true;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
  if (failed) return 1;
  fmt::print("{} ranks, [tokens, {}] bf16, us\n", size, hidden);
  for (size_t i = 0; i < tokens.size(); ++i) fmt::print("{:>6} {:8.2f}\n", tokens[i], first[i]);
  return 0;
}
