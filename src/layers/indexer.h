// The lightning indexer of a 4:1 layer: selects the compressed entries that each token attends to. V4 specification 10.
#pragma once

#include "weights/load_weights.h"
#include "layers/compressor.h"
#include "layers/linear_activation.h"
#include "layers/op_runner.h"
#include "strata/attention.h"

namespace strata {

class Indexer {
 public:
  Indexer(const WeightLoader& loader, const LayerOptions& options);

  // What keys are scored with: quantised queries, and head weights with the scales folded in.
  struct Query {
    TensorView projected;    // bf16 [T, Hi, Di]
    TensorView q;            // [T, Hi, Di], or packed
    TensorView scale;        // MXFP4 only
    TensorView raw_weights;  // bf16 [T, Hi], as projected
    TensorView weights;      // f32 [T, Hi]
  };
  Query allocate_query(Arena& arena, int64_t num_tokens) const;

  // Writes the step's indexer keys: later steps need them, whoever selects. kv_score: the projection of x for the indexer's compressor.
  void write_keys(const OpRunner& run, const Batch& batch, const LayerCaches& caches, const TensorView& kv_score,
                  const TensorView& cos_sin) const {
    compressor_.forward(run, batch, caches, kv_score, cos_sin);
  }
  // Projects the head weights, which depend on x alone.
  void project_weights(const OpRunner& run, const TensorView& x, const Query& query) const;
  // The product of project_queries(): its weight rows, and the format of its activation, the query latent.
  int64_t query_rows() const { return num_heads_ * head_dim_; }
  ActivationFormat query_activation() const { return activation_; }
  // Projects the queries. `qr`: the normalised query latent.
  void project_queries(const OpRunner& run, const NormedLatent& qr, const Query& query) const;
  // Makes the query of both projections: by the op indexer_query, or as the prologue of the selection.
  IndexerQueryParams query_params(const Batch& batch, const TensorView& cos_sin, const Query& query) const;
  IndexerQueryPrologue query_prologue(const Batch& batch, const TensorView& cos_sin, const Query& query) const;
  // Selects the top-k of every token among the keys written so far, to topk_indices [T, K]. The caller adds the query or its prologue.
  IndexerTopkParams select_params(const Batch& batch, const LayerCaches& caches, const TensorView& topk_indices) const;

  int64_t weight_bytes() const;

 private:
  int64_t num_heads_;
  int64_t head_dim_;
  IndexerFormat format_;
  bool hadamard_;
  ActivationFormat activation_;
  std::unique_ptr<LoadedLinear> wq_b_;
  std::unique_ptr<LoadedLinear> weights_proj_;
  Compressor compressor_;
};

// The format of indexer keys in the cache.
KvFormat indexer_kv_format(IndexerFormat format);

}  // namespace strata
