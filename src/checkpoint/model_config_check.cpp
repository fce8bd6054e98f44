#include "checkpoint/model_config_check.h"

#include <string_view>

#include "core/check.h"

namespace strata {
namespace {

// Bounds far above any model, low enough that no product of a few of them leaves 64 bits.
constexpr int64_t kMaxHiddenSize = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxFeatures = 65536;
constexpr int64_t kMaxTopk = 65536;
constexpr int64_t kMaxPosition = int64_t{1} << 31;
constexpr double kMaxReal = 1e15;
constexpr int64_t kFp8Block = 128;

class Checker {
 public:
  explicit Checker(const std::string& origin) : origin_(origin) {}

  template <class T>
  [[noreturn]] void reject(std::string_view key, std::string_view expected, const T& actual) const {
    fail(ErrorCode::invalid_file, "{}: {}: expected {}, is {}", origin_, key, expected, actual);
  }
  void integer(std::string_view key, int64_t value, int64_t low, int64_t high) const {
    if (value < low || value > high) reject(key, fmt::format("an integer in [{}, {}]", low, high), value);
  }
  // Above `low` (or equal to it when `inclusive`), finite.
  void real(std::string_view key, double value, double low, double high, bool inclusive = false) const {
    if (!(value > low || (inclusive && value == low)) || !(value <= high)) {
      reject(key, fmt::format("a number in {}{:g}, {:g}]", inclusive ? '[' : '(', low, high), value);
    }
  }
  void equal(std::string_view key, int64_t value, int64_t expected) const {
    if (value != expected) reject(key, fmt::format("{}", expected), value);
  }
  void multiple(std::string_view key, int64_t value, int64_t of, std::string_view why) const {
    if (value % of != 0) reject(key, fmt::format("a multiple of {} ({})", of, why), value);
  }

