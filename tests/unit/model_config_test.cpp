// ModelConfig: official files, presets, rotary tables, round trips, and every value that cannot be.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint_files.h"

namespace strata::test {
namespace {

using nlohmann::json;

json v4() {
  return json::parse(R"({
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "hidden_size": 256, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 128, "o_groups": 2,
    "o_lora_rank": 128, "sliding_window": 128, "compress_ratios": [0, 4, 128], "compress_rope_theta": 160000, "rope_theta": 10000,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 16, "original_max_position_embeddings": 65536, "type": "yarn"},
    "max_position_embeddings": 1048576, "index_head_dim": 128, "index_n_heads": 8, "index_topk": 32, "rms_norm_eps": 1e-06,
    "torch_dtype": "bfloat16",
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
                            "weight_block_size": [128, 128]}})");
}

json v32() {
  return json::parse(R"({
    "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "hidden_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "q_lora_rank": 128, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "rope_theta": 10000.0, "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32,
    "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}, "max_position_embeddings": 8192, "rms_norm_eps": 1e-06,
    "index_n_heads": 8, "index_head_dim": 128, "index_topk": 32})");
}

ModelConfig parse(const json& j) { return ModelConfig::parse(j.dump(), "the/config.json"); }

struct Refusal {
  std::string pointer;  // of the value that is replaced
  json value;           // discarded: the key is removed
  std::vector<std::string> parts;
};
void expect_refusal(json j, const Refusal& r) {
  const json::json_pointer pointer(r.pointer);
  if (r.value.is_discarded()) {
    j.at(pointer.parent_pointer()).erase(pointer.back());
  } else {
    j[pointer] = r.value;
  }
  SCOPED_TRACE(fmt::format("{} = {}", r.pointer, r.value.is_discarded() ? "(removed)" : r.value.dump()));
  const std::string message = message_of(ErrorCode::invalid_file, [&] { parse(j); });
  expect_parts(message, {"the/config.json", pointer.back()});
  expect_parts(message, r.parts);
}

TEST(ModelConfig, ReadsV4) {
  const ModelConfig c = parse(v4());
  EXPECT_EQ(c.architecture, "DeepseekV4ForCausalLM");
  EXPECT_EQ(c.model_type, "deepseek_v4");
  EXPECT_EQ(c.family, ModelFamily::deepseek_v4);
  EXPECT_EQ(c.hidden_size, 256);
  EXPECT_EQ(c.num_attention_heads, 4);
  EXPECT_EQ(c.q_lora_rank, 128);
  EXPECT_EQ(c.o_groups, 2);
  EXPECT_EQ(c.o_lora_rank, 128);
  EXPECT_EQ(c.sliding_window, 128);
  EXPECT_EQ(c.compress_ratios, (std::vector<int32_t>{0, 4, 128}));
  EXPECT_EQ(c.index_topk, 32);
  EXPECT_TRUE(c.has_yarn);
  EXPECT_TRUE(c.fp8_weights);
  EXPECT_TRUE(c.scale_ue8m0);
}

TEST(ModelConfig, ReadsMlaWithAndWithoutIndexerAndQueryLatent) {
  ModelConfig c = parse(v32());
  EXPECT_EQ(c.family, ModelFamily::deepseek_mla);
  EXPECT_EQ(c.kv_lora_rank, 512);
  EXPECT_EQ(c.index_topk, 32);
  EXPECT_FALSE(c.fp8_weights);
  json j = v32();
  for (const char* key : {"index_topk", "index_n_heads", "index_head_dim"}) j.erase(key);
  j["model_type"] = "deepseek_v3";
  j["architectures"] = {"DeepseekV3ForCausalLM"};
  for (const json& none : {json(nullptr), json(0)}) {
    j["q_lora_rank"] = none;
    c = parse(j);
    EXPECT_EQ(c.q_lora_rank, 0);
    EXPECT_EQ(c.index_topk, 0);
  }
  j.erase("q_lora_rank");
  j["model_type"] = "kimi_k2";
  j["architectures"] = {"DeepseekV3ForCausalLM"};
  EXPECT_EQ(parse(j).family, ModelFamily::deepseek_mla);
}

