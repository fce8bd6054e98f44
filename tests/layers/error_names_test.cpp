// What an op throws in the middle of a step names the layer and the step's requests.
#include "bad_call.h"

namespace strata {
namespace {

using test::LayerFixture;

// Takes every product of a layer that the built-in ones take, and fails when it runs.
OpSet with_broken_products() {
  OpSet ops = default_ops();
  const auto& reference = ops.linear.implementations().back();
  ops.linear.prepend(
      {.name = "test/broken",
       .supports = reference.supports,
       .workspace_bytes = reference.workspace_bytes,
       .run = [](const LinearParams&, const ExecutionContext&) { throw Error(ErrorCode::device_failure, "linear: broke"); }});
  return ops;
}

TEST(ErrorNames, OpsInsideALayer) {
  const struct {
    const char* model;
    int64_t layer;
    const char* name;
  } layers[] = {{"v4_bf16", 0, "layer 0 (window)"},
                {"v4_bf16", 1, "layer 1 (c4)"},
                {"v4_bf16", 2, "layer 2 (c128)"},
                {"mla_v3", 0, "layer 0 (mla)"},
                {"mla_v32", 0, "layer 0 (mla_sparse)"}};
  for (const auto& [model, layer, name] : layers) {
    LayerFixture fixture(test::golden_model(model), {layer}, {}, nullptr, with_broken_products());
    for (const int64_t id : {41, 7}) fixture.runner->add_request(id);
    test::expect_error(ErrorCode::device_failure, {std::string(name) + ", requests 41, 7: linear: broke"}, [&] {
      fixture.step({{41, 3}, {7, 2}});
    });
  }
}

}  // namespace
}  // namespace strata
