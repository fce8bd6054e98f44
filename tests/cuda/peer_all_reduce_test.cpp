// All-reduce over peer memory: two ranks on one GPU, and on two where there are two. Each rank is a thread with a stream of its own.
#include <gmock/gmock.h>

#include <thread>

#include "cuda/cuda_fixture.h"
#include "formats/bf16.h"
#include "ranks.h"
#include "strata/owned_stream.h"

namespace strata {
namespace {

float value_of(int rank, int64_t i, int launch) { return static_cast<float>((i * 37 + rank * 101 + launch * 13) % 1009) - 504.0f; }

class PeerAllReduce : public test::CudaTest, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    devices_ = {device_, device_};
    if (!GetParam()) return;
    try {
      devices_[1] = open_device({DeviceKind::cuda, 1});
    } catch (const Error& error) {
      GTEST_SKIP() << "needs two GPUs: " << error.what();
    }
  }

  // body(communicator, device, stream) on both ranks; what each returns or throws.
  std::vector<std::string> run(const std::function<std::string(Collectives&, Device&, Stream)>& body, double timeout_seconds = 20) {
    return test::run_ranks(test::Over::threads, 2, [&](Collectives& host) {
      const auto device = devices_[static_cast<size_t>(host.rank())];
      const std::shared_ptr<Collectives> shared(std::shared_ptr<void>(), &host);
      const auto ranks = make_peer_communicator(shared, device, timeout_seconds);
      const OwnedStream stream(device);
      std::string result = body(*ranks, *device, stream.get());
      host.barrier(*device, stream.get());  // buffers stay until the other rank's kernels are done
      return result;
    });
  }

  std::vector<std::shared_ptr<Device>> devices_;
};

template <class T>
void fill(std::vector<T>& values, int rank, int launch) {
  for (int64_t i = 0; i < std::ssize(values); ++i) {
    if constexpr (std::is_same_v<T, float>) {
      values[static_cast<size_t>(i)] = value_of(rank, i, launch);
    } else {
      values[static_cast<size_t>(i)] = to_bf16(value_of(rank, i, launch));
    }
  }
}
float number(float v) { return v; }
float number(Bf16 v) { return to_float(v); }

// The sum of two ranks of `count` values at several launches, alone or captured; the first wrong value, or nothing.
template <class T>
std::string sums(Collectives& ranks, const std::shared_ptr<Device>& device, Stream stream, DType dtype, int64_t count, bool graph) {
  const Tensor tensor(device, dtype, {1, count});
  std::vector<T> values(static_cast<size_t>(count));
  Graph captured;
  if (graph) captured = device->capture(stream, [&] { ranks.all_reduce_sum(tensor, *device, stream); });
  std::string wrong;
  for (int launch = 0; launch < 5 && wrong.empty(); ++launch) {
    fill(values, ranks.rank(), launch);
    device->copy_from_host(tensor.view().data, values.data(), tensor.allocated_bytes(), stream);
    graph ? device->launch(captured, stream) : ranks.all_reduce_sum(tensor, *device, stream);
    device->copy_to_host(values.data(), tensor.view().data, tensor.allocated_bytes(), stream);
    device->synchronize(stream);
    ranks.check();
    for (int64_t i = 0; i < count && wrong.empty(); ++i) {
      const bool wide = std::is_same_v<T, float>;
      const float a = value_of(0, i, launch), b = value_of(1, i, launch);
      const float want = wide ? a + b : round_to_bf16(round_to_bf16(a) + round_to_bf16(b));
      if (number(values[static_cast<size_t>(i)]) != want) {
        wrong = "value " + std::to_string(i) + " of " + std::to_string(count) + ", launch " + std::to_string(launch);
      }
    }
  }
  if (graph) device->destroy_graph(captured);
  return wrong;
}

// One and 37 vectors, one and 32 tokens; 9 MiB take two shots of two ranks, 40 MiB several launches.
TEST_P(PeerAllReduce, SumsInOrderAloneAndInGraphs) {
  for (const bool graph : {false, true}) {
    const auto results = run([&](Collectives& ranks, Device&, Stream stream) -> std::string {
      const auto& device = devices_[static_cast<size_t>(ranks.rank())];
      for (const int64_t count : {8, 37 * 8, 7168, 32 * 7168, 9 * 524288 + 8, 20 * 1048576}) {
        std::string wrong = sums<Bf16>(ranks, device, stream, DType::bf16, count, graph);
        if (wrong.empty()) wrong = sums<float>(ranks, device, stream, DType::f32, count / 2, graph);
        if (!wrong.empty()) return wrong;
      }
      return "";
    });
    EXPECT_THAT(results, testing::Each("")) << (graph ? "graphs" : "calls");
  }
}

TEST_P(PeerAllReduce, ASilentPeerIsAnErrorInTime) {
  const auto begin = std::chrono::steady_clock::now();
  const auto results = run(
      [&](Collectives& ranks, Device& device, Stream stream) -> std::string {
        const Tensor tensor(devices_[static_cast<size_t>(ranks.rank())], DType::bf16, {1, 7168});
        if (ranks.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::seconds(3));
        } else {
          ranks.all_reduce_sum(tensor, device, stream);
          device.synchronize(stream);
        }
        return test::result_of([&] { return ranks.check(), std::string("no error"); });
      },
      1.0);
  // The communicator has failed, so the barrier at the end of run() throws as well.
  EXPECT_THAT(results, testing::Each(testing::HasSubstr("all_reduce_sum: rank 1 has not arrived within 1 s")));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

INSTANTIATE_TEST_SUITE_P(Devices, PeerAllReduce, testing::Bool(), [](const auto& which) { return which.param ? "two" : "one"; });

}  // namespace
}  // namespace strata
