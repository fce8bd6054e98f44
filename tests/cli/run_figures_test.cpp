// What `strata run --json` says of times that were taken, and of those that were not.
#include "run_figures.h"

#include <gmock/gmock.h>

namespace strata::cli {
namespace {

// Two layers: a prefill step, and decode steps layer by layer.
RunFigures layer_by_layer() {
  return {.kinds = {{"c4", {.layers = 2, .prefill_seconds = 4.0, .decode_seconds = 1.0, .weight_bytes = 7}}},
          .prefill_tokens = 100,
          .decode_tokens = 10,
          .steps = 6,
          .layer_decode_tokens = 10};
}

// The same with decode steps as graphs of all layers, the first of which was captured and not timed.
RunFigures by_graphs() {
  RunFigures figures = layer_by_layer();
  figures.kinds["c4"].decode_seconds = 0;
  figures.layer_decode_tokens = 0;
  figures.graph_steps = 4, figures.graph_tokens = 8, figures.graph_seconds = 2.0;
  return figures;
}

TEST(RunFigures, LayersThatWereTimed) {
  const RunFigures figures = layer_by_layer();
  const Json json = kind_json(figures, "c4", figures.kinds.at("c4"));
  EXPECT_EQ(json["kind"], "c4");
  EXPECT_EQ(json["layers"], 2);
  EXPECT_EQ(json["weight_bytes"], 7);
  EXPECT_EQ(json["prefill_seconds_per_layer"], 2.0);
  EXPECT_EQ(json["prefill_tokens_per_second"], 50.0);
  EXPECT_EQ(json["decode_seconds_per_layer"], 0.5);
  EXPECT_EQ(json["decode_tokens_per_second"], 20.0);
}

TEST(RunFigures, WithinAGraphNoLayerHasATime) {
  const RunFigures figures = by_graphs();
  EXPECT_FALSE(decode_time(figures, figures.kinds.at("c4")).has_value());
  const Json json = kind_json(figures, "c4", figures.kinds.at("c4"));
  EXPECT_EQ(json["prefill_seconds_per_layer"], 2.0);
  EXPECT_TRUE(json["decode_seconds_per_layer"].is_null()) << json;
  EXPECT_TRUE(json["decode_tokens_per_second"].is_null()) << json;
  const Json graph = graph_json(figures);
  EXPECT_EQ(graph["steps"], 4);
  EXPECT_EQ(graph["tokens"], 8);
  EXPECT_EQ(graph["seconds"], 2.0);
  EXPECT_EQ(graph["seconds_per_step"], 0.5);
  EXPECT_EQ(graph["tokens_per_second"], 4.0);
}

}  // namespace
}  // namespace strata::cli
