#include "checkpoint/known_models.h"

#include <algorithm>
#include <array>

#include "core/check.h"

namespace strata {
namespace {

constexpr auto kV4 = ModelFamily::deepseek_v4;
constexpr auto kMla = ModelFamily::deepseek_mla;

// A model may stand here under several names.
constexpr auto kSupported = std::to_array<SupportedModel>({
    {"deepseek_v4", "DeepseekV4ForCausalLM", kV4, "DeepSeek-V4-Flash, V4-Pro"},
    {"deepseek_v32", "DeepseekV32ForCausalLM", kMla, "DeepSeek-V3.2, V3.2-Exp"},
    {"deepseek_v3", "DeepseekV3ForCausalLM", kMla, "DeepSeek-V3, V3.1, R1, Moonlight"},
    {"deepseek_v2", "DeepseekV2ForCausalLM", kMla, "DeepSeek-V2, V2.5, V2-Lite, Coder-V2"},
    {"kimi_k2", "DeepseekV3ForCausalLM", kMla, "Kimi-K2, K2-Thinking, K2.5"},
    {"glm_moe_dsa", "GlmMoeDsaForCausalLM", kMla, "GLM-5, 5.1, 5.2"},
    {"glm4_moe_lite", "Glm4MoeLiteForCausalLM", kMla, "GLM-4.7-Flash"},
    {"youtu", "YoutuForCausalLM", kMla, "Youtu-LLM-2B"},
    {"youtu_llm", "YoutuForCausalLM", kMla, "Youtu-LLM-2B"},
    {"axk1", "AXK1ForCausalLM", kMla, "A.X-K1"},
    {"AXK1", "AXK1ForCausalLM", kMla, "A.X-K1"},
});

constexpr auto kLookalikes = std::to_array<LookalikeModel>({
    {"deepseek_v41", "DeepseekV41ForCausalLM", "a ratio of 2, shared KV sources and block selection"},
    {"axk2", "AXK2ForCausalLM", "gated norms and a gate before the output projection"},
    {"hy_v4", "HYV4ForCausalLM", "an attention sink and a gate before the output projection"},
    {"dots3_note_text", "Dots3NoteForCausalLM", "a gate per head before the output projection and layers of several kinds"},
    {"glm5_next_text", "Glm5NextForCausalLM", "linear-attention layers and pooled indexer keys"},
    {"kimi_linear", "KimiLinearForCausalLM", "linear-attention layers and no rotary embedding"},
    {"bailing_hybrid", "BailingHybridForCausalLM", "linear-attention layers"},
    {"longcat_flash", "LongcatFlashForCausalLM", "scaled latents and two attentions in a layer"},
    {"minicpm3", "MiniCPM3ForCausalLM", "LongRoPE"},
    {"mistral4", "Mistral4ForCausalLM", "queries scaled by their position"},
    {"mistral_large4_text", "MistralLarge4ForCausalLM", "a learned softmax scale, layers without rotary embedding and shared KV sources"},
});

template <class Model>
const Model* find(const auto& models, std::string_view model_type, std::string_view architecture) {
  const Model* by_architecture = nullptr;
  for (const Model& model : models) {
    if (model.model_type == model_type) return &model;
    if (!architecture.empty() && model.architecture == architecture && by_architecture == nullptr) by_architecture = &model;
  }
  return by_architecture;
}

}  // namespace

std::span<const SupportedModel> supported_models() { return kSupported; }

const SupportedModel* find_supported_model(std::string_view model_type, std::string_view architecture) {
  const SupportedModel* model = find<SupportedModel>(kSupported, model_type, architecture);
  const LookalikeModel* other = find<LookalikeModel>(kLookalikes, model_type, {});
  return other == nullptr ? model : nullptr;
}

const LookalikeModel* find_lookalike_model(std::string_view model_type, std::string_view architecture) {
  return find<LookalikeModel>(kLookalikes, model_type, architecture);
}

bool is_head_of(std::string_view architecture, std::string_view of) {
  const std::string_view stem = of.substr(0, of.find("For"));
  if (!architecture.starts_with(stem)) return false;
  const std::string_view head = architecture.substr(stem.size());
  return head.starts_with("For") || head == "Model" || head == "PreTrainedModel";
}

bool has_indexer(const SupportedModel& model) { return model.model_type == "deepseek_v32" || model.model_type == "glm_moe_dsa"; }

std::string supported_model_types() {
  std::vector<std::string_view> names;
  names.reserve(std::size(kSupported));
  for (const SupportedModel& model : kSupported) names.push_back(model.model_type);
  return fmt::format("{}", fmt::join(names, ", "));
}

void require_supported_model(const ModelConfig& config) {
  const SupportedModel* model = find_supported_model(config.model_type, config.architecture);
  if (model != nullptr && model->family == config.family) return;
  fail(ErrorCode::unsupported, "model_type '{}' (architecture '{}'): expected one whose attention this library has: {}", config.model_type,
       config.architecture, supported_model_types());
}

}  // namespace strata
