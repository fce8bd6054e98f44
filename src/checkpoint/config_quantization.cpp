#include "checkpoint/config_quantization.h"

#include <algorithm>
#include <array>

#include "checkpoint/json.h"
#include "checkpoint/quantised_modules.h"
#include "core/check.h"

namespace strata {
namespace {

using nlohmann::json;

constexpr int64_t kActivationGroup = 128;

// Quantisers next to "fp8" that published checkpoints name.
constexpr auto kQuantisers =
    std::to_array<std::string_view>({"aqlm",  "auto-round",  "autoround",        "awq",    "bitsandbytes", "compressed-tensors",
                                     "eetq",  "fbgemm_fp8",  "fp_quant",         "gptq",   "gptqmodel",    "higgs",
                                     "hqq",   "inc",         "intel/auto-round", "marlin", "modelopt",     "modelopt_fp4",
                                     "mxfp4", "petit_nvfp4", "quanto",           "quark",  "spqr",         "torchao",
                                     "vptq",  "w4afp8"});

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

bool has(const ConfigFields& f, std::string_view key, const json& value) {
  const json* found = f.get(key);
  return found != nullptr && *found == value;
}

// A quantization_config that is not of block FP8 in DeepSeek's words.
class QuantiserReader {
 public:
  QuantiserReader(ModelConfig& c, const ConfigFields& q, const std::vector<std::string>& accepted, std::vector<std::string>& unknown)
      : c_(c), q_(q.object(), KeyScope::quantiser, q.origin(), q.prefix()), accepted_(accepted), unknown_(unknown) {}

  void read(const std::string& method) {
    if (std::find(kQuantisers.begin(), kQuantisers.end(), method) == kQuantisers.end()) {
      q_.reject("quant_method", fmt::format("fp8 or one of {}", fmt::join(kQuantisers, ", ")), brief(json(method)));
    }
    check(q_);
    if (const auto inner = q_.object("quantization", KeyScope::quantiser)) {
      check(*inner);
      inner_.emplace(*inner);
    }
    check_sparsity();
    if (method == "compressed-tensors" && read_groups()) return;
    if (method == "modelopt" && is_modelopt_block_fp8()) {
      c_.fp8_weights = true;
      return;
    }
    refuse_quantised_attention(method);
    c_.other_quant_method = method;
  }

 private:
  void check(const ConfigFields& f) const {
    check_config_keys(f.object(), f.scope(), c_.family, f.origin(), f.prefix(), accepted_, unknown_);
  }

  // Weights with zeros left out are stored in another form.
  void check_sparsity() const {
    const json* sparsity = q_.get("sparsity_config");
    if (sparsity == nullptr || *sparsity == json::object()) return;
    if (sparsity->is_object() && sparsity->value("format", json()) == "dense") return;
    q_.reject("sparsity_config", "{} or format \"dense\"", brief(*sparsity));
  }

  // ModelOpt's FP8 with one scale a block: the same product again. The algorithm stands in either place.
  bool is_modelopt_block_fp8() const { return has(q_, "quant_algo", "FP8_PB_WO") || (inner_ && has(*inner_, "quant_algo", "FP8_PB_WO")); }

  std::vector<std::string> excluded() const {
    std::vector<std::string> all = excluded_modules(q_);
    if (inner_) {
      const std::vector<std::string> more = excluded_modules(*inner_);
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }

  void refuse_quantised_attention(const std::string& method) const {
    const std::string matrix = quantised_attention_matrix(c_, excluded());
    if (matrix.empty() || (groups_known_ && !groups_reach_attention_)) return;
    q_.reject("quant_method", "\"fp8\", or a quantiser whose modules_to_not_convert, ignore or the like leave attention alone",
              fmt::format("{}, by which attention's {} is quantised", brief(json(method)), matrix));
  }

  // compressed-tensors: true when attention is quantised as by quant_method "fp8". The groups that name attention go before the others.
  bool read_groups() {
    const json* groups = q_.get("config_groups");
    if (groups == nullptr || !groups->is_object()) return false;
    groups_known_ = true;
    for (const Reach reach : {Reach::attention, Reach::everything}) {
      std::vector<ConfigFields> found;
      for (const auto& [name, group] : groups->items()) {
        if (!group.is_object()) q_.reject("config_groups." + name, "an object", brief(group));
        const ConfigFields f(group, KeyScope::group, q_.origin(), q_.prefix() + "config_groups." + name + ".");
        if (reach_of(f.texts("targets").value_or(std::vector<std::string>{})) == reach) found.push_back(f);
      }
      if (found.empty()) continue;
      groups_reach_attention_ = true;
      // Where attention is left alone, a group's values are those of other matrices.
      if (quantised_attention_matrix(c_, excluded()).empty()) return false;
      return std::all_of(found.begin(), found.end(), [&](const ConfigFields& group) { return read_group(group); });
    }
    return false;
  }

  // A group that is quant_method "fp8" in other words.
  bool read_group(const ConfigFields& group) {
    const auto weights = group.object("weights", KeyScope::group_values);
    const auto inputs = group.object("input_activations", KeyScope::group_values);
    if (!weights || !inputs) return false;
    for (const ConfigFields* values : {&*weights, &*inputs}) {
      if (!has(*values, "num_bits", 8) || !has(*values, "type", "float")) return false;
    }
    const bool blocks = has(*weights, "strategy", "block") && (!weights->has("dynamic") || has(*weights, "dynamic", false)) &&
                        !weights->has("group_size") && has(*inputs, "strategy", "group") && has(*inputs, "group_size", kActivationGroup) &&
                        has(*inputs, "dynamic", true);
    if (!blocks) return false;
    for (const ConfigFields* part : {&group, &*weights, &*inputs}) check(*part);
    if (inputs->has("block_structure")) inputs->reject("block_structure", "null", brief(*inputs->get("block_structure")));
    if (const json* block = weights->get("block_structure")) read_block(c_, *weights, "block_structure", *block);
    c_.fp8_weights = true;
    return true;
  }

  ModelConfig& c_;
  const ConfigFields q_;
  const std::vector<std::string>& accepted_;
  std::vector<std::string>& unknown_;
  std::optional<ConfigFields> inner_;
  bool groups_known_ = false, groups_reach_attention_ = false;
};

}  // namespace

void read_quantization(ModelConfig& c, const ConfigFields& q, const std::vector<std::string>& accepted, std::vector<std::string>& unknown) {
  const auto method = q.text("quant_method");
  if (!method) q.need("quant_method", "\"fp8\" or another quantiser's name");
  if (method->empty()) q.reject("quant_method", "a quantiser's name", "\"\"");
  if (*method == "fp8") return read_fp8(c, q, accepted, unknown);
  QuantiserReader(c, q, accepted, unknown).read(*method);
}

}  // namespace strata
