// Decode steps as graphs: the same bits as layer by layer, whatever lengths, pages and requests a launch has; nothing but launches in a
// forward.
#include <algorithm>

#include "cuda/counting_device.h"
#include "cuda/cuda_fixture.h"
#include "cuda/decode_session.h"

namespace strata {
namespace {

using test::Session;

bool is_number(uint16_t bf16) { return (bf16 & 0x7F80) != 0x7F80; }

class CudaGraph : public test::CudaTest, public testing::WithParamInterface<const char*> {};

TEST_P(CudaGraph, LaunchedEqualsLayerByLayerBitForBit) {
  const auto eager = Session(device_, GetParam(), true).outputs(false), graph = Session(device_, GetParam(), true).outputs(true);
  ASSERT_EQ(eager.size(), graph.size());
  EXPECT_EQ(eager, graph);
  EXPECT_TRUE(std::all_of(eager.begin(), eager.end(), is_number)) << "rows of padding too";
  EXPECT_GT(std::count_if(eager.begin(), eager.end(), [](uint16_t v) { return (v & 0x7FFF) != 0; }), std::ssize(eager) / 2);
}

TEST_P(CudaGraph, AuxiliaryStreamsChangeNothing) {
  EXPECT_EQ(Session(device_, GetParam(), true).outputs(true), Session(device_, GetParam(), false).outputs(true));
}

TEST_P(CudaGraph, AForwardOnlyLaunches) {
  const auto counting = std::make_shared<test::CountingDevice>(device_);
  Session run(counting, GetParam(), true);
  const auto forbidden_in = [&](auto&& f) {
    const int before = counting->forbidden();
    f();
    return counting->forbidden() - before;
  };
  run.runner().add_request(1);
  for (const int64_t tokens : {200, 1, 1}) {  // prefill, decode layer by layer
    const runner::StepRequest step[] = {{1, tokens}};
    run.runner().begin_step(step);
    const Tensor in(device_, DType::bf16, {tokens, run.runner().layer(0).hidden_size()}),
        out(device_, DType::bf16, {tokens, in.view().shape[1]});
    run.load(in, tokens);
    for (size_t l = 0; l < run.runner().num_layers(); ++l) {
      EXPECT_EQ(forbidden_in([&] { run.runner().run_layer(l, in, out); }), 0) << "layer " << l << ", " << tokens << " tokens";
    }
    run.runner().end_step();
    counting->synchronize(run.runner().stream());
  }
  for (int i = 0; i < 2; ++i) {  // a capture, then a launch
    const runner::StepRequest step[] = {{1, 1}};
    run.runner().begin_step(step, run.graphs().padding(1));
    EXPECT_EQ(forbidden_in([&] { EXPECT_EQ(run.graphs().run(), i == 1); }), 0);
    run.runner().end_step();
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaGraph, testing::Values("v4_bf16", "v4_fp8", "v4_many_heads", "mla_v3", "mla_v32"),
                         [](const auto& p) { return p.param; });

}  // namespace
}  // namespace strata
