// One attention layer of DeepSeek V4: window only (ratio 1), 4:1 compressed with an indexer, or 128:1 compressed. V4 specification 7.
#pragma once

#include <optional>

#include "weights/load_weights.h"
#include "layers/compressor.h"
#include "layers/indexer.h"
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

 private:
  void check(const ForwardArgs& args) const;
  void run(const ForwardArgs& args, OpRunner& run) const;
  // The compressed keys that the first tokens of a step chose, as rows of their cache: what attention to the paged caches reads.
  struct ChosenSlots {
    TensorView indices;  // i32 [count, index_topk]
    TensorView lens;     // i32 [count]
  };
  ChosenSlots allocate_slots(OpRunner& run, int64_t count) const;
  // Queries, the keys of the step in every cache, and the choice among the compressed ones, for the first tokens as slots.
  // Of the first `raw_queries` tokens queries are left as their product makes them.
  void project(const ForwardArgs& args, OpRunner& run, const TensorView& q, int64_t raw_queries, const ChosenSlots& slots) const;
  void choose(const ForwardArgs& args, OpRunner& run, const Indexer::Query& query, const IndexerQueryParams& query_first,
              const ChosenSlots& slots) const;
  // Whether the choice among the compressed keys takes longer than the queries beside it.
  bool choice_is_longer(const ForwardArgs& args, const OpRunner& run) const;
  // Whether the step's prefill tokens attend to the paged caches, and not to gathered rows.
  bool prefill_reads_pages(const ForwardArgs& args) const;
  struct PagedTokens {
    int64_t first, count;
    bool raw_queries, scheduled;
  };
  void attend_paged(const ForwardArgs& args, OpRunner& run, const TensorView& q, const TensorView& o, bool rotated,
                    const ChosenSlots& slots, const PagedTokens& which) const;
  void attend_gathered(const ForwardArgs& args, OpRunner& run, const TensorView& q, const TensorView& o, bool rotated) const;
  int64_t measure_workspace() const;

  int64_t layer_;
  int32_t ratio_;
  ModelConfig config_;
  LayerOptions options_;
  int64_t num_heads_;  // H, of this rank
  float eps_;
  float softmax_scale_;
  std::shared_ptr<Device> device_;
  OpSet ops_;
  std::shared_ptr<RopeTables> rope_tables_;
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<Lanes> lanes_;
  TensorView cos_sin_;

  std::unique_ptr<LoadedLinear> wq_a_wkv_;  // [wq_a ; wkv]: both read x
  Tensor q_norm_;
  Tensor kv_norm_;
  std::unique_ptr<LoadedLinear> wq_b_;
  Tensor attn_sink_;
  ActivationFormat x_activation_;
  ActivationFormat qr_activation_;
  ActivationFormat qr_format_;              // of the normed query latent
  std::unique_ptr<LoadedLinear> kv_score_;  // projections of the compressor and of the indexer's, one below the other: both read x
  int64_t score_width_ = 0;                 // rows of the compressor's own
  std::optional<Compressor> compressor_;
  std::optional<Indexer> indexer_;
  std::optional<OutputProjection> output_projection_;
  int64_t workspace_bytes_ = 0;
};

}  // namespace strata
