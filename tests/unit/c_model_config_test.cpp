// Model configs of the C API: the values of the C++ ones, and every wrong use.
#include "c_calls.h"

#include <array>
#include <string>

#include "checkpoint_files.h"
#include "strata/model_config.h"
#include "test_data.h"

namespace strata {
namespace {

using test::OwnedConfig;
using ::testing::HasSubstr;

std::string json_of(strata_model_config config) {
  int64_t needed = 0;
  EXPECT_DONE(strata_model_config_to_json(config, nullptr, 0, &needed));
  std::string text(static_cast<size_t>(needed), 'x');
  EXPECT_DONE(strata_model_config_to_json(config, text.data(), needed, nullptr));
  EXPECT_EQ(text.find('\0'), text.size() - 1);
  text.pop_back();
  return text;
}

TEST(CModelConfig, EveryPresetIsTheCxxOne) {
  ASSERT_EQ(strata_num_presets(), std::ssize(preset_names()));
  for (int64_t i = 0; i < strata_num_presets(); ++i) {
    const char* name = nullptr;
    ASSERT_DONE(strata_preset_name(i, &name));
    EXPECT_EQ(name, preset_names()[static_cast<size_t>(i)]);
    const OwnedConfig config = test::c_preset(name);
    EXPECT_EQ(json_of(config), preset(name).to_json()) << name;
  }
}

TEST(CModelConfig, InfoHasEveryField) {
  for (const std::string& name : preset_names()) {
    const ModelConfig want = preset(name);
    const OwnedConfig config = test::c_preset(name.c_str());
    strata_model_info info = strata_model_info_default();
    ASSERT_DONE(strata_model_config_get_info(config, &info));
    EXPECT_EQ(info.struct_size, sizeof info);
    // A config with the fields of the info is the config.
    ModelConfig got = want;
    got.architecture = info.architecture;
    got.model_type = info.model_type;
    got.family = static_cast<ModelFamily>(info.family);
    got.hidden_size = info.hidden_size;
    got.num_hidden_layers = info.num_hidden_layers;
    got.num_nextn_predict_layers = info.num_nextn_predict_layers;
    got.num_attention_heads = info.num_attention_heads;
    got.q_lora_rank = info.q_lora_rank;
    got.max_position_embeddings = info.max_position_embeddings;
    got.rms_norm_eps = info.rms_norm_eps;
    got.rope_theta = info.rope_theta;
    got.has_yarn = info.has_yarn != 0;
    got.rope_factor = info.rope_factor;
    got.rope_original_max_position = info.rope_original_max_position;
    got.rope_beta_fast = info.rope_beta_fast;
    got.rope_beta_slow = info.rope_beta_slow;
    got.rope_mscale = info.rope_mscale;
    got.rope_mscale_all_dim = info.rope_mscale_all_dim;
    got.rope_attn_factor = info.rope_attn_factor;
    EXPECT_EQ(info.rope_attention_factor, nullptr);
    got.rope_truncate = info.rope_truncate != 0;
    got.head_dim = info.head_dim;
    got.qk_rope_head_dim = info.qk_rope_head_dim;
    got.o_groups = info.o_groups;
    got.o_lora_rank = info.o_lora_rank;
    got.sliding_window = info.sliding_window;
    got.compress_rope_theta = info.compress_rope_theta;
    got.compress_ratios = {info.compress_ratios, info.compress_ratios + info.num_compress_ratios};
    got.index_n_heads = info.index_n_heads;
    got.index_head_dim = info.index_head_dim;
    got.index_topk = info.index_topk;
    got.index_topk_pattern = info.index_topk_pattern;
    got.index_topk_freq = info.index_topk_freq;
    got.index_skip_topk_offset = info.index_skip_topk_offset;
    got.indexer_rope_interleave = info.indexer_rope_interleave != 0;
    got.kv_lora_rank = info.kv_lora_rank;
    got.qk_nope_head_dim = info.qk_nope_head_dim;
    got.v_head_dim = info.v_head_dim;
    got.fp8_weights = info.fp8_weights != 0;
    got.scale_ue8m0 = info.scale_ue8m0 != 0;
    got.weight_block_size = {info.weight_block_size[0], info.weight_block_size[1]};
    got.other_quant_method = info.other_quant_method;
    EXPECT_EQ(got, want) << name;
    EXPECT_EQ(info.hidden_size, want.hidden_size);
  }
}

TEST(CModelConfig, LayersAndScalesAreTheCxxOnes) {
  for (const char* name : {"v4-tiny", "v3.2-tiny", "v3-tiny"}) {
    const ModelConfig want = preset(name);
    const OwnedConfig config = test::c_preset(name);
    for (int64_t layer = 0; layer < want.num_hidden_layers + want.num_nextn_predict_layers; ++layer) {
      int32_t ratio = 0, skip = 7;
      EXPECT_DONE(strata_model_config_compress_ratio(config, layer, &ratio));
      EXPECT_EQ(ratio, want.compress_ratio(layer));
      EXPECT_DONE(strata_model_config_skip_topk(config, layer, &skip));
      EXPECT_EQ(skip, want.skip_topk(layer));
      strata_rope_config rope = strata_rope_config_default();
      EXPECT_DONE(strata_model_config_rope(config, layer, &rope));
      EXPECT_EQ((RopeConfig{rope.dim, rope.theta, rope.factor, rope.original_max_position, rope.beta_fast, rope.beta_slow,
                            rope.truncate != 0, rope.mscale_gain}),
                want.rope(layer));
    }
    double scale = -1;
    if (want.family == ModelFamily::deepseek_mla) {
      EXPECT_DONE(strata_model_config_softmax_scale(config, &scale));
      EXPECT_EQ(scale, want.softmax_scale());
    } else {
      EXPECT_FAILS(strata_model_config_softmax_scale(config, &scale), STRATA_INVALID_ARGUMENT, "expected a model of MLA, is deepseek_v4");
      EXPECT_EQ(scale, -1);
    }
  }
}

TEST(CModelConfig, LoadsAFileADirectoryAndAText) {
  const std::string directory = test::golden_folder("mla_v32").string();
  const std::string want = ModelConfig::load(directory).to_json();
  OwnedConfig config, of_file, of_text;
  ASSERT_DONE(strata_model_config_load(directory.c_str(), nullptr, &config));
  ASSERT_DONE(strata_model_config_load((directory + "/config.json").c_str(), nullptr, &of_file));
  ASSERT_DONE(strata_model_config_parse(want.c_str(), nullptr, nullptr, &of_text));
  for (const strata_model_config c : {strata_model_config(config), strata_model_config(of_file), strata_model_config(of_text)}) {
    EXPECT_EQ(json_of(c), want);
  }
}

TEST(CModelConfig, OptionsAreThoseOfTheCxxReader) {
  std::string json = preset("v3-tiny").to_json();
  json.insert(json.find('{') + 1, "\"attn_gate\": 1, \"vision_start_id\": 2,");
  OwnedConfig config;
  EXPECT_FAILS(strata_model_config_parse(json.c_str(), "the/config.json", nullptr, &config), STRATA_INVALID_FILE, "attn_gate");
  EXPECT_THAT(strata_last_error(), HasSubstr("the/config.json"));
  EXPECT_EQ(strata_model_config(config).value, 0u) << "an error writes no result";

  const char* const keys[] = {"attn_gate"};
  strata_config_options options = strata_config_options_default();
  options.accept_keys = keys;
  options.num_accept_keys = 1;
  ASSERT_DONE(strata_model_config_parse(json.c_str(), nullptr, &options, &config));
  std::array<const char*, 2> unknown{};
  int64_t count = 0;
  EXPECT_DONE(strata_model_config_unknown_keys(config, nullptr, 0, &count));
  EXPECT_EQ(count, 2);
  EXPECT_DONE(strata_model_config_unknown_keys(config, unknown.data(), 1, nullptr));
  EXPECT_STREQ(unknown[0], "attn_gate");
  EXPECT_EQ(unknown[1], nullptr) << "capacity 1";
  EXPECT_DONE(strata_model_config_unknown_keys(config, unknown.data(), 2, nullptr));
  EXPECT_STREQ(unknown[1], "vision_start_id");

  std::string own = preset("v3-tiny").to_json();
  own.replace(own.find("deepseek_v3"), 11, "my_very_own");
  own.replace(own.find("DeepseekV3ForCausalLM"), 21, "MyVeryOwnForCausalLM_");
  OwnedConfig of_own;
  EXPECT_FAILS(strata_model_config_parse(own.c_str(), nullptr, nullptr, &of_own), STRATA_INVALID_FILE, "my_very_own");
  const char* const models[] = {"my_very_own", "MyVeryOwnForCausalLM_"};
  options = strata_config_options_default();
  options.own_models = models;
  options.num_own_models = 2;
  EXPECT_DONE(strata_model_config_parse(own.c_str(), nullptr, &options, &of_own));
}

TEST(CModelConfig, SupportedModelsAreTheCxxOnes) {
  const auto want = supported_models();
  ASSERT_EQ(strata_num_supported_models(), std::ssize(want));
  for (int64_t i = 0; i < strata_num_supported_models(); ++i) {
    strata_supported_model model = strata_supported_model_default();
    ASSERT_DONE(strata_supported_model_get(i, &model));
    const SupportedModel& m = want[static_cast<size_t>(i)];
    EXPECT_EQ(model.model_type, m.model_type);
    EXPECT_EQ(model.architecture, m.architecture);
    EXPECT_EQ(model.family, static_cast<int32_t>(m.family));
    EXPECT_EQ(model.releases, m.releases);
  }
  strata_supported_model model = strata_supported_model_default();
  for (const int64_t index : {int64_t{-1}, strata_num_supported_models()}) {
    EXPECT_FAILS(strata_supported_model_get(index, &model), STRATA_INVALID_ARGUMENT, "index: expected 0 to");
  }
  EXPECT_EQ(model.model_type, nullptr);
  EXPECT_FAILS(strata_supported_model_get(0, nullptr), STRATA_INVALID_ARGUMENT, "model: expected a strata_supported_model, is null");
}

TEST(CModelConfig, WrongTextsAndFiles) {
  OwnedConfig config;
  EXPECT_FAILS(strata_model_config_load("/no/such/folder", nullptr, &config), STRATA_INVALID_FILE, "/no/such/folder");
  EXPECT_FAILS(strata_model_config_load(nullptr, nullptr, &config), STRATA_INVALID_ARGUMENT, "path: expected a text, is null");
  EXPECT_FAILS(strata_model_config_parse("{", nullptr, nullptr, &config), STRATA_INVALID_FILE, "config.json");
  EXPECT_FAILS(strata_model_config_parse("\xFF\xFE", nullptr, nullptr, &config), STRATA_INVALID_FILE, "config.json");
  EXPECT_FAILS(strata_model_config_parse("", "o", nullptr, &config), STRATA_INVALID_FILE, "o");
  EXPECT_FAILS(strata_model_config_parse("{}", "o", nullptr, &config), STRATA_INVALID_FILE, "o");
  EXPECT_FAILS(strata_model_config_parse(nullptr, nullptr, nullptr, &config), STRATA_INVALID_ARGUMENT, "json: expected a text, is null");
  EXPECT_FAILS(strata_model_config_preset("v5", &config), STRATA_INVALID_ARGUMENT, "preset: expected one of v4-tiny");
  EXPECT_FAILS(strata_model_config_preset(nullptr, &config), STRATA_INVALID_ARGUMENT, "name: expected a text, is null");
  const test::TempDir directory;
  const std::string file = directory.write("config.json", "{\"hidden_size\": -1}").string();
  EXPECT_FAILS(strata_model_config_load(file.c_str(), nullptr, &config), STRATA_INVALID_FILE, file);
  EXPECT_EQ(strata_model_config(config).value, 0u);
}

TEST(CModelConfig, WrongArguments) {
  const OwnedConfig config = test::c_preset("v4-tiny");
  const char* name = nullptr;
  EXPECT_FAILS(strata_model_config_preset("v3", nullptr), STRATA_INVALID_ARGUMENT, "config: expected a pointer, is null");
  EXPECT_FAILS(strata_model_config_load(".", nullptr, nullptr), STRATA_INVALID_ARGUMENT, "config: expected a pointer, is null");
  EXPECT_FAILS(strata_preset_name(-1, &name), STRATA_INVALID_ARGUMENT, "index: expected 0 to");
  EXPECT_FAILS(strata_preset_name(strata_num_presets(), &name), STRATA_INVALID_ARGUMENT, "index: expected 0 to");
  EXPECT_FAILS(strata_preset_name(0, nullptr), STRATA_INVALID_ARGUMENT, "name: expected a pointer, is null");
  EXPECT_EQ(name, nullptr);
  EXPECT_FAILS(strata_model_config_get_info(config, nullptr), STRATA_INVALID_ARGUMENT, "info: expected a strata_model_info, is null");
  EXPECT_FAILS(strata_model_config_to_json(config, nullptr, 5, nullptr), STRATA_INVALID_ARGUMENT, "expected a buffer");
  EXPECT_FAILS(strata_model_config_to_json(config, nullptr, -1, nullptr), STRATA_INVALID_ARGUMENT, "size is -1");
  EXPECT_FAILS(strata_model_config_unknown_keys(config, nullptr, 3, nullptr), STRATA_INVALID_ARGUMENT, "keys: expected an array of 3");
  EXPECT_FAILS(strata_model_config_unknown_keys(config, &name, -1, nullptr), STRATA_INVALID_ARGUMENT,
               "capacity of keys: expected at least 0");
  int32_t value = 7;
  for (const int64_t layer : {int64_t{-1}, int64_t{1000}}) {
    EXPECT_FAILS(strata_model_config_compress_ratio(config, layer, &value), STRATA_INVALID_ARGUMENT, "layer must be in [0, ");
    EXPECT_FAILS(strata_model_config_skip_topk(config, layer, &value), STRATA_INVALID_ARGUMENT, "layer must be in [0, ");
    strata_rope_config rope = strata_rope_config_default();
    EXPECT_FAILS(strata_model_config_rope(config, layer, &rope), STRATA_INVALID_ARGUMENT, "layer must be in [0, ");
  }
  EXPECT_EQ(value, 7);
  EXPECT_FAILS(strata_model_config_compress_ratio(config, 0, nullptr), STRATA_INVALID_ARGUMENT, "ratio: expected a pointer, is null");
  EXPECT_FAILS(strata_model_config_skip_topk(config, 0, nullptr), STRATA_INVALID_ARGUMENT, "skip: expected a pointer, is null");
  EXPECT_FAILS(strata_model_config_rope(config, 0, nullptr), STRATA_INVALID_ARGUMENT, "rope: expected a strata_rope_config, is null");
  EXPECT_FAILS(strata_model_config_softmax_scale(config, nullptr), STRATA_INVALID_ARGUMENT, "scale: expected a pointer, is null");
  strata_config_options options = strata_config_options_default();
  OwnedConfig read;
  const std::string json = json_of(config);
  const auto parse = [&](const strata_config_options* o) {
    OwnedConfig other;
    return strata_model_config_parse(json.c_str(), nullptr, o, &other);
  };
  options.num_accept_keys = -1;
  EXPECT_FAILS(parse(&options), STRATA_INVALID_ARGUMENT, "number of options.accept_keys: expected at least 0, is -1");
  options.num_accept_keys = 1;
  EXPECT_FAILS(parse(&options), STRATA_INVALID_ARGUMENT, "options.accept_keys: expected an array of 1, is null");
  options.accept_keys = &name;
  EXPECT_FAILS(parse(&options), STRATA_INVALID_ARGUMENT, "options.accept_keys[0]: expected a text, is null");
  options = strata_config_options_default();
  options.num_own_models = 2;
  EXPECT_FAILS(parse(&options), STRATA_INVALID_ARGUMENT, "options.own_models: expected an array of 2, is null");
  test::expect_versions_refused(strata_config_options_default(), "strata_config_options", parse);
  strata_model_info info = strata_model_info_default();
  info.struct_size = 16;
  EXPECT_FAILS(strata_model_config_get_info(config, &info), STRATA_INVALID_ARGUMENT, "strata_model_info: struct_size must be");
}

TEST(CModelConfig, DestroyedHandles) {
  OwnedConfig config = test::c_preset("v4-tiny");
  const strata_model_config gone = config.reset();
  strata_model_info info = strata_model_info_default();
  double scale = 0;
  int32_t value = 0;
  EXPECT_FAILS(strata_model_config_get_info(gone, &info), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_model_config_to_json(gone, nullptr, 0, nullptr), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_model_config_softmax_scale(gone, &scale), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_model_config_compress_ratio(gone, 0, &value), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_model_config_skip_topk(gone, 0, &value), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_model_config_unknown_keys(gone, nullptr, 0, nullptr), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_model_config_destroy(gone), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_DONE(strata_model_config_destroy({}));
  EXPECT_FAILS(strata_model_config_get_info({}, &info), STRATA_INVALID_HANDLE, "expected a handle of strata_model_config, is null");
}

}  // namespace
}  // namespace strata
