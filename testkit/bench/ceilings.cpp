#include "testkit/bench/ceilings.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "core/host_device.h"
#include "testkit/harness/on_threads.h"
#include "testkit/cases/linear_case.h"
#include "testkit/bench/timing.h"

namespace strata::testkit {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMiB = size_t{1} << 20;
constexpr double kMinTime = 0.2;
constexpr int64_t kSmallProduct = 256;
constexpr double kMaxProductSeconds = 20;  // of one large product, at the small one's rate

size_t last_level_cache(const Device& device) {
  const int64_t bytes = device.properties().last_level_cache_bytes;
  return bytes > 0 ? static_cast<size_t>(bytes) : 32 * kMiB;
}

// 64-byte vectors, which the compiler splits for machines with shorter ones; eight sums hide the latency of the additions.
using Vector = uint64_t __attribute__((vector_size(64)));
constexpr size_t kLanes = 8;

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
uint64_t
read_all(const Vector* data, size_t n) {
  Vector sums[kLanes] = {};
  for (size_t i = 0; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += data[i + lane];
  }
  uint64_t sum = 0;
  for (const Vector& v : sums) {
    for (size_t j = 0; j < sizeof(Vector) / sizeof(uint64_t); ++j) sum += v[j];
  }
  return sum;
}

double read_bandwidth(const std::shared_ptr<Device>& device, size_t bytes) {
  const int threads = host_threads(*device);
  const size_t part = bytes / sizeof(Vector) / static_cast<size_t>(threads) / kLanes * kLanes;
  const Tensor buffer(device, DType::u8, {static_cast<int64_t>(part * static_cast<size_t>(threads) * sizeof(Vector))});
  auto* data = buffer.view().ptr<Vector>();
  // The thread that reads a page touches it first, so that it lies in that thread's memory.
  on_threads(threads, [&](int t) { std::memset(static_cast<void*>(data + part * static_cast<size_t>(t)), t + 1, part * sizeof(Vector)); });
  constexpr int kPasses = 3;
  double best = 0;
  for (int repeat = 0; repeat < 4; ++repeat) {
    std::vector<uint64_t> sums(static_cast<size_t>(threads));
    const auto begin = Clock::now();
    on_threads(threads, [&](int t) {
      for (int pass = 0; pass < kPasses; ++pass) sums[static_cast<size_t>(t)] += read_all(data + part * static_cast<size_t>(t), part);
    });
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    volatile uint64_t keep = 0;  // the sums are wanted
    for (uint64_t sum : sums) keep = keep + sum;
    best = std::max(best, static_cast<double>(buffer.allocated_bytes()) * kPasses / seconds);
  }
  return best;
}

// 0: the device has no such call.
double probed_bandwidth(const std::shared_ptr<Device>& device, size_t bytes) {
  const auto size = static_cast<int64_t>(bytes);
  const Tensor buffer(device, DType::u8, {size}), sink(device, DType::u8, {64});
  device->fill(buffer.view().data, 1, size, {});
  if (!device->probe_read(buffer.view().data, size, sink.view().data, {})) return 0;
  device->synchronize({});
  Work work;
  work.call = [&](size_t, Stream stream) { device->probe_read(buffer.view().data, size, sink.view().data, stream); };
  return static_cast<double>(bytes) / measure(work, device, {.min_time = kMinTime}).minimum;
}

// Seconds; 0: the device has no such call.
double empty_launch(const std::shared_ptr<Device>& device) {
  if (!device->probe_launch({})) return 0;
  Work work;
  work.call = [&](size_t, Stream stream) { device->probe_launch(stream); };
  return measure(work, device, {.min_time = kMinTime / 10}).minimum;
}

double copy_bandwidth(const std::shared_ptr<Device>& device, size_t bytes) {
  const Tensor from(device, DType::u8, {static_cast<int64_t>(bytes)}), to(device, DType::u8, {static_cast<int64_t>(bytes)});
  device->fill(from.view().data, 1, bytes, {});
  device->synchronize({});
  Work work;
  work.call = [&](size_t, Stream stream) { device->copy(to.view().data, from.view().data, bytes, stream); };
  return 2.0 * static_cast<double>(bytes) / measure(work, device, {.min_time = kMinTime}).minimum;
}

// A product by the fastest library there is, which is the roofline where bf16 is multiplied by the same instructions as fp32.
Work library_product(const std::shared_ptr<Device>& device, int64_t n, double flops) {
  Work work;
  work.flops = flops;
  const auto in = std::make_shared<Inputs>(device, InputOptions{.keep_images = false});
  const auto* a = in->f32({n, n}).ptr<float>();
  auto* c = in->output(DType::f32, {n, n}).ptr<float>();
  if (!device->probe_product(n, a, a, c, {})) work.refusal = "the device has no such call";
  work.call = [=](size_t, Stream stream) { in->device()->probe_product(n, a, a, c, stream); };
  return work;
}

}  // namespace