TEST(ModelConfig, RatioOfALayer) {
  json j = v4();
  j["num_nextn_predict_layers"] = 1;
  j["compress_ratios"] = {0, 4, 128, 0, 4};
  const ModelConfig c = parse(j);
  EXPECT_EQ(c.compress_ratio(0), 1);
  EXPECT_EQ(c.compress_ratio(1), 4);
  EXPECT_EQ(c.compress_ratio(2), 128);
  EXPECT_EQ(c.compress_ratio(3), 1) << "an MTP layer sees the window only; no layer has the last entry";
  j["compress_ratios"][3] = 4;
  expect_parts(message_of(ErrorCode::invalid_file, [&] { parse(j); }), {"compress_ratios[3]", "expected 0", "MTP layer 0", "is 4"});
  EXPECT_EQ(parse(v32()).compress_ratio(1), 1);
  expect_parts(message_of(ErrorCode::invalid_argument, [&] { c.compress_ratio(-1); }), {"layer", "-1"});
  expect_parts(message_of(ErrorCode::invalid_argument, [&] { c.skip_topk(-1); }), {"layer", "-1"});
}

TEST(ModelConfig, RotaryTablesOfV4) {
  const ModelConfig c = parse(v4());
  EXPECT_EQ(c.rope(0), RopeConfig{}) << "window-only: base 10000, no YaRN";
  const RopeConfig expected{.dim = 64, .theta = 160000.0, .factor = 16.0, .original_max_position = 65536};
  EXPECT_EQ(c.rope(1), expected);
  EXPECT_EQ(c.rope(2), expected);
  EXPECT_EQ(c.rope(3), RopeConfig{}) << "MTP";
}

TEST(ModelConfig, RotaryTableOfMla) {
  json j = v32();
  EXPECT_EQ(parse(j).rope(0).factor, 40.0);
  EXPECT_EQ(parse(j).rope(0).original_max_position, 4096);
  EXPECT_DOUBLE_EQ(parse(j).rope(0).mscale_gain, 1.0);
  j["rope_scaling"]["mscale_all_dim"] = 0.5;
  EXPECT_DOUBLE_EQ(parse(j).rope(0).mscale_gain, (0.1 * std::log(40.0) + 1) / (0.05 * std::log(40.0) + 1));
  j["rope_scaling"].erase("mscale");
  j["rope_scaling"].erase("mscale_all_dim");
  j["rope_scaling"]["attn_factor"] = 2.0;
  EXPECT_DOUBLE_EQ(parse(j).rope(0).mscale_gain, 2 * (0.1 * std::log(40.0) + 1));
}

TEST(ModelConfig, SoftmaxScaleOfMla) {
  EXPECT_NEAR(preset("v2-lite").softmax_scale(), 0.1147214, 1e-7);
  EXPECT_NEAR(preset("v3").softmax_scale(), 0.1352338, 1e-7);
  json j = v32();
  j["rope_scaling"].erase("mscale_all_dim");
  EXPECT_NEAR(parse(j).softmax_scale(), 0.0721687836, 1e-9);
  j.erase("rope_scaling");
  EXPECT_NEAR(parse(j).softmax_scale(), 0.0721687836, 1e-9);
}

TEST(ModelConfig, PairingOfTheIndexersRotation) {
  json j = v32();
  EXPECT_FALSE(parse(j).indexer_rope_interleave);
  j["indexer_rope_interleave"] = true;
  EXPECT_TRUE(parse(j).indexer_rope_interleave);
  EXPECT_EQ(ModelConfig::parse(parse(j).to_json()), parse(j));
  expect_refusal(j, {"/indexer_rope_interleave", 1, {"true or false", "is 1"}});
}

