#include "strata/model_config.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace strata {
namespace {

// 1 without a magnitude correction, else the YaRN paper's 0.1 a ln(f) + 1.
double yarn_mscale(double factor, double a) { return factor <= 1.0 ? 1.0 : 0.1 * a * std::log(factor) + 1.0; }

}  // namespace

int32_t ModelConfig::compress_ratio(int64_t layer) const {
  require(layer >= 0, "compress_ratio: layer: expected >= 0, is {}", layer);
  if (family != ModelFamily::deepseek_v4 || layer >= num_hidden_layers) return 1;
  require(layer < static_cast<int64_t>(compress_ratios.size()), "compress_ratios: expected an entry for layer {}, has {} entries", layer,
          compress_ratios.size());
  const int32_t ratio = compress_ratios[static_cast<size_t>(layer)];
  return ratio == 0 ? 1 : ratio;
}

RopeConfig ModelConfig::rope(int64_t layer) const {
  RopeConfig rope;
  rope.dim = static_cast<int32_t>(qk_rope_head_dim);
  rope.theta = rope_theta;
  const bool v4 = family == ModelFamily::deepseek_v4;
  if (v4) {
    // Window-only layers know neither the long base nor YaRN, whatever the config says of it.
    if (compress_ratio(layer) == 1) return rope;
    rope.theta = compress_rope_theta;
  }
  if (!has_yarn) return rope;
  rope.factor = rope_factor;
  rope.original_max_position = rope_original_max_position;
  rope.beta_fast = rope_beta_fast;
  rope.beta_slow = rope_beta_slow;
  rope.truncate = rope_truncate;
  if (!v4) {
    const double gain = yarn_mscale(rope_factor, rope_mscale) / yarn_mscale(rope_factor, rope_mscale_all_dim) * rope_attn_factor;
    rope.mscale_gain = rope_attention_factor.value_or(gain);
  }
  return rope;
}

double ModelConfig::softmax_scale() const {
  const double scale = 1.0 / std::sqrt(static_cast<double>(qk_nope_head_dim + qk_rope_head_dim));
  const double m = has_yarn ? yarn_mscale(rope_factor, rope_mscale_all_dim) : 1.0;
  return scale * m * m;
}

bool ModelConfig::skip_topk(int64_t layer) const {
  require(layer >= 0, "skip_topk: layer: expected >= 0, is {}", layer);
  if (family != ModelFamily::deepseek_mla || index_topk == 0 || layer >= num_hidden_layers) return false;
  if (!index_topk_pattern.empty()) {
    require(layer < static_cast<int64_t>(index_topk_pattern.size()), "index_topk_pattern: expected a character for layer {}, has {}", layer,
            index_topk_pattern.size());
    return index_topk_pattern[static_cast<size_t>(layer)] == 'S';
  }
  return std::max<int64_t>(layer - index_skip_topk_offset + 1, 0) % index_topk_freq != 0;
}

}  // namespace strata
