#include "layers/layer_options_check.h"

#include "core/check.h"
#include "formats/kv_rows.h"
#include "ops/dense_attention/dense_checks.h"

namespace strata {
namespace {

// Values that only a binding from another language can pass.
void check_values(const LayerOptions& options) {
  require(options.indexer_format <= IndexerFormat::none, "indexer_format must be fp8, mxfp4 or none, is {}",
          static_cast<int>(options.indexer_format));
  require(options.prefill_mode <= PrefillMode::paged, "prefill_mode must be automatic, gathered or paged, is {}",
          static_cast<int>(options.prefill_mode));
  require(options.mla_mode <= MlaMode::mqa, "mla_mode must be automatic, mha or mqa, is {}", static_cast<int>(options.mla_mode));
  require(options.context_chunk_rows >= 0, "context_chunk_rows must not be negative, is {}", options.context_chunk_rows);
  const int tp = options.tp_size;
  require(tp >= 1, "tp_size must be at least 1, is {}", tp);
  require(options.tp_rank >= 0 && options.tp_rank < tp, "tp_rank must be in [0, tp_size = {}), is {}", tp, options.tp_rank);
}

void check_heads(const ModelConfig& config, int tp) {
  const int64_t heads = config.num_attention_heads;
  require(heads % tp == 0, "num_attention_heads must be a multiple of tp_size {}, is {}", tp, heads);
  require(heads / tp >= 1 && heads / tp <= ops::kMaxHeads, "a rank must have 1 to {} heads, has {}", int64_t{ops::kMaxHeads}, heads / tp);
}

void check_v4(const ModelConfig& config, const LayerOptions& options) {
  require(config.o_groups % options.tp_size == 0, "o_groups must be a multiple of tp_size {}, is {}", options.tp_size, config.o_groups);
  require(!options.kv_scale_ue8m0, "kv_scale_ue8m0 must be false for V4 layers, whose caches are not fp8_ds_mla, is true");
  require(options.rotary_embedding, "rotary_embedding must be true for V4 layers, is false");
}

void at_most(const char* name, int64_t value, int64_t most) {
  if (value > most) fail(ErrorCode::unsupported, "{} must be at most {}, is {}", name, most, value);
}

// The limits of the ops: by the time an op refuses a call, earlier ops have written to the caches.
void check_mla_sizes(const ModelConfig& config, MlaMode mode) {
  constexpr const char* kRow = "kv_lora_rank + qk_rope_head_dim";
  const int64_t row = config.kv_lora_rank + config.qk_rope_head_dim;
  at_most(kRow, row, kMaxRowDim);
  if (config.index_topk > 0) {
    if (!ops::is_sparse_head_dim(row)) fail(ErrorCode::unsupported, "{} must be 512 or 576 for layers with an indexer, is {}", kRow, row);
    at_most("qk_rope_head_dim of a model with an indexer", config.qk_rope_head_dim, config.index_head_dim);
    return;
  }
  if (mode != MlaMode::mha) at_most("kv_lora_rank + qk_rope_head_dim with an mla_mode other than mha", row, ops::kMaxDenseHeadDim);
  if (mode == MlaMode::mqa) return;
  at_most("qk_nope_head_dim + qk_rope_head_dim with an mla_mode other than mqa", config.qk_nope_head_dim + config.qk_rope_head_dim,
          ops::kMaxDenseHeadDim);
  at_most("v_head_dim with an mla_mode other than mqa", config.v_head_dim, ops::kMaxDenseHeadDim);
}

void check_mla(const ModelConfig& config, const LayerOptions& options) {
  if (config.index_topk > 0 && options.mla_mode == MlaMode::mha) {
    fail(ErrorCode::unsupported, "mla_mode must be automatic or mqa for layers with an indexer (index_topk {}), is mha", config.index_topk);
  }
  require(!options.fp8_output, "fp8_output must be false for MLA layers, which have no wo_a, is true");
  const KvFormat format = options.kv_format.value_or(KvFormat::bf16);
  require(!options.kv_scale_ue8m0 || format == KvFormat::fp8_ds_mla, "kv_scale_ue8m0 must be false with kv_format {}, is true",
          to_string(format));
  check_mla_sizes(config, options.mla_mode);
}

}  // namespace

void check_layer_options(const ModelConfig& config, const LayerOptions& options) {
  check_values(options);
  check_heads(config, options.tp_size);
  if (config.family == ModelFamily::deepseek_v4) {
    check_v4(config, options);
  } else {
    check_mla(config, options);
  }
}

}  // namespace strata
