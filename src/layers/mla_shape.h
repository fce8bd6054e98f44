// The sizes of a Multi-head Latent Attention layer on this rank: MLA specification 1.
#pragma once

#include "strata/attention.h"

namespace strata {

struct MlaShape {
  int64_t heads = 0;       // H
  int64_t first_head = 0;  // of this rank
  int64_t total_heads = 0;
  int64_t latent = 0;       // L, kv_lora_rank
  int64_t nope = 0;         // P
  int64_t rope = 0;         // R
  int64_t value = 0;        // V
  float softmax_scale = 0;  // for P + R dimensions, in both forms

  int64_t head() const { return nope + rope; }        // dimensions of a query head, and of a key head of the expanded form
  int64_t row() const { return latent + rope; }       // values of a cache row, and of a query head of the absorbed form
  int64_t kv_b_head() const { return nope + value; }  // rows of kv_b_proj per head: of its key, then of its value

  MlaShape(const ModelConfig& config, const LayerOptions& options)
      : heads(config.num_attention_heads / options.tp_size),
        first_head(options.tp_rank * heads),
        total_heads(config.num_attention_heads),
        latent(config.kv_lora_rank),
        nope(config.qk_nope_head_dim),
        rope(config.qk_rope_head_dim),
        value(config.v_head_dim),
        softmax_scale(static_cast<float>(config.softmax_scale())) {}
};

}  // namespace strata