 private:
  const std::string& origin_;
};

void check_yarn(const ModelConfig& c, const Checker& check) {
  if (!c.has_yarn) return;
  check.real("rope_scaling.factor", c.rope_factor, 1.0, kMaxReal, true);
  check.integer("rope_scaling.original_max_position_embeddings", c.rope_original_max_position, 1, kMaxPosition);
  check.real("rope_scaling.beta_fast", c.rope_beta_fast, 0.0, kMaxReal);
  check.real("rope_scaling.beta_slow", c.rope_beta_slow, 0.0, kMaxReal);
  check.real("rope_scaling.mscale", c.rope_mscale, 0.0, kMaxReal, true);
  check.real("rope_scaling.mscale_all_dim", c.rope_mscale_all_dim, 0.0, kMaxReal, true);
  check.real("rope_scaling.attn_factor", c.rope_attn_factor, 0.0, kMaxReal);
  if (c.rope_attention_factor) check.real("rope_scaling.attention_factor", *c.rope_attention_factor, 0.0, kMaxReal);
}

void check_v4(const ModelConfig& c, const Checker& check) {
  check.equal("head_dim", c.head_dim, 512);
  check.equal("qk_rope_head_dim", c.qk_rope_head_dim, 64);
  check.integer("q_lora_rank", c.q_lora_rank, 1, kMaxFeatures);
  check.integer("o_groups", c.o_groups, 1, kMaxHeads);
  if (c.num_attention_heads % c.o_groups != 0) {
    check.reject("o_groups", fmt::format("a divisor of num_attention_heads = {}", c.num_attention_heads), c.o_groups);
  }
  check.integer("o_lora_rank", c.o_lora_rank, 1, kMaxFeatures);
  check.integer("sliding_window", c.sliding_window, 1, kMaxHiddenSize);
  if (static_cast<int64_t>(c.compress_ratios.size()) < c.num_hidden_layers) {
    check.reject("compress_ratios", fmt::format("at least num_hidden_layers = {} entries", c.num_hidden_layers), c.compress_ratios.size());
  }
  bool compressed = false;
  bool indexed = false;
  for (size_t i = 0; i < c.compress_ratios.size(); ++i) {
    const int32_t ratio = c.compress_ratios[i];
    if (ratio != 0 && ratio != 4 && ratio != 128) check.reject(fmt::format("compress_ratios[{}]", i), "0, 4 or 128", ratio);
    compressed = compressed || ratio != 0;
    indexed = indexed || ratio == 4;
    const int64_t mtp = static_cast<int64_t>(i) - c.num_hidden_layers;
    if (ratio != 0 && mtp >= 0 && mtp < c.num_nextn_predict_layers) {
      check.reject(fmt::format("compress_ratios[{}]", i),
                   fmt::format("0, as it is of MTP layer {}, which attends to the window alone", mtp), ratio);
    }
  }
  if (compressed) check.real("compress_rope_theta", c.compress_rope_theta, 1.0, kMaxReal);
  if (indexed || c.index_topk != 0) {
    check.integer("index_topk", c.index_topk, 1, kMaxTopk);
    check.integer("index_n_heads", c.index_n_heads, 1, kMaxHeads);
    check.equal("index_head_dim", c.index_head_dim, 128);
  }
  if (c.fp8_weights) {
    const std::string_view why = "FP8 scales cover 128 columns";
    check.multiple("hidden_size", c.hidden_size, kFp8Block, why);
    check.multiple("q_lora_rank", c.q_lora_rank, kFp8Block, why);
    check.multiple("o_lora_rank", c.o_lora_rank, kFp8Block, why);
  }
}

void check_mla(const ModelConfig& c, const Checker& check) {
  check.integer("q_lora_rank", c.q_lora_rank, 0, kMaxFeatures);
  check.integer("kv_lora_rank", c.kv_lora_rank, 1, kMaxFeatures);
  check.integer("qk_nope_head_dim", c.qk_nope_head_dim, 1, kMaxFeatures);
  check.integer("qk_rope_head_dim", c.qk_rope_head_dim, 2, kMaxFeatures);
  check.multiple("qk_rope_head_dim", c.qk_rope_head_dim, 2, "rotary dimensions come in pairs");
  check.integer("v_head_dim", c.v_head_dim, 1, kMaxFeatures);
  if (c.index_topk == 0) return;
  check.integer("index_topk", c.index_topk, 1, kMaxTopk);
  check.integer("index_n_heads", c.index_n_heads, 1, kMaxHeads);
  check.equal("index_head_dim", c.index_head_dim, 128);
  check.integer("q_lora_rank", c.q_lora_rank, 1, kMaxFeatures);  // the indexer's queries come from the query latent
  check.integer("index_topk_freq", c.index_topk_freq, 1, kMaxLayers);
  check.integer("index_skip_topk_offset", c.index_skip_topk_offset, 0, kMaxLayers);
  if (!c.index_topk_pattern.empty() && static_cast<int64_t>(c.index_topk_pattern.size()) < c.num_hidden_layers) {
    check.reject("index_topk_pattern", fmt::format("a character for each of num_hidden_layers = {}", c.num_hidden_layers),
                 fmt::format("{} characters", c.index_topk_pattern.size()));
  }
  if (c.skip_topk(0)) {
    check.reject("index_topk_pattern / index_topk_freq / index_skip_topk_offset", "layer 0 to have an indexer", "shared");
  }
}

}  // namespace

void check_model_config(const ModelConfig& c, const std::string& origin) {
  const Checker check(origin);
  if (c.architecture.empty() && c.model_type.empty()) check.reject("architectures", "a name", "missing, and so is model_type");
  check.integer("hidden_size", c.hidden_size, 1, kMaxHiddenSize);
  check.integer("num_hidden_layers", c.num_hidden_layers, 1, kMaxLayers);
  check.integer("num_nextn_predict_layers", c.num_nextn_predict_layers, 0, kMaxLayers);
  check.integer("num_attention_heads", c.num_attention_heads, 1, kMaxHeads);
  check.integer("max_position_embeddings", c.max_position_embeddings, 1, kMaxPosition);
  check.real("rms_norm_eps", c.rms_norm_eps, 0.0, 1.0);
  // The norms take it as fp32, in which less is 0.
  if (static_cast<float>(c.rms_norm_eps) <= 0.0f) check.reject("rms_norm_eps", "a number that is above 0 in fp32", c.rms_norm_eps);
  check.real("rope_theta", c.rope_theta, 1.0, kMaxReal);
  if (c.fp8_weights && !c.other_quant_method.empty()) {
    check.reject("other_quant_method", "empty, as fp8_weights is true", c.other_quant_method);
  }
  check_yarn(c, check);
  check.integer("quantization_config.weight_block_size[0]", c.weight_block_size[0], 1, kMaxFeatures);
  check.integer("quantization_config.weight_block_size[1]", c.weight_block_size[1], 1, kMaxFeatures);
  if (c.family == ModelFamily::deepseek_v4) {
    check_v4(c, check);
  } else {
    check_mla(c, check);
  }
}

void ModelConfig::validate() const { check_model_config(*this, "model config"); }

}  // namespace strata
