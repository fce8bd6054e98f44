// Every layer family over the library's communicators: ranks as threads and as processes against one rank, with equal bits on every rank
// and from run to run; ranks that throw.
#include <gmock/gmock.h>

#include <cstring>

#include "mla_model.h"
#include "ranks.h"

namespace strata {
namespace {

using test::LayerFixture;
using test::Over;

struct Family {
  const char* name;
  const char* model;  // of the recorded ones; null: V4 with eight heads in four groups
  int64_t layer;
};
constexpr Family kFamilies[] = {
    {"v4_window", nullptr, 0},         {"v4_c4", nullptr, 1},   {"v4_c128", nullptr, 2},
    {"mla_v2_lite", "mla_v2_lite", 0}, {"mla_v3", "mla_v3", 0}, {"mla_v32", "mla_v32", 0},
};

std::string directory_of(const Family& family) {
  if (family.model != nullptr) return test::golden_model(family.model);
  static const std::unique_ptr<test::ModelDirectory> four_groups = [] {
    ModelConfig config = ModelConfig::load(test::golden_model("v4_fp8"));
    config.num_attention_heads = 8;
    config.o_groups = 4;
    return test::synthesized(config, /*fp8=*/true);
  }();
  return four_groups->string();
}

// A prefill, one with context, decode steps of two requests, and a step in which this rank's engine has nothing to do.
std::vector<float> outputs_of(const Family& family, int rank, int size, const std::shared_ptr<Communicator>& communicator) {
  LayerOptions options;
  options.tp_rank = rank;
  options.tp_size = size;
  LayerFixture fixture(directory_of(family), {family.layer}, options, communicator);
  std::vector<float> all = fixture.prefill(0, 150);
  const auto add = [&](const std::vector<float>& out) { all.insert(all.end(), out.begin(), out.end()); };
  fixture.runner->add_request(1);
  add(fixture.step({{0, 1}, {1, 60}}, 150));
  add(fixture.step({{0, 1}, {1, 1}}, 211));
  ForwardArgs args;
  args.dummy_run = true;
  args.hidden = fixture.hidden.view().slice(0, 3);
  args.out = fixture.out.view().slice(0, 3);
  fixture.runner->layer(0).forward(args);
  add(fixture.output(3));
  return all;
}

std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}
std::vector<float> floats_of(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

// A communicator that the layer may share, of one that a test owns.
std::shared_ptr<Communicator> shared(Collectives& ranks) { return {std::shared_ptr<void>(), &ranks}; }

class LayerRanks : public testing::TestWithParam<std::tuple<Over, Family>> {};

TEST_P(LayerRanks, AgreeWithOneRankAndWithEachOther) {
  const auto& [over, family] = GetParam();
  static_cast<void>(directory_of(family));  // made once, before any process
  const auto run = [&, which = family](int size, Over by) {
    return test::run_ranks(by, size, [&](Collectives& ranks) { return bytes_of(outputs_of(which, ranks.rank(), size, shared(ranks))); });
  };
  const std::string one = run(1, Over::processes)[0];
  ASSERT_EQ(one.substr(0, 6) == "error:", false) << one;
  const std::vector<float> want = floats_of(one);
  ASSERT_EQ(want.size(), (150 + 61 + 2 + 3) * 256u);
  for (const int size : {2, 4}) {
    const std::vector<std::string> got = run(size, over);
    for (const std::string& other : got) EXPECT_TRUE(other == got[0]) << "all ranks have equal bits; " << other.substr(0, 200);
    ASSERT_EQ(got[0].size(), one.size()) << got[0].substr(0, 200);
    // Each partial sum is rounded to bf16 once, and their sum once more: 2^-9 relative to the size of each.
    EXPECT_LE(test::relative_difference(floats_of(got[0]), want), 8e-3) << "tp " << size;
    EXPECT_TRUE(run(size, over)[0] == got[0]) << "equal bits from run to run, tp " << size;
  }
}

std::string name_of(const testing::TestParamInfo<std::tuple<Over, Family>>& info) {
  return std::string(test::to_string(std::get<0>(info.param))) + "_" + std::get<1>(info.param).name;
}
// Processes first: they begin as copies of a process that has no threads yet.
INSTANTIATE_TEST_SUITE_P(Families, LayerRanks,
                         testing::Combine(testing::Values(Over::processes, Over::threads), testing::ValuesIn(kFamilies)), name_of);

// A step that one rank refuses ends on every rank, by the name of the layer.
TEST(LayerRanksErrors, ARankThatThrowsEndsTheOthers) {
  for (const Over over : {Over::processes, Over::threads}) {
    const auto results = test::run_ranks(over, 2, [](Collectives& ranks) -> std::string {
      LayerOptions options;
      options.tp_rank = ranks.rank();
      options.tp_size = 2;
      LayerFixture fixture(0, options, shared(ranks), "mla_v3");
      fixture.prefill(0, 20);
      if (ranks.rank() == 1) fixture.runner->add_request(0);  // is there already
      fixture.step({{0, 1}});
      return "no error";
    });
    EXPECT_THAT(results[1], testing::HasSubstr("request ids must be new, 0 is known"));
    EXPECT_THAT(results[0], testing::HasSubstr("rank 0 of 2: all_reduce_sum of 512 bytes of bf16: rank 1 has left"));
  }
}

}  // namespace
}  // namespace strata
