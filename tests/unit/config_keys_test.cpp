// The table of config.json's keys: every entry does what it says, and a key that it does not have is listed or refused.
#include "checkpoint/config_keys.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "small_configs.h"

namespace strata::test {
namespace {

// A small model whose file has the object that keys of this scope stand in.
json base_with(ModelFamily family, KeyScope scope) {
  json j = base(family);
  if (scope == KeyScope::outer) return {{"text_config", j}};
  if (scope == KeyScope::quantiser) {
    j["quantization_config"] = {{"quant_method", "gptq"}, {"modules_to_not_convert", {"self_attn"}}};
  }
  if (scope == KeyScope::group || scope == KeyScope::group_values) {
    const json weights = {{"num_bits", 8}, {"type", "float"}, {"strategy", "block"}, {"block_structure", {128, 128}}, {"dynamic", false}};
    const json inputs = {{"num_bits", 8}, {"type", "float"}, {"strategy", "group"}, {"group_size", 128}, {"dynamic", true}};
    const json group = {{"weights", weights}, {"input_activations", inputs}, {"targets", {"Linear"}}};
    j["quantization_config"] = {{"quant_method", "compressed-tensors"}, {"config_groups", {{"g", group}}}};
  }
  return j;
}

std::string object_of(KeyScope scope) {
  switch (scope) {
    case KeyScope::model:
    case KeyScope::outer: return "";
    case KeyScope::rope: return "/rope_scaling";
    case KeyScope::quantization:
    case KeyScope::quantiser: return "/quantization_config";
    case KeyScope::group: return "/quantization_config/config_groups/g";
    case KeyScope::group_values: return "/quantization_config/config_groups/g/weights";
  }
  return "";
}

json::json_pointer place(const ConfigKey& key) {
  std::string name(key.name);
  if (name.ends_with('*')) name.back() = 'x';
  return json::json_pointer(object_of(key.scope) + "/" + name);
}

std::vector<ModelFamily> families(const ConfigKey& key) {
  std::vector<ModelFamily> result;
  if (key.v4) result.push_back(ModelFamily::deepseek_v4);
  if (key.mla) result.push_back(ModelFamily::deepseek_mla);
  return result;
}

TEST(ConfigKeys, AreListedOnceForAFamily) {
  std::set<std::string> seen;
  for (const ConfigKey& key : config_keys()) {
    for (const ModelFamily family : families(key)) {
      EXPECT_TRUE(seen.insert(fmt::format("{} {} {}", int(key.scope), key.name, int(family))).second) << key.name;
    }
    EXPECT_EQ(key.effect == KeyEffect::must_be, !key.value.empty()) << key.name;
  }
}

// The key of changes(): its path, with the scope if two share an object.
std::string change_of(const ConfigKey& key) { return (key.scope == KeyScope::quantiser ? "quantiser" : "") + place(key).to_string(); }

// What each honoured key does to a config: another value than the file has gives another config, or an error that names the key.
const std::map<std::string, std::pair<json, std::string>>& changes() {
  static const std::map<std::string, std::pair<json, std::string>> values{
      // key: value, text in the refusal ("": read, and the config differs)
      {"/architectures", {{"OtherForCausalLM"}, "architectures"}},
      {"/model_type", {"axk2", "model_type"}},
      {"/hidden_size", {1024, ""}},
      {"/num_hidden_layers", {2, ""}},
      {"/num_nextn_predict_layers", {3, ""}},
      {"/num_mtp_layers", {3, "num_nextn_predict_layers"}},
      {"/num_attention_heads", {16, ""}},
      {"/max_position_embeddings", {77, ""}},
      {"/rms_norm_eps", {1e-3, ""}},
      {"/q_lora_rank", {384, ""}},
      {"/qk_rope_head_dim", {32, ""}},
      {"/partial_rotary_factor", {0.25, "partial_rotary_factor"}},
      {"/rope_theta", {777.0, ""}},
      {"/rope_scaling", {nullptr, ""}},
      {"/rope_parameters", {{{"rope_type", "default"}, {"rope_theta", 777.0}}, "rope_theta"}},
      {"/layer_types", {std::vector<std::string>(4, "linear_attention"), "layer_types[0]"}},
      {"/index_topk", {65, ""}},
      {"/index_n_heads", {9, ""}},
      {"/index_head_dim", {64, "index_head_dim"}},
      {"/quantization_config", {nullptr, ""}},
      {"/head_dim", {128, "head_dim"}},
      {"/o_groups", {4, ""}},
      {"/o_lora_rank", {384, ""}},
      {"/sliding_window", {64, ""}},
      {"/compress_ratios", {{128, 4, 0, 0}, ""}},
      {"/compress_rates", {{{"compressed_sparse_attention", 8}}, "compress_rates.compressed_sparse_attention"}},
      {"/compress_rate_csa", {8, "compress_rate_csa"}},
      {"/compress_rate_hca", {64, "compress_rate_hca"}},
      {"/compress_rope_theta", {777.0, ""}},
      {"/num_key_value_heads", {1, "num_attention_heads"}},
      {"/kv_lora_rank", {256, ""}},
      {"/qk_nope_head_dim", {64, ""}},
      {"/qk_head_dim", {256, "qk_head_dim"}},
      {"/v_head_dim", {64, ""}},
      {"/index_topk_pattern", {"FSFS", ""}},
      {"/index_topk_freq", {2, ""}},
      {"/index_skip_topk_offset", {3, ""}},
      {"/indexer_types", {{"full", "shared", "full", "full"}, ""}},
      {"/indexer_rope_interleave", {true, ""}},
      {"/rope_scaling/type", {"linear", "rope_scaling.type"}},
      {"/rope_scaling/rope_type", {"default", "rope_scaling.rope_type"}},
      {"/rope_scaling/rope_theta", {777.0, "rope_scaling.rope_theta"}},
      {"/rope_scaling/partial_rotary_factor", {0.25, "partial_rotary_factor"}},
      {"/rope_scaling/factor", {7.0, ""}},
      {"/rope_scaling/original_max_position_embeddings", {77, ""}},
      {"/rope_scaling/beta_fast", {16.0, ""}},
      {"/rope_scaling/beta_slow", {2.0, ""}},
      {"/rope_scaling/truncate", {false, ""}},
      {"/rope_scaling/mscale", {0.5, ""}},
      {"/rope_scaling/mscale_all_dim", {0.5, ""}},
      {"/rope_scaling/attn_factor", {0.5, ""}},
      {"/rope_scaling/attention_factor", {0.5, ""}},
      {"/quantization_config/quant_method", {"awq", "q"}},
      {"/quantization_config/scale_fmt", {"float", ""}},
      {"/quantization_config/weight_block_size", {{64, 64}, ""}},
      {"quantiser/quantization_config/quant_method", {"awq", ""}},
      {"quantiser/quantization_config/quant_algo", {1, ""}},
      {"quantiser/quantization_config/quantization", {{{"attn_bits", 4}}, "quantization_config.quantization.attn_bits"}},
      {"quantiser/quantization_config/config_groups", {1, ""}},
      {"quantiser/quantization_config/sparsity_config", {{{"format", "sparse-24"}}, "sparsity_config"}},
      {"quantiser/quantization_config/ignore", {"self_attn", "ignore"}},
      {"quantiser/quantization_config/modules_to_not_convert", {json::array(), "quant_method"}},
      {"quantiser/quantization_config/ignored_layers", {"self_attn", "ignored_layers"}},
      {"quantiser/quantization_config/exclude_modules", {"self_attn", "exclude_modules"}},
      {"quantiser/quantization_config/exclude", {"self_attn", "exclude"}},
      {"quantiser/quantization_config/llm_int8_skip_modules", {"self_attn", "llm_int8_skip_modules"}},
      {"quantiser/quantization_config/skip_modules", {"self_attn", "skip_modules"}},
      {"quantiser/quantization_config/linear_weights_not_to_quantize", {"self_attn", "linear_weights_not_to_quantize"}},
      {"quantiser/quantization_config/dynamic", {json::object(), ""}},
      {"quantiser/quantization_config/extra_config", {json::object(), ""}},
      {"/quantization_config/config_groups/g/weights", {nullptr, "quant_method"}},
      {"/quantization_config/config_groups/g/input_activations", {nullptr, "quant_method"}},
      {"/quantization_config/config_groups/g/targets", {{"re:.*experts.*"}, ""}},
      {"/quantization_config/config_groups/g/weights/num_bits", {4, "quant_method"}},
      {"/quantization_config/config_groups/g/weights/type", {"int", "quant_method"}},
      {"/quantization_config/config_groups/g/weights/strategy", {"channel", "quant_method"}},
      {"/quantization_config/config_groups/g/weights/group_size", {64, "quant_method"}},
      {"/quantization_config/config_groups/g/weights/block_structure", {{64, 64}, ""}},
      {"/quantization_config/config_groups/g/weights/dynamic", {true, "quant_method"}},
  };
  return values;
}

TEST(ConfigKeys, HonouredKeysChangeTheConfigOrAreRefused) {
  std::set<std::string> honoured;
  for (const ConfigKey& key : config_keys()) {
    if (key.effect != KeyEffect::honoured) continue;
    const auto it = changes().find(change_of(key));
    ASSERT_NE(it, changes().end()) << key.name << " needs a value in changes()";
    honoured.insert(it->first);
    for (const ModelFamily family : families(key)) {
      json j = base_with(family, key.scope);
      const auto& [value, refused] = it->second;
      SCOPED_TRACE(fmt::format("{} = {}", it->first, value.dump()));
      j[place(key)] = value;
      // V4's shape is fixed where MLA's is not.
      const bool v4_only = family == ModelFamily::deepseek_v4 && (key.name == "qk_rope_head_dim" || key.name == "num_hidden_layers");
      if (!refused.empty()) {
        expect_parts(refusal(j), {refused});
      } else if (v4_only) {
        expect_parts(refusal(j), {key.name == "num_hidden_layers" ? "compress_ratios[2]" : "qk_rope_head_dim"});
      } else {
        // With what base() has these say nothing more; Quantization has a test of each.
        const bool same = key.name == "dynamic" || key.name == "extra_config" || key.name == "quant_algo" || key.name == "config_groups";
        EXPECT_EQ(parse(j) == parse(base_with(family, key.scope)), same);
      }
    }
  }
  for (const auto& [name, value] : changes()) EXPECT_TRUE(honoured.contains(name)) << name << " is not honoured";
}

TEST(ConfigKeys, OthersMustHaveTheirValue) {
  for (const ConfigKey& key : config_keys()) {
    if (key.effect != KeyEffect::must_be) continue;
    for (const ModelFamily family : families(key)) {
      SCOPED_TRACE(key.name);
      json j = base_with(family, key.scope);
      for (const json& right : {json::parse(key.value), json(nullptr)}) {
        j[place(key)] = right;
        EXPECT_EQ(parse(j), parse(base_with(family, key.scope)));
      }
      const json expected = json::parse(key.value);
      j[place(key)] = expected.is_boolean() ? json(!expected.get<bool>()) : expected.is_number() ? json(2) : json({"other"});
      expect_parts(refusal(j), {key.name.data(), "expected " + std::string(key.value), "is " + j[place(key)].dump()});
      // A key with a known meaning is not accepted.
      expect_parts(refusal(j, {.accept_keys = {std::string(key.name), "rope_scaling." + std::string(key.name)}}), {key.name.data()});
    }
  }
}

TEST(ConfigKeys, TheRestHasNoEffect) {
  for (const ConfigKey& key : config_keys()) {
    if (key.effect != KeyEffect::no_effect) continue;
    for (const ModelFamily family : families(key)) {
      for (const json& value : {json(1), json("text"), json{{"a", 1}}}) {
        json j = base_with(family, key.scope);
        j[place(key)] = value;
        EXPECT_EQ(parse(j), parse(base_with(family, key.scope))) << key.name;
        EXPECT_THAT(parse(j).unknown_keys(), testing::IsEmpty()) << key.name;
      }
    }
  }
}

TEST(ConfigKeys, UnknownOnesAreListed) {
  for (const ModelFamily family : {ModelFamily::deepseek_v4, ModelFamily::deepseek_mla}) {
    json j = base(family);
    j["zebra"] = 1;
    j["another_token_id"] = {1, 2};
    j["absent"] = nullptr;
    j["quantization_config"]["speed"] = "high";
    EXPECT_THAT(parse(j).unknown_keys(), testing::ElementsAre("another_token_id", "quantization_config.speed", "zebra"));
    EXPECT_EQ(parse(j), parse(base(family))) << "they are no part of a config's value";
  }
}

TEST(ConfigKeys, UnknownOnesThatSuggestAttentionAreRefusedUnlessAccepted) {
  for (const ModelFamily family : {ModelFamily::deepseek_v4, ModelFamily::deepseek_mla}) {
    for (const std::string name :
         {"attn_gate", "attention_sink_size", "rope_shift", "indexer_depth", "compress_more", "kv_groups", "q_lora_bias", "extra_heads",
          "quantization_config.attn_bits", "rope_scaling.anything", "rope_scaling.llama_4_scaling_beta"}) {
      json j = base(family);
      std::string pointer = "/" + name;
      std::replace(pointer.begin(), pointer.end(), '.', '/');
      j[json::json_pointer(pointer)] = 3;
      expect_parts(refusal(j), {"the/config.json", "\"" + name + "\"", "value 3", "--accept-key"});
      expect_parts(refusal(j, {.accept_keys = {"other"}}), {name});
      const ModelConfig c = parse(j, {.accept_keys = {"other", name}});
      EXPECT_THAT(c.unknown_keys(), testing::ElementsAre(name));
      EXPECT_EQ(c, parse(base(family)));
    }
  }
}

TEST(ConfigKeys, KeysOfAnotherFamilyAreNotPassedOver) {
  json j = mla();
  j["compress_rope_theta"] = 160000;
  expect_parts(refusal(j), {"compress_rope_theta"});
  j = v4();
  j["kv_lora_rank"] = 512;
  expect_parts(refusal(j), {"kv_lora_rank"});
}

TEST(ConfigKeys, NestedModelsAreNamedInErrors) {
  json j = {{"model_type", "kimi_k25"}, {"text_config", mla()}, {"vision_config", {{"num_attention_heads", 3}}}};
  EXPECT_EQ(parse(j), parse(mla()));
  j["quantization_config"] = {{"quant_method", "awq"}, {"modules_to_not_convert", {"self_attn"}}};
  expect_parts(refusal(j), {"quantization_config", "text_config.quantization_config", "awq"});
  j["text_config"].erase("quantization_config");
  EXPECT_EQ(parse(j).other_quant_method, "awq");
  j["text_config"]["kv_lora_rank"] = 0.5;
  expect_parts(refusal(j), {"text_config.kv_lora_rank"});
  j["text_config"]["kv_lora_rank"] = 512;
  j["text_config"]["attn_gate"] = 1;
  expect_parts(refusal(j), {"\"text_config.attn_gate\""});
  EXPECT_THAT(parse(j, {.accept_keys = {"text_config.attn_gate"}}).unknown_keys(), testing::ElementsAre("text_config.attn_gate"));
  j["text_config"]["model_type"] = "llama";
  j["text_config"]["architectures"] = {"LlamaForCausalLM"};
  j["text_config"].erase("kv_lora_rank");
  expect_parts(refusal(j), {"text_config.model_type", "llama"});
  for (const char* key : {"language_config", "llm_config"}) EXPECT_EQ(parse({{key, v4()}}), parse(v4())) << key;
}

TEST(ConfigKeys, AroundANestedModelAgreeWithIt) {
  const auto with = [](const char* key, const json& value) {
    json j = {{"text_config", mla()}};
    j[key] = value;
    return j;
  };
  expect_parts(refusal(with("rope_theta", 5)), {"rope_theta", "the same as text_config.rope_theta, 10000", "is 5"});
  EXPECT_EQ(parse(with("rope_theta", mla()["rope_theta"])), parse(mla()));
  expect_parts(refusal(with("attention_bias", true)), {"attention_bias", "expected false", "is true"});
  expect_parts(refusal(with("use_mla", false)), {"use_mla", "expected true"});
  EXPECT_EQ(parse(with("use_mla", true)), parse(mla()));
  expect_parts(refusal(with("rope_parameters", {{"rope_type", "default"}})), {"rope_parameters", "text_config"});
  expect_parts(refusal(with("attn_gate", 1)), {"\"attn_gate\"", "--accept-key"});
  EXPECT_THAT(parse(with("zebra", 1)).unknown_keys(), testing::ElementsAre("zebra"));
  EXPECT_THAT(parse(with("vision_config", {{"num_attention_heads", 3}})).unknown_keys(), testing::IsEmpty());
}

TEST(ConfigKeys, DescribeOneModel) {
  json other = mla();
  other["rope_theta"] = 5;
  expect_parts(refusal({{"text_config", mla()}, {"llm_config", other}}), {"llm_config", "text_config"});
  json j = mla();
  j["text_config"] = {{"kv_lora_rank", 512}};
  expect_parts(refusal(j), {"text_config", "the file itself"});
  j = mla();
  j["text_config"] = other;
  EXPECT_NE(refusal(j), "");
  j = mla();
  j["own_config"] = {{"kv_lora_rank", 512}};
  expect_parts(refusal(j), {"own_config"});
  j = {{"text_config", mla()}};
  j["text_config"]["text_config"] = {{"kv_lora_rank", 512}};
  expect_parts(refusal(j), {"text_config.text_config"});
  j = mla();
  j["text_config"] = json::object();
  EXPECT_THAT(parse(j).unknown_keys(), testing::ElementsAre("text_config"));
}

TEST(ConfigKeys, NamesThatSuggestAttention) {
  for (const char* name : {"alibi",
                           "clip_qkv",
                           "value_residual",
                           "llama_4_scaling",
                           "floor_temperature_tuning",
                           "normalize_keys",
                           "key_scale",
                           "query_scale",
                           "qk_scale",
                           "q_norm",
                           "k_norm",
                           "logn",
                           "use_XPos",
                           "logit_softcapping",
                           "softcap",
                           "nope",
                           "no_nope_layers",
                           "dsa_size",
                           "nsa",
                           "sparse_block",
                           "gated_output",
                           "output_gate",
                           "beta_fast",
                           "beta_slow",
                           "mscale",
                           "original_max_position_embeddings",
                           "index_pool",
                           "AttnGate",
                           "local_rope",
                           "mla_scale"}) {
    EXPECT_TRUE(suggests_attention(name)) << name;
  }
  for (const char* name : {"zebra", "ignore_index", "canopener", "adsabs", "transactions", "monkey", "speed", "tokenizer"}) {
    EXPECT_FALSE(suggests_attention(name)) << name;
  }
}

// What a refusal names can be given to --accept-key.
TEST(ConfigKeys, AreNamedAsTheyStandInTheFile) {
  for (const std::string& name : {std::string("rope_\u00e9\u6ce8"), "rope_" + std::string(200, 'x')}) {
    json j = mla();
    j[name] = 1;
    expect_parts(refusal(j), {"--accept-key \"" + name + "\""});
    EXPECT_THAT(parse(j, {.accept_keys = {name}}).unknown_keys(), testing::ElementsAre(name));
  }
  json j = mla();
  j["rope_\x1b\x7f\u009b"] = 1;
  expect_parts(refusal(j), {"\"rope_\\u001b\\u007f\\u009b\""});
  j = mla();
  j["rope_" + std::string(250, 'x') + "\u00e9 and more"] = 1;
  expect_parts(refusal(j), {"x..."});
}

}  // namespace
}  // namespace strata::test
