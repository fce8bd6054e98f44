// Any text as config.json and as a shard index: refused with invalid_file, or a config that is valid, round-trips and answers for every
// layer. JSON is read as its library reads it, except that keys are unique and the depth is bounded.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "checkpoint/json.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/tensor_names.h"
#include "strata/error.h"
#include "strata/model_config.h"

namespace {

void check(bool condition) {
  if (!condition) std::abort();
}

void use(const strata::ModelConfig& config) {
  config.validate();
  check(strata::ModelConfig::parse(config.to_json()) == config);
  for (int64_t layer = 0; layer < config.num_hidden_layers + config.num_nextn_predict_layers; ++layer) {
    const int32_t ratio = config.compress_ratio(layer);
    check(ratio == 1 || ratio == 4 || ratio == 128);
    const strata::RopeConfig rope = config.rope(layer);
    check(rope.dim >= 2 && rope.theta > 1.0 && std::isfinite(rope.mscale_gain));
    config.skip_topk(layer);
  }
  const int64_t last = config.num_hidden_layers + config.num_nextn_predict_layers - 1;
  for (const std::string& name : strata::tensor_spellings(config, last, "wq_a.scale")) {
    check(strata::attention_layer_of(config, name) == last);
  }
}

template <class F>
void expect_invalid_file_at_most(F&& f) {
  try {
    f();
  } catch (const strata::Error& e) {
    check(e.code() == strata::ErrorCode::invalid_file);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  expect_invalid_file_at_most([&] {
    const nlohmann::json tree = strata::parse_json(text, "fuzz");
    check(tree == nlohmann::json::parse(text));
  });
  expect_invalid_file_at_most([&] { strata::parse_shard_index(text, "fuzz"); });
  bool parsed = false;
  strata::ModelConfig config;
  expect_invalid_file_at_most([&] {
    config = strata::ModelConfig::parse(text, "fuzz");
    parsed = true;
  });
  if (parsed) use(config);  // from here on nothing may fail
  strata::attention_layer_of(config, text);
  return 0;
}
