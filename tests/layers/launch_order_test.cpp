// Launch orders are data that changes no result: every order in which each step follows the steps that it reads gives the same bits.
#include <gtest/gtest.h>

#include <bit>
#include <set>

#include "layer_fixture.h"
#include "layers/deepseek_v4_attention.h"
#include "layers/multi_head_latent_attention.h"
#include "legal_orders.h"

namespace strata {
namespace {

using test::LaunchList;

// The outputs of a step after a prompt, launched in the order given. Before, the same positions are computed from other hidden states: a
// step that runs too early finds those values in the workspace and the caches, and not the right ones.
template <class Layer, class Step>
class OrderedLayer {
 public:
  OrderedLayer(const std::string& model, int64_t number, int64_t prompt, bool skip_topk = false)
      : fixture_(number, {}, nullptr, model), layer_(dynamic_cast<Layer&>(fixture_.runner->layer(0))), prompt_(prompt) {
    fixture_.prefill(kRequest, prompt);
    extras_.skip_topk = skip_topk;
    const TensorView topk = fixture_.runner->topk_indices();
    for (int64_t i = 0; skip_topk && i < topk.numel(); ++i) topk.ptr<int32_t>()[i] = static_cast<int32_t>(i % topk.shape[1]);
  }

  std::vector<float> run(LaunchList<Step> order) {
    layer_.set_launch_order(std::move(order));
    step_from_row(250);
    return step_from_row(prompt_);
  }

 private:
  static constexpr int64_t kRequest = 1;
  std::vector<float> step_from_row(int64_t row) {
    fixture_.runner->pretend_position(kRequest, prompt_);
    return fixture_.step({{kRequest, 8}}, row, extras_);
  }

