// Small models of random weights, 256 wide: what the tests of layers make for themselves.
#pragma once

#include "layer_fixture.h"

namespace strata::test {

// The shapes of the recorded models with `heads` heads and `layers` layers.
inline ModelConfig small_mla(const std::string& golden, int64_t heads = 4, int64_t layers = 1) {
  ModelConfig config = ModelConfig::load(golden_model(golden));
  config.num_attention_heads = heads;
  config.num_hidden_layers = layers;
  return config;
}

inline std::unique_ptr<ModelDirectory> synthesized(const ModelConfig& config, bool fp8 = false, uint64_t seed = 3) {
  auto directory = std::make_unique<ModelDirectory>();
  synthesize_checkpoint(config, {.fp8 = fp8, .seed = seed}, directory->path());
  return directory;
}

}  // namespace strata::test
