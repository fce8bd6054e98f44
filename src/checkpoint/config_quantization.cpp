#include "checkpoint/config_quantization.h"

#include <algorithm>

#include "checkpoint/json.h"

namespace strata {
namespace {

using nlohmann::json;

constexpr int64_t kActivationGroup = 128;

void read_block(ModelConfig& c, const ConfigFields& q, std::string_view key, const json& block) {
  if (!block.is_array() || block.size() != 2) q.reject(key, "two integers", brief(block));
  for (size_t i = 0; i < 2; ++i) c.weight_block_size[i] = q.to_integer(key, block[i]);
}

void read_fp8(ModelConfig& c, const ConfigFields& q, const std::vector<std::string>& accepted, std::vector<std::string>& unknown) {
  check_config_keys(q.object(), KeyScope::quantization, c.family, q.origin(), q.prefix(), accepted, unknown);
  c.fp8_weights = true;
  if (const auto format = q.text("scale_fmt"); format && *format != "float") {
    if (*format != "ue8m0") q.reject("scale_fmt", "\"ue8m0\", \"float\" or null", brief(json(*format)));
    c.scale_ue8m0 = true;
  }
  if (const json* block = q.get("weight_block_size")) read_block(c, q, "weight_block_size", *block);
}

bool has(const json& object, const char* key, const json& value) {
  const auto it = object.find(key);
  return it != object.end() && *it == value;
}

// A group of compressed-tensors that is quant_method "fp8" in other words.
bool is_block_fp8(const json& group) {
  if (!group.is_object()) return false;
  const auto weights = group.find("weights"), inputs = group.find("input_activations");
  if (weights == group.end() || inputs == group.end() || !weights->is_object() || !inputs->is_object()) return false;
  for (const json& part : {*weights, *inputs}) {
    if (!has(part, "num_bits", 8) || !has(part, "type", "float")) return false;
  }
  return has(*weights, "strategy", "block") && has(*inputs, "strategy", "group") && has(*inputs, "group_size", kActivationGroup) &&
         has(*inputs, "dynamic", true);
}

const json* find_block_fp8(const json& object) {
  const auto groups = object.find("config_groups");
  if (groups == object.end() || !groups->is_object()) return nullptr;
  const auto it = std::find_if(groups->begin(), groups->end(), is_block_fp8);
  return it == groups->end() ? nullptr : &*it;
}

// ModelOpt's FP8 with one scale a block: the same product again. The algorithm stands in either place.
bool is_modelopt_block_fp8(const json& object) {
  const auto inner = object.find("quantization");
  const bool nested = inner != object.end() && inner->is_object() && has(*inner, "quant_algo", "FP8_PB_WO");
  return has(object, "quant_algo", "FP8_PB_WO") || nested;
}

}  // namespace

void read_quantization(ModelConfig& c, const ConfigFields& q, const std::vector<std::string>& accepted, std::vector<std::string>& unknown) {
  const auto method = q.text("quant_method");
  if (!method) q.need("quant_method", "\"fp8\" or another quantiser's name");
  if (*method == "fp8") return read_fp8(c, q, accepted, unknown);
  if (const json* group = *method == "compressed-tensors" ? find_block_fp8(q.object()) : nullptr) {
    c.fp8_weights = true;
    const json& weights = (*group)["weights"];
    if (const auto block = weights.find("block_structure"); block != weights.end() && !block->is_null()) {
      read_block(c, q, "config_groups.weights.block_structure", *block);
    }
    return;
  }
  if (*method == "modelopt" && is_modelopt_block_fp8(q.object())) {
    c.fp8_weights = true;
    return;
  }
  if (method->empty()) q.reject("quant_method", "a quantiser's name", "\"\"");
  c.other_quant_method = *method;
}

}  // namespace strata
