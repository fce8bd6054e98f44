// What a forward of any kind of layer writes in addition to the values that are compared with the recorded runs.
#include "layer_fixture.h"

namespace strata {
namespace {

using test::LayerFixture;

struct LayerKind {
  const char* name;
  const char* model;
  int64_t layer;
  int64_t head_dim, value_dim;  // of the taps
  LayerOptions options{};
  friend void PrintTo(const LayerKind& kind, std::ostream* os) { *os << kind.name; }
};

std::vector<LayerKind> kinds() {
  std::vector<LayerKind> list;
  const char* const v4[] = {"v4_window", "v4_c4", "v4_c128"};
  const char* const v4_paged[] = {"v4_window_paged", "v4_c4_paged", "v4_c128_paged"};
  const char* const v4_fp8_output[] = {"v4_window_fp8_output", "v4_c4_fp8_output", "v4_c128_fp8_output"};
  for (const int64_t layer : {0, 1, 2}) {
    LayerOptions gathered, paged, fp8_output;
    gathered.prefill_mode = PrefillMode::gathered;
    paged.prefill_mode = PrefillMode::paged;
    fp8_output.fp8_output = true;
    list.push_back({v4[layer], "v4_fp8", layer, 512, 512, gathered});
    list.push_back({v4_paged[layer], "v4_fp8", layer, 512, 512, paged});
    list.push_back({v4_fp8_output[layer], "v4_fp8", layer, 512, 512, fp8_output});
  }
  for (const auto& [name, mode] :
       {std::pair{"mla_dense", MlaMode::automatic}, std::pair{"mla_dense_mha", MlaMode::mha}, std::pair{"mla_dense_mqa", MlaMode::mqa}}) {
    LayerOptions options;
    options.mla_mode = mode;
    list.push_back({name, "mla_v3", 0, 192, 128, options});
  }
  list.push_back({"mla_sparse", "mla_v32", 0, 192, 128});
  return list;
}

class LayerOutputs : public testing::TestWithParam<LayerKind> {};

// The recorded runs are compared through taps, engines run without. Without one for the attention's output a V4 layer takes its rotation
// back elsewhere (docs/decisions/0005).
TEST_P(LayerOutputs, TapsChangeNothing) {
  const LayerKind& kind = GetParam();
  LayerFixture plain(kind.layer, kind.options, nullptr, kind.model), tapped(kind.layer, kind.options, nullptr, kind.model);
  const int64_t heads = plain.runner->layer(0).num_heads();
  const Tensor q(tapped.device, DType::bf16, {320, heads, kind.head_dim}),
      attn_out(tapped.device, DType::bf16, {320, heads, kind.value_dim});
  for (LayerFixture* f : {&plain, &tapped}) {
    f->runner->add_request(0);
    f->runner->add_request(1);
  }
  // A prompt; decode together with a prompt; decode alone. Rows of hidden states that no step has had before.
  int64_t first = 0;
  for (const std::vector<runner::StepRequest>& step :
       {std::vector<runner::StepRequest>{{0, 150}}, {{0, 1}, {1, 70}}, {{0, 1}, {1, 1}}, {{0, 30}, {1, 5}}}) {
    int64_t tokens = 0;
    for (const runner::StepRequest& r : step) tokens += r.num_tokens;
    ForwardArgs taps;
    taps.q_tap = q.view().slice(0, tokens);
    taps.attn_out_tap = attn_out.view().slice(0, tokens);
    EXPECT_EQ(tapped.step(step, first, taps), plain.step(step, first)) << "both taps, from row " << first;
    first += tokens;
  }
}

// Of padding requests of a uniform step, and of padding tokens of no request. Workspace and caches are NaN where nobody wrote.
TEST_P(LayerOutputs, RowsOfPaddingAreZero) {
  const LayerKind& kind = GetParam();
  LayerFixture fixture(kind.layer, kind.options, nullptr, kind.model);
  for (const int64_t id : {0, 1}) fixture.prefill(id, 40);
  const auto padded_step = [&](const std::vector<runner::StepRequest>& step, BatchPadding padding) {
    const int64_t actual = fixture.runner->begin_step(step, padding).num_actual_tokens;
    const TensorView out = fixture.out.view().slice(0, padding.num_tokens);
    fixture.device->fill(out.data, 0xFF, out.bytes(), {});
    fixture.runner->run_layer(0, fixture.hidden.view().slice(0, padding.num_tokens), out);
    fixture.runner->end_step();
    const std::vector<float> values = fixture.output(padding.num_tokens);
    const auto begin = values.begin() + actual * 256;
    EXPECT_TRUE(std::all_of(values.begin(), begin, [](float v) { return std::isfinite(v); }));
    EXPECT_EQ(std::count(begin, values.end(), 0.0f), values.end() - begin);
  };
  padded_step({{0, 1}, {1, 1}}, {.num_tokens = 4, .num_requests = 4});
  padded_step({{0, 1}, {1, 1}}, {.num_tokens = 7, .num_requests = 2});
  padded_step({{0, 1}, {1, 20}}, {.num_tokens = 30, .num_requests = 3});
  padded_step({{0, 30}}, {.num_tokens = 64, .num_requests = 1});
}

std::string name_of(const testing::TestParamInfo<LayerKind>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Layers, LayerOutputs, testing::ValuesIn(kinds()), name_of);

}  // namespace
}  // namespace strata