TEST(ModelConfig, ReadsEverySpellingOfRopeScaling) {
  json j = v32();
  j["rope_scaling"]["rope_type"] = "yarn";
  EXPECT_TRUE(parse(j).has_yarn);
  j["rope_scaling"].erase("type");
  EXPECT_TRUE(parse(j).has_yarn);
  j["rope_scaling"]["rope_type"] = "deepseek_yarn";
  EXPECT_TRUE(parse(j).has_yarn);
  for (const json& none : {json(nullptr), json{{"type", "default"}}, json{{"rope_type", "default"}}}) {
    j["rope_scaling"] = none;
    EXPECT_FALSE(parse(j).has_yarn);
    EXPECT_EQ(parse(j).rope(0).factor, 1.0);
  }
  j.erase("rope_scaling");
  EXPECT_FALSE(parse(j).has_yarn);
}

TEST(ModelConfig, SharedIndexers) {
  json j = v32();
  j["num_hidden_layers"] = 10;
  EXPECT_FALSE(parse(j).skip_topk(7));
  j["index_topk_freq"] = 4;
  ModelConfig c = parse(j);
  const std::vector<bool> expected{false, false, true, true, true, false, true, true, true, false, false};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(c.skip_topk(static_cast<int64_t>(i)), expected[i]) << i;
  j.erase("index_topk_freq");
  j["index_topk_pattern"] = "FSFSFSFSFS";
  c = parse(j);
  EXPECT_FALSE(c.skip_topk(0));
  EXPECT_TRUE(c.skip_topk(1));
  EXPECT_FALSE(c.skip_topk(11)) << "MTP layers have their own indexer";
  EXPECT_EQ(ModelConfig::parse(c.to_json()), c);
}

TEST(ModelConfig, PresetsAreValidAndRoundTrip) {
  for (const std::string& name : preset_names()) {
    const ModelConfig c = preset(name);
    EXPECT_NO_THROW(c.validate()) << name;
    EXPECT_EQ(ModelConfig::parse(c.to_json()), c) << name << "\n" << c.to_json();
  }
  expect_parts(message_of(ErrorCode::invalid_argument, [] { preset("v5"); }),
               {"v4-tiny", "v4-flash", "v4-pro", "v2-lite", "v3", "v3.2", "v5"});
}

TEST(ModelConfig, PresetsHaveThePublishedLayers) {
  const auto count = [](const ModelConfig& c, int32_t ratio) {
    int64_t n = 0;
    for (int64_t i = 0; i < c.num_hidden_layers; ++i) n += c.compress_ratio(i) == ratio;
    return n;
  };
  const ModelConfig flash = preset("v4-flash");
  EXPECT_EQ(flash.compress_ratios.size(), 44u);
  EXPECT_EQ(count(flash, 1), 2);
  EXPECT_EQ(count(flash, 4), 21);
  EXPECT_EQ(count(flash, 128), 20);
  const ModelConfig pro = preset("v4-pro");
  EXPECT_EQ(pro.compress_ratios.size(), 62u);
  EXPECT_EQ(count(pro, 1), 0);
  EXPECT_EQ(count(pro, 4), 30);
  EXPECT_EQ(count(pro, 128), 31);
}

TEST(ModelConfig, ParsedFilesRoundTrip) {
  for (const json& j : {v4(), v32()}) EXPECT_EQ(ModelConfig::parse(parse(j).to_json()), parse(j));
  ModelConfig odd = parse(v4());
  odd.rms_norm_eps = 1.0000000000000002e-6;
  odd.weight_block_size = {64, 256};
  odd.model_type.clear();
  EXPECT_EQ(ModelConfig::parse(odd.to_json()), odd);
}

TEST(ModelConfig, LoadsAFileOrADirectory) {
  const TempDir dir;
  const auto path = dir.write("config.json", v4().dump());
  EXPECT_EQ(ModelConfig::load(dir.path()), parse(v4()));
  EXPECT_EQ(ModelConfig::load(path), parse(v4()));
  expect_parts(message_of(ErrorCode::invalid_file, [&] { ModelConfig::load(dir.path() / "absent"); }), {"absent", "cannot be opened"});
  dir.write("config.json", v4().dump() + std::string(size_t{20} << 20, ' '));
  EXPECT_EQ(ModelConfig::load(dir.path()), parse(v4())) << "as large as a quantiser's list of matrices makes it";
  dir.write("config.json", std::string((size_t{64} << 20) + 1, ' '));
  expect_parts(message_of(ErrorCode::invalid_file, [&] { ModelConfig::load(dir.path()); }), {"config.json", "at most 67108864 bytes"});
  const TempDir other;
  std::filesystem::create_directory(other.path() / "config.json");
  expect_parts(message_of(ErrorCode::invalid_file, [&] { ModelConfig::load(other.path()); }), {"config.json", "cannot be read"});
}

