// Config files of every supported model, as published and as transformers writes them: what attention they give, that the spellings of a
// model say the same, and that models that only look alike are refused by name.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "checkpoint_files.h"
#include "strata/attention.h"
#include "test_data.h"

namespace strata::test {
namespace {

std::filesystem::path config_file(const std::string& name) { return test::data_folder() / "configs" / (name + ".json"); }
ModelConfig load(const std::string& name) { return ModelConfig::load(config_file(name)); }

struct Published {
  const char* file;
  const char* model_type;
  int64_t q_lora_rank, nope, value;
  double theta, softmax_scale, yarn_factor;
  int64_t index_topk;
  bool indexer_interleaved, fp8;
};

class PublishedMla : public testing::TestWithParam<Published> {};

TEST_P(PublishedMla, GivesTheModelsAttention) {
  const Published& p = GetParam();
  const ModelConfig c = load(p.file);
  EXPECT_EQ(c.family, ModelFamily::deepseek_mla);
  EXPECT_EQ(c.model_type, p.model_type);
  EXPECT_EQ(c.kv_lora_rank, 512);
  EXPECT_EQ(c.qk_rope_head_dim, 64);
  EXPECT_EQ(c.q_lora_rank, p.q_lora_rank);
  EXPECT_EQ(c.qk_nope_head_dim, p.nope);
  EXPECT_EQ(c.v_head_dim, p.value);
  EXPECT_EQ(c.rope_theta, p.theta);
  EXPECT_EQ(c.rope(0).factor, p.yarn_factor);
  EXPECT_NEAR(c.rope(0).mscale_gain, 1.0, 1e-12);
  EXPECT_NEAR(c.softmax_scale(), p.softmax_scale, 1e-7);
  EXPECT_EQ(c.index_topk, p.index_topk);
  EXPECT_EQ(c.indexer_rope_interleave, p.indexer_interleaved);
  EXPECT_EQ(c.fp8_weights, p.fp8);
  EXPECT_THAT(c.unknown_keys(), testing::IsEmpty());
  // What `strata plan` and a layer query.
  LayerOptions options;
  options.limits.max_model_len = 4096;
  EXPECT_GE(cache_groups_of_layer(c, options, 0).size(), c.index_topk > 0 ? 2u : 1u);
  EXPECT_THAT(default_layers().names(), testing::Contains(testing::AnyOf(c.model_type, c.architecture)));
}

constexpr double kPlain192 = 0.0721687836;  // 192^-0.5
constexpr double kPlain256 = 0.0625;
constexpr Published kPublished[] = {
    {"deepseek_v2_lite", "deepseek_v2", 0, 128, 128, 1e4, 0.1147214, 40, 0, false, false},
    {"deepseek_v2_lite.transformers", "deepseek_v2", 0, 128, 128, 1e4, 0.1147214, 40, 0, false, false},
    {"deepseek_v3", "deepseek_v3", 128, 128, 128, 1e4, 0.1352338, 40, 0, false, true},
    {"deepseek_v3.transformers", "deepseek_v3", 128, 128, 128, 1e4, 0.1352338, 40, 0, false, true},
    {"deepseek_v3_2", "deepseek_v32", 128, 128, 128, 1e4, 0.1352338, 40, 2048, false, true},
    {"deepseek_v3_2.transformers", "deepseek_v32", 128, 128, 128, 1e4, 0.1352338, 40, 2048, false, true},
    {"kimi_k2_thinking", "kimi_k2", 128, 128, 128, 5e4, 0.1446796, 64, 0, false, false},
    {"kimi_k2_5", "kimi_k2", 128, 128, 128, 5e4, 0.1446796, 64, 0, false, false},
    {"glm_5", "glm_moe_dsa", 128, 192, 256, 1e6, kPlain256, 1, 2048, true, false},
    {"glm_5_2", "glm_moe_dsa", 128, 192, 256, 8e6, kPlain256, 1, 2048, true, false},
    {"glm_5_2.transformers", "glm_moe_dsa", 128, 192, 256, 8e6, kPlain256, 1, 2048, true, false},
    {"glm_4_7_flash", "glm4_moe_lite", 128, 192, 256, 1e6, kPlain256, 1, 0, false, false},
    {"glm_4_7_flash.transformers", "glm4_moe_lite", 128, 192, 256, 1e6, kPlain256, 1, 0, false, false},
    {"youtu_llm_2b", "youtu", 128, 128, 128, 1.6e6, kPlain192, 1, 0, false, false},
    {"youtu_llm_2b.remote_code", "youtu_llm", 128, 128, 128, 1.6e6, kPlain192, 1, 0, false, false},
    {"a_x_k1", "AXK1", 128, 128, 128, 1e4, 0.0935652, 4, 0, false, false},
    {"a_x_k1.transformers", "axk1", 128, 128, 128, 1e4, 0.0935652, 4, 0, false, false},
};
INSTANTIATE_TEST_SUITE_P(Files, PublishedMla, testing::ValuesIn(kPublished), [](const testing::TestParamInfo<Published>& test) {
  std::string name = test.param.file;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

TEST(PublishedConfigs, V4) {
  for (const char* file : {"deepseek_v4_flash", "deepseek_v4_flash.transformers"}) {
    SCOPED_TRACE(file);
    const ModelConfig c = load(file);
    EXPECT_EQ(c.family, ModelFamily::deepseek_v4);
    EXPECT_EQ(c.qk_rope_head_dim, 64);
    EXPECT_EQ(c.compress_ratio(0), 1);
    EXPECT_EQ(c.compress_ratio(1), 4);
    EXPECT_EQ(c.compress_ratio(2), 128);
    EXPECT_EQ(c.compress_ratio(3), 1);
    EXPECT_EQ(c.rope(0), RopeConfig{});
    EXPECT_EQ(c.rope(1), (RopeConfig{.dim = 64, .theta = 160000.0, .factor = 16.0, .original_max_position = 65536}));
    EXPECT_TRUE(c.scale_ue8m0);
    EXPECT_THAT(c.unknown_keys(), testing::IsEmpty());
  }
}

TEST(PublishedConfigs, SharedIndexersOfGlm52) {
  const std::vector<bool> shared{false, false, false, true, true, true, false, true};
  for (const char* file : {"glm_5_2", "glm_5_2.transformers"}) {
    SCOPED_TRACE(file);
    const ModelConfig c = load(file);
    for (size_t i = 0; i < shared.size(); ++i) EXPECT_EQ(c.skip_topk(static_cast<int64_t>(i)), shared[i]) << i;
  }
  EXPECT_FALSE(load("glm_5").skip_topk(3));
}

// The same model in two spellings is the same config, hence the same bits.
TEST(PublishedConfigs, SpellingsOfAModelAreTheSameConfig) {
  for (const char* model :
       {"deepseek_v2_lite", "deepseek_v3", "deepseek_v3_2", "glm_5_2", "glm_4_7_flash", "a_x_k1", "deepseek_v4_flash"}) {
    SCOPED_TRACE(model);
    ModelConfig published = load(model), saved = load(std::string(model) + ".transformers");
    published.num_nextn_predict_layers = saved.num_nextn_predict_layers;  // some of transformers' classes drop the key
    published.model_type = saved.model_type;
    published.compress_ratios.resize(saved.compress_ratios.size());
    EXPECT_EQ(published, saved);
  }
}

TEST(PublishedConfigs, EveryFileRoundTrips) {
  for (const auto& entry : std::filesystem::directory_iterator(test::data_folder() / "configs")) {
    if (entry.path().extension() != ".json" || entry.path().stem() == "a_x_k2") continue;
    SCOPED_TRACE(entry.path().string());
    const ModelConfig c = ModelConfig::load(entry.path());
    EXPECT_EQ(ModelConfig::parse(c.to_json()), c);
  }
}

TEST(PublishedConfigs, LookalikesAreRefusedByName) {
  expect_parts(message_of(ErrorCode::invalid_file, [] { load("a_x_k2"); }),
               {"a_x_k2.json", "model_type", "glm_moe_dsa", "axk2", "AXK2ForCausalLM", "gated norms"});
  for (const char* type : {"deepseek_v41", "hy_v4", "dots3_note_text", "glm5_next_text", "kimi_linear", "bailing_hybrid", "longcat_flash",
                           "minicpm3", "mistral4", "mistral_large4_text"}) {
    const std::string json = fmt::format(R"({{"model_type": "{}", "num_attention_heads": 4, "kv_lora_rank": 512}})", type);
    expect_parts(message_of(ErrorCode::invalid_file, [&] { ModelConfig::parse(json); }), {"model_type", type, "whose attention has"});
  }
}

// Names of different models contradict each other; those of one model's heads do not.
TEST(PublishedConfigs, NamesAreOfOneModel) {
  const auto with = [](const char* type, const std::vector<std::string>& architectures) {
    auto j = nlohmann::json::parse(preset("v3-tiny").to_json());
    j["model_type"] = type;
    j["architectures"] = architectures;
    return j.dump();
  };
  for (const char* other :
       {"KimiLinearForCausalLM", "LongcatFlashForCausalLM", "DeepseekV32ForCausalLM", "OtherForCausalLM", "DeepseekV3"}) {
    for (const auto& names : {std::vector<std::string>{other}, {"DeepseekV3ForCausalLM", other}}) {
      expect_parts(message_of(ErrorCode::invalid_file, [&] { ModelConfig::parse(with("deepseek_v3", names)); }),
                   {"architectures", "deepseek_v3", "DeepseekV3ForCausalLM", other});
    }
  }
  for (const char* head : {"DeepseekV3ForSequenceClassification", "DeepseekV3Model", "DeepseekV3ForCausalLMNextN"}) {
    EXPECT_EQ(ModelConfig::parse(with("deepseek_v3", {head})).architecture, head);
  }
  for (const char* type : {"foo", "kimi_linear2", "longcat_flash_ngram"}) {
    expect_parts(message_of(ErrorCode::invalid_file, [&] { ModelConfig::parse(with(type, {"DeepseekV3ForCausalLM"})); }),
                 {"model_type", type, "DeepseekV3ForCausalLM"});
  }
  const auto around = [](const char* key, const char* value) {
    return fmt::format(R"({{"{}": {}, "text_config": {}}})", key, value, preset("v3-tiny").to_json());
  };
  for (const auto& [key, value] :
       {std::pair("model_type", "\"longcat_flash\""), std::pair("model_type", "\"deepseek_v4\""),
        std::pair("architectures", "[\"LongcatFlashForCausalLM\"]"), std::pair("architectures", "[\"DeepseekV4ForCausalLM\"]")}) {
    expect_parts(message_of(ErrorCode::invalid_file, [&, key = key, value = value] { ModelConfig::parse(around(key, value)); }),
                 {key, "text_config", "deepseek_v3"});
  }
  for (const auto& [key, value] :
       {std::pair("model_type", "\"kimi_vl\""), std::pair("architectures", "[\"KimiVLForConditionalGeneration\"]")}) {
    EXPECT_EQ(ModelConfig::parse(around(key, value)), preset("v3-tiny"));
  }
}

// A config with the keys of latent attention and the name of a caller's own model can be read; the library has no layer for it.
TEST(PublishedConfigs, UnknownModelsHaveNoLayers) {
  ModelConfig c = preset("v3-tiny");
  c.architecture = "OtherForCausalLM";
  c.model_type = "other";
  const std::string json = c.to_json();
  expect_parts(message_of(ErrorCode::invalid_file, [&] { ModelConfig::parse(json, "config.json", {.own_models = {"OtherForCausalLM"}}); }),
               {"model_type", "other"});
  c = ModelConfig::parse(json, "config.json", {.own_models = {"other", "OtherForCausalLM"}});
  expect_parts(message_of(ErrorCode::unsupported, [&] { static_cast<void>(cache_groups_of_layer(c, {}, 0)); }),
               {"other", "OtherForCausalLM", "glm_moe_dsa"});
}

std::string read(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// README.md's matrix is compared with the command, by tests/cli/support_matrix.
TEST(SupportedModels, AreThoseOfTheDocument) {
  std::istringstream document(read(test::data_folder().parent_path() / "docs/supported-models.md"));
  std::vector<std::string> rows;
  bool in_table = false;
  for (std::string line; std::getline(document, line);) {
    if (line.starts_with("| model | `model_type` | architecture |")) in_table = true;
    if (!line.starts_with("|")) in_table = false;
    if (in_table) rows.push_back(line);
  }
  ASSERT_GT(rows.size(), 2u);
  for (const SupportedModel& m : supported_models()) {
    const auto count = std::count_if(rows.begin(), rows.end(), [&](const std::string& row) {
      return row.find(fmt::format("`{}`", m.model_type)) != std::string::npos &&
             row.find(fmt::format("| `{}` |", m.architecture)) != std::string::npos;
    });
    EXPECT_EQ(count, 1) << m.model_type << " " << m.architecture;
  }
}

TEST(SupportedModels, HaveALayerAndATestFile) {
  std::set<std::string> tested;
  for (const auto& entry : std::filesystem::directory_iterator(test::data_folder() / "configs")) {
    if (entry.path().extension() == ".json" && entry.path().stem() != "a_x_k2") tested.insert(ModelConfig::load(entry.path()).model_type);
  }
  const std::vector<std::string> layers = default_layers().names();
  for (const SupportedModel& m : supported_models()) {
    EXPECT_THAT(tested, testing::Contains(std::string(m.model_type)));
    EXPECT_THAT(layers, testing::Contains(std::string(m.model_type)));
    EXPECT_THAT(layers, testing::Contains(std::string(m.architecture)));
  }
}

}  // namespace
}  // namespace strata::test
