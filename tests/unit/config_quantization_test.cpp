// quantization_config of config.json: FP8 blocks by three tools, and what leaves attention alone.
#include "small_configs.h"

namespace strata::test {
namespace {

// llm-compressor's FP8_BLOCK is quant_method "fp8" in other words.
TEST(Quantization, BlocksOfFp8ByCompressedTensors) {
  json j = json::parse(preset("v3-tiny").to_json());
  const json group = {
      {"weights", {{"num_bits", 8}, {"type", "float"}, {"strategy", "block"}, {"block_structure", {128, 128}}, {"dynamic", false}}},
      {"input_activations", {{"num_bits", 8}, {"type", "float"}, {"strategy", "group"}, {"group_size", 128}, {"dynamic", true}}},
      {"targets", {"Linear"}}};
  j["quantization_config"] = {{"quant_method", "compressed-tensors"}, {"config_groups", {{"group_0", group}}}};
  EXPECT_EQ(parse(j), preset("v3-tiny"));
  j["quantization_config"]["config_groups"]["group_0"]["input_activations"]["strategy"] = "token";
  expect_parts(refusal(j), {"quantization_config.quant_method", "q_a_proj"});  // one scale a token: another product
  j["quantization_config"]["ignore"] = {"re:.*self_attn.*"};
  EXPECT_EQ(parse(j).other_quant_method, "compressed-tensors");
  j["quantization_config"].erase("ignore");
  for (const json& odd :
       {json(nullptr), json(1), json::array(), json{{"group_0", 1}}, json{{"group_0", {{"weights", 1}, {"input_activations", 2}}}}}) {
    j["quantization_config"]["config_groups"] = odd;
    expect_parts(refusal(j), {"quantization_config"});
  }
  json experts = group;
  experts["targets"] = {"re:.*mlp.experts.*"};
  experts["weights"]["num_bits"] = 4;
  j["quantization_config"]["config_groups"] = {{"group_0", experts}};
  EXPECT_EQ(parse(j).other_quant_method, "compressed-tensors") << "attention is in no group";
  j["quantization_config"]["config_groups"]["group_1"] = group;
  EXPECT_TRUE(parse(j).fp8_weights);
  j["quantization_config"]["config_groups"]["group_1"]["weights"]["scale_dtype"] = "torch.float16";
  expect_parts(refusal(j), {"config_groups.group_1.weights.scale_dtype"});
  j["quantization_config"]["config_groups"]["group_1"] = group;
  json attention = group;
  attention["targets"] = {"re:.*self_attn.*"};
  attention["weights"]["strategy"] = "channel";
  j["quantization_config"]["config_groups"]["group_2"] = attention;
  expect_parts(refusal(j), {"quantization_config.quant_method", "q_a_proj"});
}

TEST(Quantization, RotationsAreRefused) {
  json j = json::parse(preset("v3-tiny").to_json());
  const json good = {{"quant_method", "modelopt"}, {"quant_algo", "FP8_PB_WO"}};
  for (const auto& [key, value] : {std::pair("transform_config", json{{"config_groups", {{"R1", 1}}}}), std::pair("rotate", json(true))}) {
    j["quantization_config"] = good;
    j["quantization_config"][key] = value;
    expect_parts(refusal(j), {key});
    j["quantization_config"] = good;
    j["quantization_config"]["quantization"][key] = value;
    expect_parts(refusal(j), {std::string("quantization_config.quantization.") + key});
  }
  j["quantization_config"] = good;
  j["quantization_config"]["transform_config"] = json::object();
  j["quantization_config"]["speed"] = 1;
  EXPECT_THAT(parse(j).unknown_keys(), testing::ElementsAre("quantization_config.speed"));
}

TEST(Quantization, OthersMustBeKnownAndLeaveAttentionAlone) {
  json j = json::parse(preset("v3-tiny").to_json());
  j["quantization_config"] = {{"quant_method", "nonsense"}, {"modules_to_not_convert", {"self_attn"}}};
  expect_parts(refusal(j), {"quantization_config.quant_method", "nonsense", "bitsandbytes"});
  const auto with = [&](const char* method, const char* key, const json& value) {
    json changed = j;
    changed["quantization_config"] = {{"quant_method", method}, {key, value}};
    return changed;
  };
  const json each = {"self_attn.q_a_proj", "self_attn.q_b_proj", "self_attn.kv_a_proj_with_mqa", "kv_b_proj", "self_attn.o_proj"};
  json most = each;
  most.erase(4);
  for (const json& all : {json{"lm_head", "re:.*self_attn.*"}, json{"model.layers.0.self_attn*"}, each}) {
    EXPECT_EQ(parse(with("awq", "modules_to_not_convert", all)).other_quant_method, "awq") << all;
  }
  for (const json& few : {json(nullptr), json::array(), json{"lm_head"}, json{"self_attn.indexer"}, most, json{"self_attn.o_proj"}}) {
    expect_parts(refusal(with("awq", "modules_to_not_convert", few)), {"quantization_config.quant_method", "awq", "_proj is quantised"});
  }
  for (const char* key : {"ignore", "ignored_layers", "exclude_modules", "exclude", "llm_int8_skip_modules", "skip_modules",
                          "linear_weights_not_to_quantize"}) {
    EXPECT_EQ(parse(with("quark", key, {"self_attn"})).other_quant_method, "quark") << key;
  }
  EXPECT_EQ(parse(with("gptq", "dynamic", {{"-:.*self_attn.*", json::object()}})).other_quant_method, "gptq");
  expect_parts(refusal(with("gptq", "dynamic", {{"+:.*self_attn.*", json::object()}})), {"gptq"});
  EXPECT_EQ(parse(with("auto-round", "extra_config", {{"self_attn", {{"bits", 16}}}})).other_quant_method, "auto-round");
  expect_parts(refusal(with("auto-round", "extra_config", {{"self_attn", {{"bits", 4}}}})), {"auto-round"});
}

TEST(Quantization, BlocksOfFp8ByModelOpt) {
  json j = json::parse(preset("v3-tiny").to_json());
  for (const json& q : {json{{"quant_method", "modelopt"}, {"quant_algo", "FP8_PB_WO"}},
                        json{{"quant_method", "modelopt"}, {"quantization", {{"quant_algo", "FP8_PB_WO"}}}}}) {
    j["quantization_config"] = q;
    EXPECT_EQ(parse(j), preset("v3-tiny"));
  }
  for (const json& algorithm : {json("FP8"), json("NVFP4"), json(nullptr)}) {
    j["quantization_config"] = {{"quant_method", "modelopt"}, {"quant_algo", algorithm}, {"quantization", 1}};
    expect_parts(refusal(j), {"quantization_config"});
    j["quantization_config"]["quantization"] = {{"exclude_modules", {"model.layers.0.self_attn*"}}};
    EXPECT_EQ(parse(j).other_quant_method, "modelopt");
  }
}

}  // namespace
}  // namespace strata::test
