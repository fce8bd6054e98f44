#include "checkpoint/layer_tensors.h"

#include <algorithm>
#include <array>
#include <set>

#include "checkpoint/json.h"
#include "checkpoint/other_quantisers.h"
#include "checkpoint/tensor_names.h"
#include "checkpoint/tensor_plan.h"
#include "core/check.h"

namespace strata {
namespace {

// Read or without effect, whatever the layer: cache scales (Checkpoint::kv_scale; values are in the same rows), tables of the rotation that
// old versions of transformers saved, scales of queries for FP8 attention products, which Strata's attention does not have.
constexpr std::array<std::string_view, 12> kHarmless{"k_scale",         "v_scale",        "kv_scale",       "q_scale",
                                                     "prob_scale",      "attn.k_scale",   "attn.v_scale",   "attn.q_scale",
                                                     "attn.prob_scale", "k_proj.k_scale", "v_proj.v_scale", "rotary_emb.inv_freq"};

// The names of the layer's tensors in every spelling, scales of matrices included.
std::set<std::string> readable_tensors(const ModelConfig& config, int64_t layer) {
  std::set<std::string> names;
  const auto add = [&](std::string_view suffix) {
    for (std::string& name : tensor_spellings(config, layer, suffix)) names.insert(std::move(name));
  };
  for (const std::string& suffix : layer_suffixes(config, layer)) {
    add(suffix);
    constexpr std::string_view kWeight = ".weight";
    if (suffix.ends_with(kWeight)) add(suffix.substr(0, suffix.size() - kWeight.size()) + ".scale");
  }
  for (const std::string_view suffix : kHarmless) add(suffix);
  return names;
}

}  // namespace

void check_layer_tensors(const Checkpoint& checkpoint, int64_t layer) {
  const std::set<std::string> readable = readable_tensors(checkpoint.config(), layer);
  for (const std::string& name : checkpoint.attention_names(layer)) {
    // What other quantisers add is refused, and explained, where the matrix is read.
    if (readable.contains(name) || is_of_other_quantiser(name)) continue;
    fail(ErrorCode::invalid_file, "{}: tensor {}: expected none of this name, as the attention of this model has no such part",
         checkpoint.directory().string(), brief(nlohmann::json(name)));
  }
}

}  // namespace strata
