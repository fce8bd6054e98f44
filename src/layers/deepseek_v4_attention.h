// One attention layer of DeepSeek V4: window only (ratio 1), 4:1 compressed with an indexer, or 128:1 compressed. V4 specification 7.
#pragma once

#include <optional>

#include "weights/load_weights.h"
#include "layers/compressor.h"
#include "layers/indexer.h"
#include "layers/launch_order/v4.h"
#include "layers/op_runner.h"
#include "layers/output_projection.h"
#include "strata/attention.h"

namespace strata {

class DeepseekV4Attention final : public AttentionLayer {
 public:
  explicit DeepseekV4Attention(const LayerContext& context);

  int64_t layer_index() const override { return layer_; }
  int32_t compress_ratio() const override { return ratio_; }
  std::string kind() const override { return ratio_ == 1 ? "window" : ratio_ == 4 ? "c4" : "c128"; }
  int64_t hidden_size() const override { return config_.hidden_size; }
  int64_t num_heads() const override { return num_heads_; }
  int64_t index_topk() const override { return ratio_ == 4 ? config_.index_topk : 0; }
  std::vector<CacheGroupSpec> cache_groups() const override;
  int64_t weight_bytes() const override;
  int64_t workspace_bytes() const override { return workspace_bytes_; }
  void forward(const ForwardArgs& args) override;
  // Launches the steps in this order from now on, for any sizes: for tests and for measuring a new order.
  void set_launch_order(std::vector<Launch<V4Step>> order) { launch_order_ = std::move(order); }

 private:
  void check(const ForwardArgs& args) const;
  void run(const ForwardArgs& args, const OpRunner& run) const;
  // The top-k of the first tokens of a step as slots of the compressed cache, for attention to the paged caches.
  struct TopkSlots {
    TensorView indices;  // i32 [count, index_topk]
    TensorView lens;     // i32 [count]
  };
  // What the steps before attention read and write. T tokens; views are absent where the layer has no such step.
  struct Projections {
    const ForwardArgs& args;
    TensorView q;               // bf16 [T, H, D]
    int64_t raw_queries = 0;    // number of first tokens whose queries are left without norm and rotation
    TopkSlots slots{};          // of the first tokens
    TensorView latents{};       // bf16 [T, q_lora_rank + D]: qa, kv
    TensorView qa{};            // bf16 [T, q_lora_rank]
    NormedLatent qr{};          // qa, normalised
    TensorView kv{};            // bf16 [T, D]
    TensorView all_scores{};    // f32 [T, ...]: scores, index_scores
    TensorView scores{};        // of the compressor
    TensorView index_scores{};  // of the indexer's compressor
    Indexer::Query index_query{};
    bool select_makes_query = false;  // select_topk does the step index_query
  };
  TopkSlots allocate_slots(const OpRunner& run, int64_t count) const;
  void project(const ForwardArgs& args, const OpRunner& run, const TensorView& q, int64_t raw_queries, const TopkSlots& slots) const;
  void issue(V4Step step, const Projections& p, const OpRunner& run) const;
  void project_queries(const Projections& p, const OpRunner& run) const;
  void select_topk(const Projections& p, const OpRunner& run) const;
  // Whether the step's prefill tokens attend to the paged caches instead of gathered rows.
  bool prefill_reads_pages(const ForwardArgs& args) const;
  struct PagedTokens {
    int64_t first, count;
    bool raw_queries, scheduled;
  };
  void attend_paged(const ForwardArgs& args, const OpRunner& run, const TensorView& q, const TensorView& o, bool rotated,
                    const TopkSlots& slots, const PagedTokens& which) const;
  void attend_gathered(const ForwardArgs& args, const OpRunner& run, const TensorView& q, const TensorView& o, bool rotated) const;
  int64_t measure_workspace() const;

  int64_t layer_;
  int32_t ratio_;
  ModelConfig config_;
  LayerOptions options_;
  int64_t num_heads_;  // H, on this rank
  float eps_;
  float softmax_scale_;
  std::shared_ptr<Device> device_;
  OpSet ops_;
  std::shared_ptr<RopeTables> rope_tables_;
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<SideStreams> side_streams_;
  TensorView cos_sin_;

  std::unique_ptr<LoadedLinear> wq_a_wkv_;  // [wq_a ; wkv]: both read x
  Tensor q_norm_;
  Tensor kv_norm_;
  std::unique_ptr<LoadedLinear> wq_b_;
  Tensor attn_sink_;
  ActivationFormat x_activation_;
  ActivationFormat qr_activation_;
  ActivationFormat qr_format_;              // of the normed query latent
  std::unique_ptr<LoadedLinear> kv_score_;  // projections of the compressor, then of the indexer's compressor: both read x
  int64_t score_width_ = 0;                 // rows of the compressor's projection
  std::optional<Compressor> compressor_;
  std::optional<Indexer> indexer_;
  std::optional<OutputProjection> output_projection_;
  int64_t workspace_bytes_ = 0;
  std::vector<Launch<V4Step>> launch_order_;  // empty: v4_launch_order
};

}  // namespace strata