const json kRemoved = json(json::value_t::discarded);

TEST(ModelConfig, RefusesMissingKeys) {
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings", "rms_norm_eps",
                          "rope_theta", "q_lora_rank", "head_dim", "o_groups", "o_lora_rank", "sliding_window", "compress_ratios",
                          "compress_rope_theta", "index_n_heads", "index_head_dim", "index_topk"}) {
    expect_refusal(v4(), {std::string("/") + key, kRemoved, {"expected a", "is missing"}});
    expect_refusal(v4(), {std::string("/") + key, nullptr, {"expected a", "is null"}});
  }
  for (const char* key : {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "index_n_heads", "rope_theta"}) {
    expect_refusal(v32(), {std::string("/") + key, kRemoved, {"is missing"}});
  }
  expect_refusal(v4(), {"/rope_scaling/factor", kRemoved, {"rope_scaling.factor", "is missing"}});
  expect_refusal(v4(), {"/rope_scaling/original_max_position_embeddings", kRemoved, {"is missing"}});
  expect_refusal(v4(), {"/rope_scaling/type", kRemoved, {"\"yarn\"", "is missing"}});
  expect_refusal(v4(), {"/quantization_config/quant_method", kRemoved, {"\"fp8\"", "is missing"}});
}

TEST(ModelConfig, RefusesWrongTypes) {
  const std::vector<Refusal> cases{
      {"/hidden_size", "256", {"expected an integer", "is \"256\""}},
      {"/hidden_size", 256.0, {"expected an integer", "is 256.0"}},
      {"/hidden_size", true, {"expected an integer", "is true"}},
      {"/hidden_size", std::numeric_limits<uint64_t>::max(), {"expected an integer", "is 18446744073709551615"}},
      {"/rms_norm_eps", "nan", {"expected a number", "is \"nan\""}},
      {"/architectures", "DeepseekV4ForCausalLM", {"array", "is \"DeepseekV4ForCausalLM\""}},
      {"/architectures", json::array(), {"array", "is []"}},
      {"/architectures", {1}, {"string", "is [1]"}},
      {"/model_type", 4, {"a string", "is 4"}},
      {"/compress_ratios", 4, {"an array of integers", "is 4"}},
      {"/compress_ratios/1", "4", {"compress_ratios[1]", "an integer", "is \"4\""}},
      {"/rope_scaling", "yarn", {"an object", "is \"yarn\""}},
      {"/rope_scaling/factor", "16", {"rope_scaling.factor", "a number", "is \"16\""}},
      {"/quantization_config", "fp8", {"an object", "is \"fp8\""}},
      {"/quantization_config/weight_block_size", 128, {"two integers", "is 128"}},
      {"/quantization_config/weight_block_size", {128}, {"two integers", "is [128]"}},
  };
  for (Refusal r : cases) {
    if (r.pointer == "/compress_ratios/1") {
      // The message names the entry, not the pointer's last component.
      json j = v4();
      j["compress_ratios"][1] = "4";
      expect_parts(message_of(ErrorCode::invalid_file, [&] { parse(j); }), r.parts);
    } else {
      expect_refusal(v4(), r);
    }
  }
}