void Ceilings::improve(const Ceilings& other) {
  if (other.flops > flops) {
    flops = other.flops;
    flops_source = other.flops_source;
  }
  if (other.bandwidth > bandwidth) {
    bandwidth = other.bandwidth;
    bandwidth_source = other.bandwidth_source;
  }
  if (other.empty_launch > 0 && (empty_launch <= 0 || other.empty_launch < empty_launch)) empty_launch = other.empty_launch;
}

double Ceilings::floor_seconds(double bytes, double work_flops) const {
  return std::max(bytes / bandwidth, flops > 0 ? work_flops / flops : 0.0);
}

size_t rotate_bytes(const Device& device) { return std::min(2 * last_level_cache(device), 512 * kMiB); }

Ceilings measure_ceilings(const OpSet& ops, const std::shared_ptr<Device>& device) {
  Ceilings ceilings;
  const bool cpu = device->id().kind == DeviceKind::cpu;
  // The small product is timed first: with scalar code, or OpenCL on a CPU, the large one would take minutes.
  const std::vector<int64_t> sizes{kSmallProduct, cpu ? 4096 : 8192};
  for (const int64_t n : sizes) {
    const std::unique_ptr<AnyCase> product = linear_ceiling_case(n);
    const Work work = product->prepare(ops, device, "", {});
    if (!work.refusal.empty() || (n > kSmallProduct && work.flops / ceilings.flops > kMaxProductSeconds)) break;
    const auto rate_of = [&](const Work& w, const std::string& what) {
      Ceilings rate;
      rate.flops = w.flops / measure(w, device, {.min_time = n > kSmallProduct ? kMinTime : 0.0, .min_samples = 3}).minimum;
      rate.flops_source = fmt::format("{} {}^3", what, n);
      return rate;
    };
    ceilings = rate_of(work, work.implementation + " bf16");
    // oneDNN's product is what others report against: where it is faster than ours, it is the roof. It takes bf16 where the CPU does.
    if (!cpu || n == kSmallProduct || work.implementation == "cpu/onednn") continue;
    if (const Work bf16 = product->prepare(ops, device, "cpu/onednn", {}); bf16.refusal.empty()) {
      ceilings.improve(rate_of(bf16, "cpu/onednn bf16"));
    } else if (const Work fp32 = library_product(device, n, work.flops); fp32.refusal.empty()) {
      ceilings.improve(rate_of(fp32, "oneDNN fp32"));
    }
  }
  // A GPU keeps its pace only over many times what its cache holds.
  const size_t bytes = std::max(rotate_bytes(*device), cpu ? 256 * kMiB : 1024 * kMiB);
  const auto found = [&](double bandwidth, const char* how) {
    Ceilings measured;
    measured.bandwidth = bandwidth;
    measured.bandwidth_source = fmt::format("{} {} MiB", how, bytes / kMiB);
    ceilings.improve(measured);
  };
  if (cpu) {
    found(read_bandwidth(device, bytes), "reading");
  } else {
    found(probed_bandwidth(device, bytes), "reading");
    found(copy_bandwidth(device, bytes), "copying");
    ceilings.empty_launch = empty_launch(device);
  }
  return ceilings;
}

}  // namespace strata::testkit
