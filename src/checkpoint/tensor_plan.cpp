#include "checkpoint/tensor_plan.h"

#include <algorithm>
#include <cmath>

#include "checkpoint/safetensors_header.h"
#include "checkpoint/tensor_names.h"

namespace strata {
namespace {

using Content = PlannedTensor::Content;

constexpr double kNormSpread = 0.1;  // of norm weights around 1, and of biases around 0
constexpr double kApeSpread = 0.5;
// Gates twice as wide as a projection that keeps its input's size: the softmax over a window is then neither flat nor a choice of one.
constexpr double kGateGain = 2.0;

class Plan {
 public:
  explicit Plan(const ModelConfig& config) : config_(config) {}

  // every_indexer: also of layers that take another layer's top-k.
  void layer(int64_t layer, bool every_indexer = false) {
    prefix_ = official_prefix(config_, layer);
    if (config_.family == ModelFamily::deepseek_v4) {
      v4(config_.compress_ratio(layer));
    } else {
      mla(config_.index_topk > 0 && (every_indexer || !config_.skip_topk(layer)));
    }
  }

  std::vector<PlannedTensor> finish() {
    std::stable_sort(tensors_.begin(), tensors_.end(),
                     [](const PlannedTensor& a, const PlannedTensor& b) { return a.stored.dtype.bits() > b.stored.dtype.bits(); });
    return std::move(tensors_);
  }

 private:
  void add(const std::string& suffix, DType dtype, std::vector<int64_t> shape, Content content, double mean, double stddev) {
    StoredTensor stored{.name = prefix_ + suffix, .dtype = dtype, .shape = std::move(shape)};
    stored.bytes = stored_bytes("synthesize", stored.name, stored.dtype, stored.shape, ErrorCode::invalid_argument);
    tensors_.push_back({std::move(stored), content, mean, stddev});
  }
  void values(const std::string& suffix, DType dtype, std::vector<int64_t> shape, double mean, double stddev) {
    add(suffix, dtype, std::move(shape), Content::normal, mean, stddev);
  }
  void norm(const std::string& name, int64_t n) { values(name + ".weight", DType::bf16, {n}, 1.0, kNormSpread); }
  // A projection that is bf16 in every checkpoint.
  void projection(const std::string& name, int64_t n, int64_t k, double gain = 1.0) {
    values(name + ".weight", DType::bf16, {n, k}, 0.0, gain / std::sqrt(static_cast<double>(k)));
  }
  // A projection that FP8 checkpoints quantise.
  void matrix(const std::string& name, int64_t n, int64_t k) {
    if (!config_.fp8_weights) return projection(name, n, k);
    const double stddev = 1.0 / std::sqrt(static_cast<double>(k));
    const auto [block_n, block_k] = config_.weight_block_size;
    const bool v4 = config_.family == ModelFamily::deepseek_v4;
    add(name + ".weight", DType::e4m3, {n, k}, Content::codes, 0.0, stddev);
    add(name + (v4 ? ".scale" : ".weight_scale_inv"), v4 ? DType::e8m0 : DType::f32,
        {(n + block_n - 1) / block_n, (k + block_k - 1) / block_k}, Content::scales, 0.0, stddev);
  }

  void v4(int32_t ratio) {
    const ModelConfig& c = config_;
    const int64_t heads = c.num_attention_heads;
    matrix("wq_a", c.q_lora_rank, c.hidden_size);
    norm("q_norm", c.q_lora_rank);
    matrix("wq_b", heads * c.head_dim, c.q_lora_rank);
    matrix("wkv", c.head_dim, c.hidden_size);
    norm("kv_norm", c.head_dim);
    matrix("wo_a", c.o_groups * c.o_lora_rank, heads / c.o_groups * c.head_dim);
    matrix("wo_b", c.hidden_size, c.o_groups * c.o_lora_rank);
    values("attn_sink", DType::f32, {heads}, 0.0, 1.0);
    if (ratio == 1) return;
    compressor("compressor", ratio, c.head_dim);
    if (ratio != 4) return;
    matrix("indexer.wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank);
    projection("indexer.weights_proj", c.index_n_heads, c.hidden_size);
    compressor("indexer.compressor", ratio, c.index_head_dim);
  }
  void compressor(const std::string& name, int64_t ratio, int64_t dim) {
    const int64_t width = (ratio == 4 ? 2 : 1) * dim;
    values(name + ".ape", DType::f32, {ratio, width}, 0.0, kApeSpread);
    projection(name + ".wkv", width, config_.hidden_size);
    projection(name + ".wgate", width, config_.hidden_size, kGateGain);
    norm(name + ".norm", dim);
  }

  void mla(bool indexer) {
    const ModelConfig& c = config_;
    const int64_t heads = c.num_attention_heads;
    const int64_t q_rows = heads * (c.qk_nope_head_dim + c.qk_rope_head_dim);
    if (c.q_lora_rank == 0) {
      matrix("q_proj", q_rows, c.hidden_size);
    } else {
      matrix("q_a_proj", c.q_lora_rank, c.hidden_size);
      norm("q_a_layernorm", c.q_lora_rank);
      matrix("q_b_proj", q_rows, c.q_lora_rank);
    }
    matrix("kv_a_proj_with_mqa", c.kv_lora_rank + c.qk_rope_head_dim, c.hidden_size);
    norm("kv_a_layernorm", c.kv_lora_rank);
    matrix("kv_b_proj", heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank);
    matrix("o_proj", c.hidden_size, heads * c.v_head_dim);
    if (!indexer) return;
    matrix("indexer.wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank);
    matrix("indexer.wk", c.index_head_dim, c.hidden_size);
    norm("indexer.k_norm", c.index_head_dim);
    values("indexer.k_norm.bias", DType::bf16, {c.index_head_dim}, 0.0, kNormSpread);
    projection("indexer.weights_proj", c.index_n_heads, c.hidden_size);
  }

  const ModelConfig& config_;
  std::string prefix_;
  std::vector<PlannedTensor> tensors_;
};

}  // namespace

std::vector<std::string> layer_suffixes(const ModelConfig& config, int64_t layer) {
  ModelConfig bf16 = config;
  bf16.fp8_weights = false;
  Plan plan(bf16);
  plan.layer(layer, /*every_indexer=*/true);  // the file may have one for a layer that takes another layer's top-k
  std::vector<std::string> suffixes;
  const size_t prefix = official_prefix(config, layer).size();
  for (const PlannedTensor& tensor : plan.finish()) suffixes.push_back(tensor.stored.name.substr(prefix));
  return suffixes;
}

std::vector<PlannedTensor> plan_tensors(const ModelConfig& config) {
  Plan plan(config);
  for (int64_t i = 0; i < config.num_hidden_layers + config.num_nextn_predict_layers; ++i) plan.layer(i);
  return plan.finish();
}

}  // namespace strata
