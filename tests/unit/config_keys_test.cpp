// The table of config.json's keys: every entry does what it says, and a key that it does not have is listed or refused.
#include "checkpoint/config_keys.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "checkpoint_files.h"

namespace strata::test {
namespace {

using nlohmann::json;

// Small models that have every part of their family.
json v4() {
  ModelConfig c = preset("v4-tiny");
  c.num_nextn_predict_layers = 1;
  return json::parse(c.to_json());
}
json mla() {
  ModelConfig c = preset("v3.2-tiny");
  c.index_topk_freq = 1;
  json j = json::parse(c.to_json());
  j.erase("num_key_value_heads");  // it is num_attention_heads, which a test changes
  return j;
}
json base(ModelFamily family) { return family == ModelFamily::deepseek_v4 ? v4() : mla(); }
ModelConfig parse(const json& j, const ConfigOptions& options = {}) { return ModelConfig::parse(j.dump(), "the/config.json", options); }
std::string refusal(const json& j, const ConfigOptions& options = {}) {
  return message_of(ErrorCode::invalid_file, [&] { parse(j, options); });
}

// A small model whose file has the object that keys of this scope stand in.
json base(ModelFamily family, KeyScope scope) {
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

// The key of changes(): its place, with the scope where two share an object.
std::string change_of(const ConfigKey& key) { return (key.scope == KeyScope::quantiser ? "quantiser" : "") + place(key).to_string(); }

// What each honoured key does to a config: another value than the file has gives another config, or an error that names the key.
const std::map<std::string, std::pair<json, std::string>>& changes() {
  static const std::map<std::string, std::pair<json, std::string>> values{
      // key: value, part of the refusal ("": read, and the config differs)
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
      json j = base(family, key.scope);
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
        EXPECT_EQ(parse(j) == parse(base(family, key.scope)), same);
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
      json j = base(family, key.scope);
      for (const json& right : {json::parse(key.value), json(nullptr)}) {
        j[place(key)] = right;
        EXPECT_EQ(parse(j), parse(base(family, key.scope)));
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
        json j = base(family, key.scope);
        j[place(key)] = value;
        EXPECT_EQ(parse(j), parse(base(family, key.scope))) << key.name;
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

// rope_theta and YaRN in rope_parameters, as transformers 5 writes them.
json in_rope_parameters(json j) {
  json parameters = j["rope_scaling"];
  parameters["rope_type"] = parameters["type"];
  parameters.erase("type");
  parameters["rope_theta"] = j["rope_theta"];
  j.erase("rope_scaling");
  j.erase("rope_theta");
  j["rope_parameters"] = parameters;
  return j;
}

TEST(RopeParameters, OfMlaAreFlat) {
  const json j = in_rope_parameters(mla());
  EXPECT_EQ(parse(j), parse(mla()));
  json both = j;
  both["rope_theta"] = 777.0;
  expect_parts(refusal(both), {"rope_parameters.rope_theta", "777", "10000"});
  both["rope_theta"] = mla()["rope_theta"];
  both["rope_scaling"] = mla()["rope_scaling"];
  EXPECT_EQ(parse(both), parse(mla())) << "told twice";
  both["rope_scaling"].erase("beta_fast");
  EXPECT_EQ(parse(both), parse(mla())) << "32 is what is left out";
  both["rope_scaling"]["factor"] = 7.0;
  expect_parts(refusal(both), {"rope_parameters", "rope_scaling"});
  json none = j;
  none["rope_parameters"].erase("rope_theta");
  expect_parts(refusal(none), {"rope_theta", "missing"});
  none = j;
  none["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  EXPECT_FALSE(parse(none).has_yarn);
  EXPECT_EQ(parse(none).rope_theta, 1e6);
  none["rope_parameters"]["factor"] = 4.0;
  expect_parts(refusal(none), {"rope_parameters.factor", "default"});
  json nested = j;
  nested["rope_parameters"] = {{"main", j["rope_parameters"]}, {"compress", j["rope_parameters"]}};
  expect_parts(refusal(nested), {"rope_parameters.main", "V4"});
}

// {main, compress}.
json nested_v4() {
  json j = v4();
  json compress = j["rope_scaling"];
  compress["rope_theta"] = j["compress_rope_theta"];
  compress["attention_factor"] = 1.0;
  j["rope_parameters"] = {{"main", {{"rope_type", "default"}, {"rope_theta", j["rope_theta"]}}}, {"compress", compress}};
  j.erase("rope_scaling");
  return j;
}

TEST(RopeParameters, OfV4AreNested) {
  EXPECT_EQ(parse(nested_v4()), parse(v4()));
  json j = nested_v4();
  j.erase("rope_theta");
  j.erase("compress_rope_theta");
  EXPECT_EQ(parse(j), parse(v4()));
  const auto refuse = [](const char* pointer, const json& value, const std::vector<std::string>& parts) {
    json changed = nested_v4();
    changed[json::json_pointer(pointer)] = value;
    SCOPED_TRACE(pointer);
    expect_parts(refusal(changed), parts);
  };
  refuse("/rope_theta", 777.0, {"rope_parameters.main.rope_theta", "777"});
  refuse("/compress_rope_theta", 777.0, {"rope_parameters.compress.rope_theta", "777"});
  refuse("/rope_parameters/main/rope_type", "yarn", {"rope_parameters.main.factor", "missing"});
  refuse("/rope_parameters/main", v4()["rope_scaling"], {"rope_parameters.main.rope_type", "window"});
  refuse("/rope_parameters/main", 1, {"rope_parameters.main", "an object"});
  refuse("/rope_parameters/compress/attention_factor", 1.277, {"rope_parameters.compress.attention_factor", "expected 1", "1.277"});
  refuse("/rope_parameters/compress/beta_mid", 4, {"rope_parameters.compress.beta_mid"});
  refuse("/rope_parameters/factor", 4, {"rope_parameters.factor", "main and compress"});
  refuse("/rope_scaling", v4()["rope_scaling"], {"rope_scaling", "rope_parameters.compress"});
  json lone = nested_v4();
  lone["rope_parameters"].erase("compress");
  expect_parts(refusal(lone), {"rope_parameters.compress", "missing"});
  // Flat: the compressed layers', whose base is compress_rope_theta.
  json flat = v4();
  flat["rope_parameters"] = flat["rope_scaling"];
  flat.erase("rope_scaling");
  EXPECT_EQ(parse(flat), parse(v4()));
  flat.erase("rope_theta");
  flat["rope_parameters"]["rope_theta"] = 10000.0;
  expect_parts(refusal(flat), {"rope_theta", "missing", "window layers' base", "rope_parameters.rope_theta"});
}

TEST(RopeParameters, PartialRotaryFactor) {
  json j = v4();
  j["partial_rotary_factor"] = 0.125;
  EXPECT_EQ(parse(j), parse(v4()));
  j.erase("qk_rope_head_dim");
  EXPECT_EQ(parse(j), parse(v4()));
  j.erase("partial_rotary_factor");
  EXPECT_EQ(parse(j), parse(v4())) << "V4 has one shape";
  j["partial_rotary_factor"] = 0.25;
  expect_parts(refusal(j), {"qk_rope_head_dim", "64", "128"});
  for (const double odd : {0.1, -1.0, 1e300}) {
    j["partial_rotary_factor"] = odd;
    expect_parts(refusal(j), {"partial_rotary_factor", "head_dim = 512"});
  }
  j = mla();
  j["partial_rotary_factor"] = 1.0;
  EXPECT_EQ(parse(j), parse(mla()));
  j["rope_scaling"]["partial_rotary_factor"] = 0.5;
  expect_parts(refusal(j), {"partial_rotary_factor", "0.5"});
}

TEST(RopeParameters, GainAndRampOfYarn) {
  json j = mla();
  const RopeConfig plain = parse(j).rope(0);
  EXPECT_TRUE(plain.truncate);
  j["rope_scaling"]["attention_factor"] = 0.5;
  EXPECT_EQ(parse(j).rope(0).mscale_gain, 0.5) << "the gain itself, whatever the mscales are";
  EXPECT_EQ(parse(j).softmax_scale(), parse(mla()).softmax_scale());
  j["rope_scaling"]["attn_factor"] = 0.5;
  expect_parts(refusal(j), {"attention_factor", "attn_factor"});
  j = mla();
  j["rope_scaling"]["truncate"] = false;
  const RopeConfig ramp = parse(j).rope(0);
  EXPECT_FALSE(ramp.truncate);
  EXPECT_EQ(ModelConfig::parse(parse(j).to_json()), parse(j));
  // Low 10.24 and high 22.51 of V3, by hand: R ln(4096 / (2 pi n)) / (2 ln 10000). Between them frequencies blend.
  std::vector<float> rounded(32), exact(32);
  rope_frequencies(plain, rounded.data());
  rope_frequencies(ramp, exact.data());
  const double low = 64 * std::log(4096 / (32 * 2 * M_PI)) / (2 * std::log(1e4)),
               high = 64 * std::log(4096 / (2 * M_PI)) / (2 * std::log(1e4));
  for (int i = 0; i < 32; ++i) {
    const double f = std::pow(1e4, -2.0 * i / 64), blend = std::clamp((i - low) / (high - low), 0.0, 1.0);
    EXPECT_NEAR(exact[static_cast<size_t>(i)] / (f / 40 * blend + f * (1 - blend)), 1.0, 1e-6) << i;
  }
  EXPECT_NE(rounded[15], exact[15]);
}

TEST(IndexerTypes, AgreeWithTheOtherForms) {
  json j = mla();
  j["indexer_types"] = {"full", "full", "shared", "full"};
  const ModelConfig c = parse(j);
  EXPECT_TRUE(c.skip_topk(2));
  EXPECT_FALSE(c.skip_topk(3));
  EXPECT_EQ(ModelConfig::parse(c.to_json()), c);
  j["index_topk_freq"] = 2;
  EXPECT_EQ(parse(j), c);
  j["index_topk_freq"] = 3;
  expect_parts(refusal(j), {"indexer_types[3]", "index_topk_freq"});
  j.erase("index_topk_freq");
  j["index_topk_pattern"] = "FFSF";
  EXPECT_EQ(parse(j), c);
  j["index_topk_pattern"] = "FFFF";
  expect_parts(refusal(j), {"indexer_types[2]", "index_topk_pattern"});
  j.erase("indexer_types");
  j["index_topk_pattern"] = "FFSF";
  j["index_topk_freq"] = 2;
  EXPECT_EQ(parse(j), c);
  j["index_topk_freq"] = 1;
  expect_parts(refusal(j), {"index_topk_pattern[2]", "index_topk_freq"});
  j.erase("index_topk_freq");
  for (const char* pattern : {"FXSF", "ffsf", "", "FFS"}) {
    j["index_topk_pattern"] = pattern;
    expect_parts(refusal(j), {"index_topk_pattern"});
  }
  j.erase("index_topk_pattern");
  for (const json& bad :
       {json("FFSF"), json({"full", "full", "half", "full"}), json({"full"}), json({"shared", "full", "full", "full"}), json(1)}) {
    j["indexer_types"] = bad;
    expect_parts(refusal(j), {bad == json({"shared", "full", "full", "full"}) ? "layer 0" : "indexer_types"});
  }
}

TEST(Indexer, IsThereAsAWhole) {
  json j = mla();
  j["index_topk"] = nullptr;
  expect_parts(refusal(j), {"index_topk", "deepseek_v32", "null"});
  j.erase("index_topk");
  expect_parts(refusal(j), {"index_topk", "missing"});
  json dense = json::parse(preset("v3-tiny").to_json());
  for (const auto& [key, value] :
       {std::pair("index_n_heads", json(4)), std::pair("index_head_dim", json(128)), std::pair("index_topk_pattern", json("FFFF")),
        std::pair("index_topk_freq", json(1)), std::pair("index_skip_topk_offset", json(2)), std::pair("indexer_types", json::array()),
        std::pair("indexer_rope_interleave", json(false))}) {
    json odd = dense;
    odd[key] = value;
    expect_parts(refusal(odd), {key, "without index_topk"});
    odd[key] = nullptr;
    EXPECT_EQ(parse(odd), preset("v3-tiny"));
  }
}

TEST(IndexerRope, HasItsDefaultByModel) {
  json j = mla();
  j.erase("indexer_rope_interleave");
  EXPECT_FALSE(parse(j).indexer_rope_interleave);
  j["model_type"] = "glm_moe_dsa";
  j["architectures"] = {"GlmMoeDsaForCausalLM"};
  EXPECT_TRUE(parse(j).indexer_rope_interleave);
  j["indexer_rope_interleave"] = false;
  EXPECT_FALSE(parse(j).indexer_rope_interleave);
  EXPECT_EQ(ModelConfig::parse(parse(j).to_json()), parse(j));
}

TEST(LayerTypes, OfMlaAreOfOneKind) {
  json j = mla();
  const auto layers = j["num_hidden_layers"].get<size_t>();
  for (const char* kind : {"indexed_attention", "deepseek_sparse_attention"}) {
    j["layer_types"] = std::vector<std::string>(layers, kind);
    EXPECT_EQ(parse(j), parse(mla()));
  }
  for (const char* kind : {"sliding_attention", "full_attention"}) {
    j["layer_types"][1] = kind;
    expect_parts(refusal(j), {"layer_types[1]", kind});
  }
  j = json::parse(preset("v3-tiny").to_json());
  j["num_nextn_predict_layers"] = 1;
  const ModelConfig dense = parse(j);
  const auto dense_layers = static_cast<size_t>(dense.num_hidden_layers);
  for (const size_t entries : {dense_layers, dense_layers + 1}) {
    j["layer_types"] = std::vector<std::string>(entries, "full_attention");
    EXPECT_EQ(parse(j), dense);
  }
  for (const size_t entries : {dense_layers - 1, dense_layers + 2}) {
    j["layer_types"] = std::vector<std::string>(entries, "full_attention");
    expect_parts(refusal(j), {"layer_types", "num_hidden_layers", fmt::format("{} entries", entries)});
  }
  j["layer_types"] = std::vector<std::string>(dense_layers, "indexed_attention");
  expect_parts(refusal(j), {"layer_types[0]", "full_attention"});
}

TEST(LayerTypes, OfV4AgreeWithCompressRatios) {
  json j = v4();
  j["layer_types"] = {"sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"};
  EXPECT_EQ(parse(j), parse(v4()));
  j["layer_types"][1] = "heavily_compressed_attention";
  expect_parts(refusal(j), {"layer_types[1]", "compress_ratios[1] = 4"});
  json few = v4();
  few["layer_types"] = {"sliding_attention"};
  expect_parts(refusal(few), {"layer_types", "num_hidden_layers = 3", "1 entries"});
  j.erase("compress_ratios");
  EXPECT_EQ(parse(j).compress_ratio(1), 128);
  j["layer_types"] = {"sliding_attention"};
  expect_parts(refusal(j), {"layer_types", "num_hidden_layers = 3"});
  j.erase("layer_types");
  expect_parts(refusal(j), {"compress_ratios", "missing"});
}

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
