// Threads may call one op on one device at once, each on a stream of its own, with shapes for which a kernel wants different amounts of
// shared memory.
#include <array>
#include <random>
#include <thread>

#include "cuda/cuda_fixture.h"
#include "formats/bf16.h"
#include "strata/op_set.h"

namespace strata {
namespace {

// A layer of few tokens.
class Layer {
 public:
  Layer(const std::shared_ptr<Device>& device, DType dtype, int64_t tokens, int64_t n, int64_t k)
      : device_(device),
        w_(device, dtype, {n, k}),
        scale_(device, DType::f32, {(n + 127) / 128, (k + 127) / 128}),
        x_(device, DType::bf16, {tokens, k}),
        y_(device, DType::bf16, {tokens, n}),
        weight_{.n = n, .k = k, .weight = w_, .scale = dtype == DType::e4m3 ? scale_.view() : TensorView{}},
        params_{.x = x_,
                .weight = &weight_,
                .y = y_,
                .activation = dtype == DType::e4m3 ? ActivationFormat::fp8_ue8m0 : ActivationFormat::bf16} {
    std::mt19937 rng(static_cast<unsigned>(k));
    std::vector<uint16_t> x(static_cast<size_t>(tokens * k));
    for (uint16_t& v : x) v = to_bf16(static_cast<float>(rng() % 64) / 32.0f - 1.0f).bits;
    device->copy_from_host(x_.view().data, x.data(), x.size() * 2, {});
    // 0.5 and 1 in e4m3; pairs of these bytes are small numbers in bf16.
    std::vector<uint8_t> w(w_.allocated_bytes());
    for (uint8_t& byte : w) byte = rng() % 2 == 0 ? 0x30 : 0x38;
    device->copy_from_host(w_.view().data, w.data(), w.size(), {});
    const std::vector<float> scales(static_cast<size_t>(scale_.view().numel()), 0.25f);
    device->copy_from_host(scale_.view().data, scales.data(), scales.size() * sizeof(float), {});
    device->synchronize({});
    workspace_bytes_ = ops_.linear.workspace_bytes(params_, *device);
    workspace_ = Tensor(device, DType::u8, {workspace_bytes_ + 1});
  }

  std::string implementation() const { return ops_.linear.select(params_, *device_).name; }
  void run(Stream stream) { ops_.linear(params_, {*device_, stream, {workspace_.view().data, workspace_bytes_}}); }
  const Tensor& y() const { return y_; }

 private:
  OpSet ops_ = default_ops();
  std::shared_ptr<Device> device_;
  Tensor w_, scale_, x_, y_, workspace_;
  LinearWeight weight_;
  LinearParams params_;
  int64_t workspace_bytes_ = 0;
};

class CudaThreads : public test::CudaTest, public testing::WithParamInterface<DType> {};

TEST_P(CudaThreads, MayCallAnOpAtOnce) {
  Layer short_rows(device_, GetParam(), 1, 4096, 1024), long_rows(device_, GetParam(), 1, 4096, 7168);
  Layer* const layers[2] = {&short_rows, &long_rows};
  EXPECT_EQ(short_rows.implementation(), long_rows.implementation());
  std::array<std::vector<uint8_t>, 2> alone;
  for (size_t i = 0; i < 2; ++i) {
    layers[i]->run({});
    alone[i] = bytes_at(layers[i]->y().view().data, layers[i]->y().allocated_bytes());
  }
  std::array<std::string, 2> failures;
  std::thread threads[2];
  for (size_t i = 0; i < 2; ++i) {
    threads[i] = std::thread([&, i] {
      try {
        const OwnedStream stream(device_);
        for (int n = 0; n < 3000; ++n) layers[i]->run(stream.get());
        device_->synchronize(stream.get());
      } catch (const std::exception& error) {
        failures[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(failures[i], "");
    EXPECT_EQ(bytes_at(layers[i]->y().view().data, alone[i].size()), alone[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, CudaThreads, testing::Values(DType::bf16, DType::e4m3),
                         [](const auto& weight) { return weight.param == DType::bf16 ? "bf16" : "e4m3"; });

}  // namespace
}  // namespace strata
