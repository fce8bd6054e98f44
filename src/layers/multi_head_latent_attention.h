// Multi-head Latent Attention of DeepSeek V2, V3/R1 and V3.2: dense, or sparse with its own indexer or an earlier layer's. MLA
// specification 5.
#pragma once

#include <optional>

#include "weights/load_weights.h"
#include "layers/launch_order/mla.h"
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
  // Launches the steps in this order from now on: for tests and for measuring a new order.
  void set_launch_order(std::vector<Launch<MlaStep>> order) { launch_order_ = std::move(order); }

 private:
  // What the steps before attention read and write. T tokens, of which the first N attend in the absorbed form.
  struct Projections {
    const ForwardArgs& args;
    TopkRows rows{};       // sparse layers
    TensorView latents{};  // bf16 [T, q_lora_rank + L + R]: q_a, c, k_pe
    TensorView q_a{};      // bf16 [T, q_lora_rank]; absent without a query latent
    NormedLatent q_c{};    // q_a, normalised; or the layer's input
    TensorView c{};        // bf16 [T, L], normalised by `norms`
    TensorView k_pe{};     // bf16 [T, R], rotated by `insert_keys`
    MlaIndexer::Query index_query{};
    TensorView q{};           // bf16 [T, H, P + R]
    TensorView q_absorbed{};  // bf16 [N, H, L + R]
  };

  bool sparse() const { return config_.index_topk > 0; }
  // Number of first requests whose tokens attend in the absorbed form; decode requests come first.
  int64_t absorbed_requests(const Batch& batch) const;

  void load(const LayerContext& context);
  void check(const ForwardArgs& args) const;
  int64_t measure_workspace() const;
  void run(const ForwardArgs& args, const OpRunner& run) const;
  Projections allocate(const ForwardArgs& args, const OpRunner& run, int64_t absorbed_tokens) const;
  void issue(MlaStep step, const Projections& p, const OpRunner& run) const;

  int64_t layer_;
  ModelConfig config_;
  LayerOptions options_;
  MlaShape shape_;
  float eps_;
  std::shared_ptr<Device> device_;
  OpSet ops_;
  std::shared_ptr<RopeTables> rope_tables_;
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<SideStreams> side_streams_;
  TensorView cos_sin_;  // absent: no rotary embedding

  std::unique_ptr<LoadedLinear> x_proj_;  // [q_a_proj ; kv_a_proj_with_mqa]: both read x; without a query latent only the second
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
  std::vector<Launch<MlaStep>> launch_order_;  // empty: mla_launch_order
};

}  // namespace strata
