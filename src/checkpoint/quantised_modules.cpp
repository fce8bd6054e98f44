#include "checkpoint/quantised_modules.h"

#include <algorithm>
#include <array>

#include "checkpoint/json.h"

namespace strata {
namespace {

using nlohmann::json;

constexpr auto kExclusions = std::to_array<const char*>({"ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "exclude",
                                                         "llm_int8_skip_modules", "skip_modules", "linear_weights_not_to_quantize"});
constexpr int64_t kUnquantisedBits = 16;

// Names of projections in the checkpoints of both families. "kv_a_proj" is also in "kv_a_proj_with_mqa" and "fused_qkv_a_proj".
constexpr auto kProjections = std::to_array<std::string_view>({"q_a_proj", "q_b_proj", "q_proj", "kv_a_proj", "kv_b_proj", "kv_proj",
                                                               "o_proj", "o_a_proj", "o_b_proj", "wq_a", "wq_b", "wkv", "wo_a", "wo_b"});

// The rest of a name from "attn" on; the whole name when it has none.
std::string_view within_attention(std::string_view name) {
  const size_t at = name.rfind("attn");
  return at == std::string_view::npos ? name : name.substr(at);
}

bool names(std::string_view text, std::string_view projection) { return text.find(projection) != std::string_view::npos; }

// `name` is that of all attention ("re:.*self_attn.*"), or has this projection's.
bool covers(std::string_view name, std::string_view projection) {
  const std::string_view rest = within_attention(name);
  if (rest.find("indexer") != std::string_view::npos) return false;
  const bool one = std::any_of(kProjections.begin(), kProjections.end(), [&](std::string_view p) { return names(rest, p); });
  return one ? names(rest, projection) || (projection == "q_a_proj" && names(rest, "qkv_a_proj")) : rest.starts_with("attn");
}

std::vector<std::string> matrices(const ModelConfig& c) {
  if (c.family == ModelFamily::deepseek_v4) return {"wq_a", "wq_b", "wkv", "wo_a", "wo_b"};
  if (c.q_lora_rank == 0) return {"q_proj", "kv_a_proj", "kv_b_proj", "o_proj"};
  return {"q_a_proj", "q_b_proj", "kv_a_proj", "kv_b_proj", "o_proj"};
}

void add_dynamic(const ConfigFields& q, std::vector<std::string>& result) {
  const json* dynamic = q.get("dynamic");
  if (dynamic == nullptr || !dynamic->is_object()) return;
  for (const auto& [pattern, value] : dynamic->items()) {
    if (pattern.starts_with("-:")) result.push_back(pattern);
  }
}

void add_extra_config(const ConfigFields& q, std::vector<std::string>& result) {
  const json* extra = q.get("extra_config");
  if (extra == nullptr || !extra->is_object()) return;
  for (const auto& [name, value] : extra->items()) {
    const auto bits = value.is_object() ? value.find("bits") : value.end();
    if (bits != value.end() && bits->is_number_integer() && *bits >= kUnquantisedBits) result.push_back(name);
  }
}

}  // namespace

std::vector<std::string> excluded_modules(const ConfigFields& q) {
  std::vector<std::string> result;
  for (const char* key : kExclusions) {
    const auto list = q.texts(key);
    if (list) result.insert(result.end(), list->begin(), list->end());
  }
  add_dynamic(q, result);
  add_extra_config(q, result);
  return result;
}

std::string quantised_attention_matrix(const ModelConfig& c, const std::vector<std::string>& excluded) {
  for (const std::string& matrix : matrices(c)) {
    const bool covered = std::any_of(excluded.begin(), excluded.end(), [&](const std::string& name) { return covers(name, matrix); });
    if (!covered) return matrix;
  }
  return {};
}

Reach reach_of(const std::vector<std::string>& targets) {
  Reach reach = targets.empty() ? Reach::everything : Reach::none;
  for (const std::string& target : targets) {
    const auto has = [&](std::string_view part) { return target.find(part) != std::string::npos; };
    const auto projection = std::any_of(kProjections.begin(), kProjections.end(), has);
    if (has("attn") || projection) return Reach::attention;
    if (!has("mlp") && !has("ffn") && !has("expert") && !has("lm_head") && !has("gate")) reach = Reach::everything;
  }
  return reach;
}

}  // namespace strata
