// Several devices in one process: the same bits on each, one after the other, alternately and concurrently.
#include <cuda_runtime_api.h>

#include <thread>

#include "cuda/cuda_fixture.h"
#include "layers/decode_session.h"

namespace strata {
namespace {

using test::Session;

class CudaDevices : public test::CudaTest, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    try {
      second_ = open_device({DeviceKind::cuda, 1});
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::unsupported) << error.what();
      GTEST_SKIP() << "needs two GPUs: " << error.what();
    }
  }

  std::shared_ptr<Device> second_;
};

TEST_P(CudaDevices, EachGivesTheSameBits) {
  for (const bool graph : {false, true}) {
    const auto first = Session(device_, GetParam(), true).outputs(graph), second = Session(second_, GetParam(), true).outputs(graph);
    EXPECT_GT(first.size(), 0u);
    EXPECT_EQ(first, second) << (graph ? "as graphs" : "layer by layer");
  }
}

// What one device has loaded and set up is not the other's: both hold a session before either runs.
TEST_P(CudaDevices, BothHeldByOneThread) {
  Session first(device_, GetParam(), true), second(second_, GetParam(), true);
  const auto on_second = second.outputs(true), on_first = first.outputs(true);
  EXPECT_EQ(on_first, on_second);
}

TEST_P(CudaDevices, AThreadEachAtOnce) {
  const auto alone = Session(device_, GetParam(), true).outputs(true);
  std::vector<uint16_t> outputs[2];
  std::thread threads[2];
  for (int i = 0; i < 2; ++i) {
    threads[i] = std::thread([&, i] { outputs[i] = Session(i == 0 ? device_ : second_, GetParam(), true).outputs(true); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(outputs[0], alone);
  EXPECT_EQ(outputs[1], alone);
}

// A view of one device's memory given to the other is refused before anything runs.
TEST_P(CudaDevices, MemoryOfTheOtherIsRefused) {
  Session session(device_, GetParam(), true);
  auto& runner = session.runner();
  runner.add_request(1);
  const runner::StepRequest step[] = {{1, 1}};
  runner.begin_step(step);
  const int64_t hidden = runner.layer(0).hidden_size();
  const Tensor here(device_, DType::bf16, {1, hidden}), there(second_, DType::bf16, {1, hidden});
  EXPECT_EQ(error_of([&] { runner.run_layer(0, there, here); }).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([&] { runner.run_layer(0, here, there); }).code(), ErrorCode::invalid_argument);
}

// A device that goes while it has memory leaves the calling thread on the device it was on.
using CudaDevicesLeave = test::CudaTest;
TEST_F(CudaDevicesLeave, TheCurrentDeviceAlone) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  if (count < 2) GTEST_SKIP() << "needs two GPUs";
  for (const int own : {1, 0}) {
    ASSERT_EQ(cudaSetDevice(own), cudaSuccess);
    auto device = open_device({DeviceKind::cuda, 1 - own});
    device->deallocate(device->allocate(64));
    device.reset();
    int current = -1;
    ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
    EXPECT_EQ(current, own);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaDevices, testing::Values("v4_bf16", "v4_fp8", "mla_v32"), [](const auto& p) { return p.param; });

}  // namespace
}  // namespace strata