  test::LayerFixture fixture_;
  Layer& layer_;
  int64_t prompt_;
  ForwardArgs extras_;
};

// Prompts after which a step of 8 tokens completes compressed entries, and has more candidates than its top-k.
constexpr int64_t kPrompt = 200, kPromptOf128 = 124;

// Runs all orders to try; returns their number.
template <class Layer, class Step>
size_t expect_same_bits(const std::string& model, int64_t number, std::span<const Launch<Step>> order, int64_t prompt = kPrompt,
                        bool skip_topk = false) {
  OrderedLayer<Layer, Step> layer(model, number, prompt, skip_topk);
  const std::vector<float> expected = layer.run({order.begin(), order.end()});
  const std::vector<LaunchList<Step>> orders = test::orders_to_try(order);
  for (const LaunchList<Step>& other : orders) {
    if (layer.run(other) == expected) continue;
    std::string text;
    for (const Launch<Step>& launch : other) text += " " + std::to_string(static_cast<int>(launch.step));
    ADD_FAILURE() << model << " layer " << number << ": the order" << text << " gives other bits";
    break;
  }
  return orders.size();
}

// One order for each set of steps.
std::vector<V4LaunchOrder> different_steps(const V4Launches& kind) {
  std::vector<V4LaunchOrder> orders;
  std::set<StepSet> seen;
  for (const V4LaunchOrder order : v4_launch_orders(kind)) {
    if (seen.insert(launched_steps(order)).second) orders.push_back(order);
  }
  return orders;
}

TEST(LaunchOrder, OfV4WindowLayersIsFree) { expect_same_bits<DeepseekV4Attention>("v4_fp8", 0, v4_launch_order({})); }

TEST(LaunchOrder, OfV4LayersOfRatio128IsFree) {
  EXPECT_EQ((expect_same_bits<DeepseekV4Attention>("v4_fp8", 2, v4_launch_order({.compressor = true}), kPromptOf128)), 10u);
}

TEST(LaunchOrder, OfV4LayersOfRatio4IsFree) {
  const std::vector<V4LaunchOrder> orders = different_steps({.compressor = true, .indexer = true, .selects = true});
  ASSERT_EQ(orders.size(), 2u) << "the indexer's query is a step, or the selection makes it";
  for (const V4LaunchOrder order : orders) EXPECT_GE(expect_same_bits<DeepseekV4Attention>("v4_fp8", 1, order), 500u);
}

TEST(LaunchOrder, OfV4LayersWithAGivenTopkIsFree) {
  const V4LaunchOrder order = v4_launch_order({.compressor = true, .indexer = true});
  EXPECT_GE((expect_same_bits<DeepseekV4Attention>("v4_fp8", 1, order, kPrompt, /*skip_topk=*/true)), 200u);
}

TEST(LaunchOrder, OfDenseMlaLayersIsFree) {
  for (const char* model : {"mla_v2_lite", "mla_v3"}) expect_same_bits<MultiHeadLatentAttention>(model, 0, mla_launch_order({}));
}

TEST(LaunchOrder, OfSparseMlaLayersIsFree) {
  for (const bool selects : {true, false}) {
    const MlaLaunchOrder order = mla_launch_order({.sparse = true, .indexer = true, .selects = selects});
    EXPECT_GT((expect_same_bits<MultiHeadLatentAttention>("mla_v32", 0, order, kPrompt, !selects)), 20u);
  }
}

// What the tests above can see: a step that runs before one that it reads gives other bits.
TEST(LaunchOrder, AStepTooEarlyGivesOtherBits) {
  const V4LaunchOrder legal = v4_launch_order({.compressor = true, .indexer = true, .selects = true});
  OrderedLayer<DeepseekV4Attention, V4Step> layer("v4_fp8", 1, kPrompt);
  const std::vector<float> expected = layer.run({legal.begin(), legal.end()});
  size_t illegal = 0;
  for (auto step = legal.begin() + 1; step != legal.end(); ++step) {
    LaunchList<V4Step> order(legal.begin(), legal.end());
    const auto at = order.begin() + (step - legal.begin());
    std::rotate(order.begin(), at, at + 1);
    if (test::is_legal<V4Step>(order)) continue;
    ++illegal;
    EXPECT_FALSE(layer.run(order) == expected) << "step " << static_cast<int>(step->step) << " first";
  }
  EXPECT_EQ(illegal, 7u) << "all steps but the three that read the layer's input alone";
}

TEST(LaunchOrder, IsLegalForAllKindsAndHasAllSteps) {
  using enum V4Step;
  const StepSet plain = steps(latents, norms, queries), compressed = plain | steps(kv_scores, keys);
  const StepSet indexed = compressed | steps(index_keys);
  const StepSet selected = indexed | steps(index_weights, index_queries, select_topk);
  const auto expect = [](const V4Launches& kind, StepSet needed, StepSet optional = 0) {
    for (const V4LaunchOrder order : v4_launch_orders(kind)) {
      EXPECT_TRUE(test::is_legal(order));
      EXPECT_EQ(launched_steps(order) & ~optional, needed);
      EXPECT_EQ(std::popcount(launched_steps(order)), std::ssize(order)) << "no step twice";
    }
  };
  expect({}, plain);
  expect({.compressor = true}, compressed);
  expect({.compressor = true, .indexer = true}, indexed | steps(topk_slots));
  expect({.compressor = true, .indexer = true, .selects = true}, selected, steps(index_query));
  for (const MlaLaunches kind : {MlaLaunches{}, MlaLaunches{.sparse = true}, MlaLaunches{.sparse = true, .indexer = true},
                                 MlaLaunches{.sparse = true, .indexer = true, .selects = true}}) {
    EXPECT_TRUE(test::is_legal(mla_launch_order(kind)));
  }
}

// One token of V4-Pro has longer queries than selection, one of V4-Flash has not (V4 1: 128 and 64 heads of 512, 64 index heads of 128).
TEST(LaunchOrder, OfOneTokenFollowsTheRowsOfTheQueries) {
  V4Launches sizes{
      .compressor = true, .indexer = true, .selects = true, .side_streams = true, .num_tokens = 1, .index_query_rows = 64 * 128};
  const auto stream_of_index_queries = [&](int64_t query_rows) {
    sizes.query_rows = query_rows;
    const V4LaunchOrder order = v4_launch_order(sizes);
    return std::find_if(order.begin(), order.end(), [](const auto& l) { return l.step == V4Step::index_queries; })->stream;
  };
  EXPECT_EQ(stream_of_index_queries(int64_t{64} * 512), 0);
  EXPECT_EQ(stream_of_index_queries(int64_t{128} * 512), 2);
}

}  // namespace
}  // namespace strata
