#include "testkit/bench/timing.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "strata/owned_stream.h"

namespace strata::testkit {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Operations of scalar code per second, a low estimate, so that guesses from it keep the budget.
constexpr double kReferenceRate = 4e8;

double amount(double bytes, double flops) { return std::max(bytes, flops); }

// `calls` calls enqueued together on a stream, with the copies of the inputs round-robin.
class Burst {
 public:
  Burst(const Work& work, const std::shared_ptr<Device>& device) : work_(work), device_(device), stream_(device) {}
  ~Burst() { forget_graph(); }
  Burst(const Burst&) = delete;
  Burst& operator=(const Burst&) = delete;

  // Seconds a call.
  double run(int64_t calls) {
    return device_->elapsed_seconds(stream_.get(), [&] {
      if (graph_.handle != nullptr) return device_->launch(graph_, stream_.get());
      put(calls);
    }) / static_cast<double>(calls);
  }

  // From here on run(calls) launches them as one graph, where the device and the calls allow it.
  void record(int64_t calls) {
    try {
      graph_ = device_->capture(stream_.get(), [&] { put(calls); });
    } catch (const Error&) {
      forget_graph();
    }
  }
  bool recorded() const { return graph_.handle != nullptr; }

 private:
  void put(int64_t calls) {
    for (int64_t i = 0; i < calls; ++i) {
      work_.call(copy_, stream_.get());
      copy_ = (copy_ + 1) % work_.copies;
    }
  }
  void forget_graph() {
    device_->destroy_graph(graph_);
    graph_ = {};
  }

  const Work& work_;
  std::shared_ptr<Device> device_;
  OwnedStream stream_;
  Graph graph_{};
  size_t copy_ = 0;
};

}  // namespace

Timing measure(const Work& work, const std::shared_ptr<Device>& device, const TimingOptions& options) {
  // Of a graph: before its first call stands what the host takes to launch it, some 10 us.
  const bool graphs = device->id().kind != DeviceKind::cpu;
  const double sample_seconds = graphs ? 2e-3 : 2e-4;
  constexpr int64_t kMaxCalls = 1000;
  device->synchronize({});
  Burst burst(work, device);
  burst.run(1);  // faults in pages and raises clocks
  const double once = burst.run(1);

  Timing timing;
  timing.calls_per_sample = std::clamp<int64_t>(static_cast<int64_t>(sample_seconds / std::max(once, 1e-9)), 1, kMaxCalls);
  // A graph has no pauses between calls, and every launch of it goes through all copies of the inputs.
  if (graphs) {
    timing.calls_per_sample = std::max(timing.calls_per_sample, static_cast<int64_t>(work.copies));
    burst.record(timing.calls_per_sample);
    timing.graph = burst.recorded();
    burst.run(timing.calls_per_sample);
  }
  const int min_samples = once > options.min_time ? std::min(options.min_samples, 2) : options.min_samples;
  std::vector<double> samples;
  const auto begin = Clock::now();
  while (static_cast<int>(samples.size()) < min_samples || seconds_since(begin) < options.min_time) {
    samples.push_back(burst.run(timing.calls_per_sample));
  }
  std::sort(samples.begin(), samples.end());
  timing.samples = static_cast<int>(samples.size());
  timing.minimum = samples.front();
  const size_t middle = samples.size() / 2;
  timing.median = samples.size() % 2 == 1 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
  return timing;
}

ReferenceTiming time_reference(const AnyCase& c, const OpSet& ops, double bytes, double flops, uint64_t seed, double budget) {
  const std::vector<std::string> names = c.implementations(ops);
  if (std::find(names.begin(), names.end(), "reference") == names.end()) return {};
  const std::shared_ptr<Device> host = open_device({});
  const double full = amount(bytes, flops);
  const double affordable = budget * kReferenceRate / std::max(full, 1.0);
  const double share = affordable < 0.5 ? affordable : 1.0;
  const Work work = c.prepare(ops, host, "reference", {.seed = seed, .share = share});
  if (!work.refusal.empty()) return {};
  const auto begin = Clock::now();
  work.call(0, {});
  const double seconds = seconds_since(begin);
  const double done = amount(work.bytes, work.flops);
  if (done <= 0) return {seconds, 1.0};
  return {seconds * full / done, done / full};
}

}  // namespace strata::testkit