TEST(ModelConfig, RefusesImpossibleValuesOfV4) {
  const json huge = 1e300;
  const std::vector<Refusal> cases{
      {"/hidden_size", 0, {"[1, 1048576]", "is 0"}},
      {"/hidden_size", (1 << 20) + 1, {"[1, 1048576]", "is 1048577"}},
      {"/hidden_size", 192, {"multiple of 128", "is 192"}},
      {"/num_hidden_layers", 0, {"is 0"}},
      {"/num_hidden_layers", 4097, {"[1, 4096]", "is 4097"}},
      {"/num_nextn_predict_layers", -1, {"is -1"}},
      {"/num_attention_heads", 0, {"[1, ", "is 0"}},
      {"/num_attention_heads", -4, {"is -4"}},
      {"/num_key_value_heads", 2, {"expected 1", "is 2"}},
      {"/head_dim", 128, {"expected 512", "is 128"}},
      {"/qk_rope_head_dim", 32, {"expected 64", "is 32"}},
      {"/q_lora_rank", 0, {"is 0"}},
      {"/q_lora_rank", 192, {"multiple of 128", "is 192"}},
      {"/o_groups", 0, {"is 0"}},
      {"/o_groups", 3, {"a divisor of num_attention_heads = 4", "is 3"}},
      {"/o_lora_rank", 0, {"is 0"}},
      {"/o_lora_rank", 64, {"multiple of 128", "is 64"}},
      {"/sliding_window", 0, {"is 0"}},
      {"/compress_ratios", {0, 4}, {"at least num_hidden_layers = 3 entries", "is 2"}},
      {"/index_topk", 0, {"[1, 65536]", "is 0"}},
      {"/index_topk", 65537, {"[1, 65536]", "is 65537"}},
      {"/index_n_heads", 0, {"is 0"}},
      {"/index_head_dim", 64, {"expected 128", "is 64"}},
      {"/max_position_embeddings", 0, {"is 0"}},
      {"/rms_norm_eps", 0.0, {"a number in (0, 1]", "is 0"}},
      {"/rms_norm_eps", -1e-6, {"is -1e-06"}},
      {"/rms_norm_eps", 1e-60, {"above 0 in fp32", "is 1e-60"}},
      {"/rope_theta", 1, {"is 1"}},
      {"/rope_theta", huge, {"is 1e+300"}},
      {"/compress_rope_theta", 0, {"is 0"}},
      {"/rope_scaling/factor", 0.5, {"rope_scaling.factor", "is 0.5"}},
      {"/rope_scaling/beta_fast", 0, {"rope_scaling.beta_fast", "is 0"}},
      {"/rope_scaling/original_max_position_embeddings", 0, {"is 0"}},
      {"/rope_scaling/type", "linear", {"\"yarn\" or \"default\"", "is \"linear\""}},
      {"/rope_scaling/rope_type", "default", {"the same as type, \"yarn\"", "is \"default\""}},
      {"/rope_scaling/apply_yarn_scaling", false, {"expected true", "is false"}},
      {"/attention_bias", true, {"expected false", "is true"}},
      {"/quantization_config/quant_method", "", {"a quantiser's name", "is \"\""}},
      {"/quantization_config/fmt", "e5m2", {"\"e4m3\"", "is \"e5m2\""}},
      {"/quantization_config/activation_scheme", "static", {"\"dynamic\"", "is \"static\""}},
      {"/quantization_config/scale_fmt", "e8", {"\"ue8m0\"", "is \"e8\""}},
  };
  for (const Refusal& r : cases) expect_refusal(v4(), r);
  json j = v4();
  j["compress_ratios"][2] = 3;
  expect_parts(message_of(ErrorCode::invalid_file, [&] { parse(j); }), {"compress_ratios[2]", "0, 4 or 128", "is 3"});
  j["compress_ratios"][2] = int64_t{1} << 32;  // must not wrap to 0
  expect_parts(message_of(ErrorCode::invalid_file, [&] { parse(j); }), {"compress_ratios[2]", "0, 4 or 128", "is 4294967296"});
  j = v4();
  j["quantization_config"]["weight_block_size"] = {0, 128};
  expect_parts(message_of(ErrorCode::invalid_file, [&] { parse(j); }), {"weight_block_size[0]", "is 0"});
}

