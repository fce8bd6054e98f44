// Multi-head Latent Attention of DeepSeek V2, V3/R1 and V3.2: dense, or sparse by an indexer of its own or of an earlier layer.
// MLA specification 5.
#pragma once

#include <optional>

#include "weights/load_weights.h"
#include "layers/mla_absorbed.h"
#include "layers/mla_expanded.h"
#include "layers/mla_indexer.h"
#include "layers/mla_shape.h"
#include "layers/op_runner.h"
#include "strata/attention.h"

namespace strata {

class MultiHeadLatentAttention final : public AttentionLayer {
 public:
  explicit MultiHeadLatentAttention(const LayerContext& context);

  int64_t layer_index() const override { return layer_; }
  int32_t compress_ratio() const override { return 1; }
  std::string kind() const override { return sparse() ? "mla_sparse" : "mla"; }
  int64_t hidden_size() const override { return config_.hidden_size; }
  int64_t num_heads() const override { return shape_.heads; }
  int64_t index_topk() const override { return config_.index_topk; }
  std::vector<CacheGroupSpec> cache_groups() const override;
  int64_t weight_bytes() const override;
  int64_t workspace_bytes() const override { return workspace_bytes_; }
  void forward(const ForwardArgs& args) override;

 private:
  // What attention starts from.
  struct Latents {
    TensorView q;     // bf16 [T, H, P + R]
    TensorView c;     // bf16 [T, L], normalised
    TensorView k_pe;  // bf16 [T, R], not normalised
  };

  bool sparse() const { return config_.index_topk > 0; }
  // Requests whose tokens attend in the absorbed form: the first ones, as decode requests come first.
  int64_t absorbed_requests(const Batch& batch) const;

  void load(const LayerContext& context);
  void check(const ForwardArgs& args) const;
  int64_t measure_workspace() const;
  void run(const ForwardArgs& args, OpRunner& run) const;
  // Sparse layers: the indexer keys of the step on lane 0, and the choice among all keys on lane 1, beside the queries.
  void write_indexer_keys(const ForwardArgs& args, OpRunner& run) const;
  void choose(const ForwardArgs& args, OpRunner& run, const NormedLatent& q_c, const MlaIndexer::Query& query,
              const ChosenRows& rows) const;
  Latents project(const ForwardArgs& args, OpRunner& run, const ChosenRows& rows) const;
  void attend_absorbed(const ForwardArgs& args, OpRunner& run, const Latents& x, const ChosenRows& rows, const TensorView& o,
                       int64_t num_requests, int64_t num_tokens) const;

  int64_t layer_;
  ModelConfig config_;
  LayerOptions options_;
  MlaShape shape_;
  float eps_;
  std::shared_ptr<Device> device_;
  OpSet ops_;
  std::shared_ptr<RopeTables> rope_tables_;
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<Lanes> lanes_;
  TensorView cos_sin_;  // absent: no rotary embedding

  std::unique_ptr<LoadedLinear> x_proj_;  // [q_a_proj ; kv_a_proj_with_mqa]: both read x; without a query latent the second alone
  std::unique_ptr<LoadedLinear> q_proj_;  // q_b_proj from the query latent, or q_proj from x
  std::unique_ptr<LoadedLinear> o_proj_;
  ActivationFormat x_activation_;
  ActivationFormat q_activation_;
  ActivationFormat q_c_format_;  // of the normed query latent
  ActivationFormat o_activation_;
  Tensor q_norm_;  // empty without a query latent
  Tensor kv_norm_;
  std::optional<MlaAbsorbedAttention> absorbed_;
  std::optional<MlaExpandedAttention> expanded_;
  std::optional<MlaIndexer> indexer_;
  int64_t workspace_bytes_ = 0;
};

}  // namespace strata
