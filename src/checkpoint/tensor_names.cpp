#include "checkpoint/tensor_names.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "core/check.h"

namespace strata {
namespace {

// What a model's name may begin with: nothing in DeepSeek's own files, "model." in transformers', the others where the language model is
// a part of a larger one.
constexpr std::array<std::string_view, 5> kModelPrefixes{"", "model.", "language_model.model.", "model.language_model.", "language_model."};

// A layer number beyond this is not one.
constexpr int64_t kMaxLayerNumber = 1'000'000;

bool consume(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// "wq_a.scale" -> "wq_a.": the stem of a scale's name in whichever spelling.
std::optional<std::string_view> scale_stem(std::string_view suffix) {
  for (const std::string_view end : {".scale", ".weight_scale_inv", ".weight_scale"}) {
    if (suffix.ends_with(end)) return suffix.substr(0, suffix.size() - end.size() + 1);
  }
  return std::nullopt;
}

void add_once(std::vector<std::string>& names, std::string name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
}

}  // namespace

std::string official_prefix(const ModelConfig& config, int64_t layer) {
  if (config.family == ModelFamily::deepseek_mla) return fmt::format("model.layers.{}.self_attn.", layer);
  if (layer < config.num_hidden_layers) return fmt::format("layers.{}.attn.", layer);
  return fmt::format("mtp.{}.attn.", layer - config.num_hidden_layers);
}

std::vector<std::string> tensor_spellings(const ModelConfig& config, int64_t layer, std::string_view suffix) {
  std::vector<std::string> stems{fmt::format("layers.{}.", layer)};
  if (layer >= config.num_hidden_layers) stems.push_back(fmt::format("mtp.{}.", layer - config.num_hidden_layers));
  std::vector<std::string> suffixes{std::string(suffix)};
  if (const auto stem = scale_stem(suffix)) {
    for (const char* end : {"scale", "weight_scale_inv", "weight_scale"}) add_once(suffixes, std::string(*stem) + end);
  }
  // As transformers saves V4.
  if (config.family == ModelFamily::deepseek_v4 && suffix == "kv_norm.weight") suffixes.emplace_back("norm.weight");
  std::vector<std::string> names;
  for (const std::string& end : suffixes) {
    add_once(names, official_prefix(config, layer) + end);
    for (const std::string_view model : kModelPrefixes) {
      for (const std::string& stem : stems) {
        for (const char* attention : {"attn.", "self_attn."}) add_once(names, fmt::format("{}{}{}{}", model, stem, attention, end));
      }
    }
  }
  return names;
}

std::optional<int64_t> attention_layer_of(const ModelConfig& config, std::string_view name) {
  const auto longest = std::max_element(kModelPrefixes.begin(), kModelPrefixes.end(), [&](std::string_view a, std::string_view b) {
    return (name.starts_with(a) ? a.size() : 0) < (name.starts_with(b) ? b.size() : 0);
  });
  consume(name, *longest);
  const bool mtp = consume(name, "mtp.");
  if (!mtp && !consume(name, "layers.")) return std::nullopt;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || number < 0 || number > kMaxLayerNumber) return std::nullopt;
  name.remove_prefix(static_cast<size_t>(end - name.data()));
  if (!consume(name, ".attn.") && !consume(name, ".self_attn.")) return std::nullopt;
  return mtp ? config.num_hidden_layers + number : number;
}

}  // namespace strata
