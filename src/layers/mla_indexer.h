// The lightning indexer of a V3.2 layer: selects the earlier positions that each token attends to. MLA specification 11.
#pragma once

#include "weights/load_weights.h"
#include "layers/linear_activation.h"
#include "layers/op_runner.h"
#include "strata/attention.h"

namespace strata {

class MlaIndexer {
 public:
  // cos_sin: the layer's rotary table, absent without a rotary embedding.
  MlaIndexer(const WeightLoader& loader, const LayerOptions& options, const TensorView& cos_sin);

  // Writes the step's indexer keys, from the layer's input x [T, hidden].
  void write_keys(const OpRunner& run, const Batch& batch, const LayerCaches& caches, const TensorView& x) const;
  // The format of the query latent in its product.
  ActivationFormat query_activation() const { return q_activation_; }
  // What select() needs, from the layer's input x [T, hidden] and q_c [T, q_lora_rank], the normalised query latent.
  struct Query {
    TensorView q{};        // [T, heads, head_dim]
    TensorView weights{};  // f32 [T, heads]
  };
  Query allocate_query(Arena& arena, int64_t num_tokens) const;
  void project_weights(const OpRunner& run, const TensorView& x, const Query& query) const;
  void project_queries(const OpRunner& run, const NormedLatent& q_c, const Query& query) const;
  // Selects the top-k among all keys written so far. topk_indices: i32 [T, K]. slots, i32 [N, K], and slot_lens, i32 [N]: the same for the
  // first N tokens as slots of the latent cache.
  void select(const OpRunner& run, const Batch& batch, const LayerCaches& caches, const Query& query, const TensorView& topk_indices,
              const TensorView& slots, const TensorView& slot_lens) const;

  int64_t weight_bytes() const;

 private:
  int64_t num_heads_;
  int64_t head_dim_;
  IndexerFormat format_;
  bool hadamard_;
  RopePairing pairing_;
  TensorView cos_sin_;
  ActivationFormat q_activation_;
  std::unique_ptr<LoadedLinear> wq_b_;
  std::unique_ptr<LoadedLinear> wk_;
  std::unique_ptr<LoadedLinear> weights_proj_;
  Tensor k_norm_weight_;
  Tensor k_norm_bias_;
};

}  // namespace strata
