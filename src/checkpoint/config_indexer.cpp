#include "checkpoint/config_indexer.h"

#include "checkpoint/json.h"
#include "checkpoint/known_models.h"
#include "checkpoint/model_config_check.h"
#include "core/check.h"

namespace strata {
namespace {

using nlohmann::json;

// A model without index_topk attends densely: another key of an indexer says that it should not.
void check_no_indexer(const ModelConfig& c, const ConfigFields& f) {
  const SupportedModel* model = find_supported_model(c.model_type, c.architecture);
  if (model != nullptr && has_indexer(*model)) {
    f.need("index_topk", fmt::format("a positive integer, as every model of model_type {} has an indexer", model->model_type));
  }
  for (const char* key : {"index_n_heads", "index_head_dim", "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset",
                          "indexer_types", "indexer_rope_interleave"}) {
    if (const json* value = f.get(key)) f.reject(key, "no such key without index_topk", brief(*value));
  }
}

// A letter for each main layer. MTP layers may have one, which does not count.
void check_pattern_size(const ModelConfig& c, const ConfigFields& f, std::string_view key, size_t size) {
  const int64_t layers = c.num_hidden_layers, count = static_cast<int64_t>(size);
  if (count >= layers) return;
  f.reject(key, fmt::format("an entry for each of num_hidden_layers = {}", layers), fmt::format("{} entries", count));
}

// A layer that selects is 'F', one that reuses a selection 'S'. Empty: the file has no such key.
std::string read_pattern(const ModelConfig& c, const ConfigFields& f) {
  std::string pattern = f.text("index_topk_pattern").value_or("");
  if (pattern.find_first_not_of("FS") != std::string::npos) {
    f.reject("index_topk_pattern", "the letters F (selects) and S (reuses a selection)", brief(json(pattern)));
  }
  if (f.has("index_topk_pattern")) check_pattern_size(c, f, "index_topk_pattern", pattern.size());
  return pattern;
}

std::string read_types(const ModelConfig& c, const ConfigFields& f) {
  const auto types = f.texts("indexer_types");
  std::string pattern;
  for (size_t i = 0; types && i < types->size(); ++i) {
    const std::string& type = (*types)[i];
    if (type != "full" && type != "shared") f.reject(fmt::format("indexer_types[{}]", i), "\"full\" or \"shared\"", brief(json(type)));
    pattern += type == "full" ? 'F' : 'S';
  }
  if (types) check_pattern_size(c, f, "indexer_types", pattern.size());
  return pattern;
}

// What `c` says now must be what `pattern`, of `key`, says.
void check_agreement(const ModelConfig& c, const ConfigFields& f, std::string_view key, const std::string& pattern,
                     std::string_view others) {
  check_model_config(c, f.origin());  // skip_topk() needs a schedule that can be
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const char letter = pattern[static_cast<size_t>(i)];
    if (c.skip_topk(i) == (letter == 'S')) continue;
    f.reject(fmt::format("{}[{}]", key, i), fmt::format("what {} say of layer {}", others, i),
             letter == 'S' ? "that it reuses a selection" : "that it selects");
  }
}

// Which layers have an indexer. A file may say so in several forms, which must agree; the first that names layers is kept.
void read_schedule(ModelConfig& c, const ConfigFields& f) {
  const std::string pattern = read_pattern(c, f), types = read_types(c, f);
  const auto freq = f.optional_integer("index_topk_freq"), offset = f.optional_integer("index_skip_topk_offset");
  c.index_topk_freq = freq.value_or(c.index_topk_freq);
  c.index_skip_topk_offset = offset.value_or(c.index_skip_topk_offset);
  if (pattern.empty() && types.empty()) return;
  if (freq) {  // an offset alone skips nothing
    check_agreement(c, f, pattern.empty() ? "indexer_types" : "index_topk_pattern", pattern.empty() ? types : pattern,
                    "index_topk_freq and index_skip_topk_offset");
  }
  c.index_topk_freq = ModelConfig{}.index_topk_freq;
  c.index_skip_topk_offset = ModelConfig{}.index_skip_topk_offset;
  c.index_topk_pattern = pattern.empty() ? types : pattern;
  if (!pattern.empty() && !types.empty()) check_agreement(c, f, "indexer_types", types, "the letters of index_topk_pattern");
}

}  // namespace

void read_indexer(ModelConfig& c, const ConfigFields& f) {
  if (!f.has("index_topk")) return check_no_indexer(c, f);
  c.index_n_heads = f.integer("index_n_heads");
  c.index_head_dim = f.integer("index_head_dim");
  c.index_topk = f.integer("index_topk");
  if (c.family == ModelFamily::deepseek_v4) return;
  if (c.index_topk == 0) f.reject("index_topk", "a positive integer, or no such key", "0");
  // GLM-5's files do not all say so; its indexers have the pairs of the attention (MLA 6.2).
  const SupportedModel* model = find_supported_model(c.model_type, c.architecture);
  c.indexer_rope_interleave = f.flag("indexer_rope_interleave").value_or(model != nullptr && model->model_type == "glm_moe_dsa");
  read_schedule(c, f);
}

}  // namespace strata
