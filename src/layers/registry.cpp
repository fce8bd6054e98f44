#include "checkpoint/layer_tensors.h"
#include "core/check.h"
#include "layers/deepseek_v4_attention.h"
#include "layers/forward_check.h"
#include "layers/multi_head_latent_attention.h"
#include "strata/attention.h"

namespace strata {
namespace {

template <class Layer>
std::unique_ptr<AttentionLayer> make_layer(const LayerContext& context) {
  auto layer = std::make_unique<Layer>(context);  // first, so that a tensor under a wrong name is reported by its right name
  check_layer_tensors(context.checkpoint, context.layer);
  return layer;
}

}  // namespace

void LayerRegistry::register_layer(const std::string& architecture, Maker maker) {
  require(!architecture.empty() && maker != nullptr, "layer registry: a name and a maker are required, got '{}'{}", architecture,
          maker == nullptr ? " and no maker" : "");
  for (auto& [name, known] : makers_) {
    if (name == architecture) {
      known = std::move(maker);
      return;
    }
  }
  makers_.emplace_back(architecture, std::move(maker));
}

std::unique_ptr<AttentionLayer> LayerRegistry::make(const LayerContext& context) const {
  require(context.device != nullptr, "layer {}: device is required, is null", context.layer);
  check_forced(context.ops, context.device->config());
  const ModelConfig& config = context.checkpoint.config();
  check_layer_number(config, context.layer);
  for (const std::string& wanted : {config.architecture, config.model_type}) {
    for (const auto& [name, maker] : makers_) {
      if (!wanted.empty() && name == wanted) return maker(context);
    }
  }
  std::string known;
  for (const auto& entry : makers_) known += (known.empty() ? "" : ", ") + entry.first;
  fail(ErrorCode::unsupported, "no layer is registered for architecture '{}' or model_type '{}'; known: {}", config.architecture,
       config.model_type, known);
}

std::vector<std::string> LayerRegistry::names() const {
  std::vector<std::string> result;
  for (const auto& entry : makers_) result.push_back(entry.first);
  return result;
}

LayerRegistry default_layers() {
  LayerRegistry registry;
  for (const SupportedModel& model : supported_models()) {
    const LayerRegistry::Maker maker =
        model.family == ModelFamily::deepseek_v4 ? make_layer<DeepseekV4Attention> : make_layer<MultiHeadLatentAttention>;
    for (const std::string_view name : {model.architecture, model.model_type}) registry.register_layer(std::string(name), maker);
  }
  return registry;
}

}  // namespace strata
