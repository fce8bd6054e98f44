// Decode steps as graphs: the same bits as layer by layer, whatever lengths, pages and requests a launch has; nothing but launches in a
// forward. For an accelerator's test to instantiate.
#pragma once

#include <algorithm>

#include "device_fixture.h"
#include "layers/counting_device.h"
#include "layers/decode_session.h"

namespace strata {

using test::Session;

inline bool is_number(uint16_t bf16) { return (bf16 & 0x7F80) != 0x7F80; }

struct GraphCase {
  DeviceId device;
  const char* model;
  friend void PrintTo(const GraphCase& c, std::ostream* out) { *out << to_string(c.device) << ' ' << c.model; }
};

class DecodeGraph : public test::DeviceTest, public testing::WithParamInterface<GraphCase> {
 protected:
  DecodeGraph() : DeviceTest(GetParam().device) {}
  Session session(bool overlap) { return {device_, GetParam().model, overlap}; }
};

TEST_P(DecodeGraph, LaunchedEqualsLayerByLayerBitForBit) {
  const auto eager = session(true).outputs(false), graph = session(true).outputs(true);
  ASSERT_EQ(eager.size(), graph.size());
  EXPECT_EQ(eager, graph);
  EXPECT_TRUE(std::all_of(eager.begin(), eager.end(), is_number)) << "rows of padding too";
  EXPECT_GT(std::count_if(eager.begin(), eager.end(), [](uint16_t v) { return (v & 0x7FFF) != 0; }), std::ssize(eager) / 2);
}

TEST_P(DecodeGraph, AuxiliaryStreamsChangeNothing) { EXPECT_EQ(session(true).outputs(true), session(false).outputs(true)); }

TEST_P(DecodeGraph, AForwardOnlyLaunches) {
  const auto counting = std::make_shared<test::CountingDevice>(device_);
  Session run(counting, GetParam().model, true);
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

inline std::vector<GraphCase> graph_cases(DeviceId device, std::initializer_list<const char*> models) {
  std::vector<GraphCase> cases;
  for (const char* const model : models) cases.push_back({device, model});
  return cases;
}
inline std::string graph_case_name(const testing::TestParamInfo<GraphCase>& test) { return test.param.model; }

}  // namespace strata
