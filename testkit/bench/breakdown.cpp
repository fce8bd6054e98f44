#include "testkit/bench/breakdown.h"

#include <algorithm>
#include <chrono>

#include "strata/owned_stream.h"

namespace strata::testkit {
namespace {

using Clock = std::chrono::steady_clock;

// Calls sample() at least options.min_samples times and for options.min_time, after a run that warms up.
template <class F>
void repeat(const TimingOptions& options, F&& sample) {
  sample();
  const auto begin = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  for (int i = 0; i < options.min_samples || seconds() < options.min_time; ++i) sample();
}

double median(std::vector<double> samples) {
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

// The first 0, 1, 2, ... calls, up to all of them, each a graph.
class PrefixGraphs {
 public:
  PrefixGraphs(const std::vector<RecordedCall>& calls, const std::shared_ptr<Device>& device) : device_(device), stream_(device) {
    for (size_t prefix = 0; prefix <= calls.size(); ++prefix) {
      graphs_.push_back(device_->capture(stream_.get(), [&] {
        for (size_t i = 0; i < prefix; ++i) calls[i].run(stream_.get());
      }));
    }
  }
  ~PrefixGraphs() {
    for (const Graph& graph : graphs_) device_->destroy_graph(graph);
  }
  PrefixGraphs(const PrefixGraphs&) = delete;
  PrefixGraphs& operator=(const PrefixGraphs&) = delete;

  size_t size() const { return graphs_.size(); }
  // After a launch of all calls: caches are as the whole leaves them, and the host has launched the graph before the device reaches it.
  double run(size_t prefix) {
    device_->launch(graphs_.back(), stream_.get());
    return device_->elapsed_seconds(stream_.get(), [&] { device_->launch(graphs_[prefix], stream_.get()); });
  }

 private:
  std::shared_ptr<Device> device_;
  OwnedStream stream_;
  std::vector<Graph> graphs_;
};

std::vector<double> measure_prefixes(const std::vector<RecordedCall>& calls, const std::shared_ptr<Device>& device,
                                     const TimingOptions& options) {
  PrefixGraphs graphs(calls, device);
  std::vector<std::vector<double>> samples(graphs.size());
  // The prefixes run round-robin, so that a change of clocks affects all of them.
  repeat(options, [&] {
    for (size_t i = 0; i < graphs.size(); ++i) samples[i].push_back(graphs.run(i));
  });
  std::vector<double> seconds;
  double before = median(samples.front());
  for (size_t i = 1; i < samples.size(); ++i) {
    const double with = median(samples[i]);
    seconds.push_back(with - before);
    before = with;
  }
  return seconds;
}

std::vector<double> measure_one_by_one(const std::vector<RecordedCall>& calls, const std::shared_ptr<Device>& device,
                                       const TimingOptions& options) {
  const OwnedStream stream(device);
  std::vector<std::vector<double>> samples(calls.size());
  repeat(options, [&] {
    for (size_t i = 0; i < calls.size(); ++i) {
      samples[i].push_back(device->elapsed_seconds(stream.get(), [&] { calls[i].run(stream.get()); }));
    }
  });
  std::vector<double> seconds;
  seconds.reserve(samples.size());
  for (const std::vector<double>& of_call : samples) seconds.push_back(median(of_call));
  return seconds;
}

bool captures(const std::shared_ptr<Device>& device, const std::vector<RecordedCall>& calls) {
  if (device->id().kind == DeviceKind::cpu) return false;
  const OwnedStream stream(device);
  try {
    device->destroy_graph(device->capture(stream.get(), [&] {
      for (const RecordedCall& call : calls) call.run(stream.get());
    }));
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::vector<double> measure_calls(const std::vector<RecordedCall>& calls, const std::shared_ptr<Device>& device,
                                  const TimingOptions& options) {
  if (calls.empty()) return {};
  device->synchronize({});
  return captures(device, calls) ? measure_prefixes(calls, device, options) : measure_one_by_one(calls, device, options);
}

}  // namespace strata::testkit