TEST(ModelConfig, RefusesImpossibleValuesOfMla) {
  const std::vector<Refusal> cases{
      {"/kv_lora_rank", 0, {"is 0"}},
      {"/v_head_dim", -1, {"is -1"}},
      {"/qk_rope_head_dim", 63, {"multiple of 2", "is 63"}},
      {"/index_topk", 0, {"is 0"}},
      {"/index_topk", 70000, {"is 70000"}},
      {"/q_lora_rank", nullptr, {"[1, ", "is 0"}},
      {"/q_lora_rank", -128, {"is -128"}},
      {"/index_topk_freq", 0, {"is 0"}},
      {"/index_topk_pattern", "F", {"= 2", "1 entries"}},
      {"/index_topk_pattern", "SF", {"layer 0"}},
  };
  for (const Refusal& r : cases) expect_refusal(v32(), r);
  expect_refusal(v32(), {"/rope_scaling/mscale", -1, {"rope_scaling.mscale", "is -1"}});
}

TEST(ModelConfig, RefusesUnknownModels) {
  json j = v4();
  j["architectures"] = {"LlamaForCausalLM"};
  j["model_type"] = "llama";
  expect_parts(message_of(ErrorCode::invalid_file, [&] { parse(j); }), {"model_type", "deepseek_v4", "llama", "LlamaForCausalLM"});
  j = v32();
  j.erase("architectures");
  j.erase("model_type");
  expect_parts(message_of(ErrorCode::invalid_file, [&] { parse(j); }), {"model_type", "deepseek_v3", "missing"});
  expect_parts(message_of(ErrorCode::invalid_file, [] { parse(json::object()); }), {"model_type", "missing"});
}

// What a terminal would obey, or is longer than a line, is not printed as it is.
TEST(ModelConfig, RefusesTextThatIsNotText) {
  const std::string text = "a\n\x1b[31m" + std::string(10'000, 'b');
  const auto expect_shown = [](const json& j) {
    const std::string message = message_of(ErrorCode::invalid_file, [&] { parse(j); });
    expect_parts(message, {"is \"a\\n\\u001b[31mbbb", "bbb..."});
    EXPECT_LT(message.size(), 400u);
  };
  json j = v4();
  j["architectures"] = {text};
  j["model_type"] = text;
  expect_shown(j);
  j = v4();
  j["rope_scaling"]["type"] = text + "c";
  j["rope_scaling"]["rope_type"] = text;
  expect_shown(j);
}

TEST(ModelConfig, RefusesBrokenSyntax) {
  const auto message = [](const std::string& text) {
    return message_of(ErrorCode::invalid_file, [&] { ModelConfig::parse(text, "the/config.json"); });
  };
  expect_parts(message(""), {"the/config.json", "valid JSON"});
  expect_parts(message("{\"a\": "), {"the/config.json", "valid JSON"});
  expect_parts(message("{\"rms_norm_eps\": NaN}"), {"the/config.json", "valid JSON"});
  expect_parts(message("{\"rms_norm_eps\": 1e999}"), {"the/config.json", "1e999"});
  expect_parts(message("[]"), {"expected an object", "is []"});
  expect_parts(message("{\"a\": 1, \"a\": 2}"), {"\"a\"", "once", "twice"});
  expect_parts(message(std::string(100000, '[')), {"nesting", "64"});
  std::string text = v4().dump();
  for (size_t size = 0; size < text.size(); size += 7) message(text.substr(0, size));
}

TEST(ModelConfig, ValidateChecksValuesThatNoFileCanHave) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -1.0}) {
    ModelConfig c = preset("v4-tiny");
    c.rms_norm_eps = bad;
    expect_parts(message_of(ErrorCode::invalid_file, [&] { c.validate(); }), {"rms_norm_eps", "(0, 1]", fmt::format("is {}", bad)});
    c = preset("v3");
    c.rope_factor = bad;
    expect_parts(message_of(ErrorCode::invalid_file, [&] { c.validate(); }), {"rope_scaling.factor", fmt::format("is {}", bad)});
  }
}

}  // namespace
}  // namespace strata::test
