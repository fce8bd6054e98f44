#include "layers/output_projection.h"

#include "layers/linear_activation.h"

namespace strata {

OutputProjection::OutputProjection(const WeightLoader& loader, const LayerOptions& options)
    : num_groups_(loader.checkpoint.config().o_groups / options.tp_size),
      heads_per_group_(loader.checkpoint.config().num_attention_heads / loader.checkpoint.config().o_groups),
      o_lora_rank_(loader.checkpoint.config().o_lora_rank),
      fp8_(options.fp8_output) {
  const ModelConfig& config = loader.checkpoint.config();
  const int64_t group_width = heads_per_group_ * config.head_dim;
  const int64_t rows = config.o_groups * o_lora_rank_;
  const int64_t rank_rows = num_groups_ * o_lora_rank_;
  const Shard shard{options.tp_rank * rank_rows, rank_rows};
  // The bf16 path multiplies with the dequantised weight, which is exact (V4 4.2): stored as bf16, or as e4m3 that is converted on the way.
  wo_a_ = loader.load_linear("wo_a", {.n = rows,
                                      .k = group_width,
                                      .rows = shard,
                                      .groups = num_groups_,
                                      .activation = fp8_ ? ActivationFormat::fp8_ue8m0 : ActivationFormat::bf16});
  wo_b_activation_ = linear_activation(loader, "wo_b", options);
  wo_b_ = loader.load_linear("wo_b", {.n = config.hidden_size, .k = rows, .columns = shard, .activation = wo_b_activation_});
}

void OutputProjection::forward(const OpRunner& run, const TensorView& positions, const TensorView& cos_sin, const TensorView& o,
                               bool rotated, const TensorView& out) const {
  const int64_t num_tokens = o.shape[0];
  const int64_t group_width = heads_per_group_ * o.shape[2];
  ArenaScope scope(run.arena);
  // In the format that wo_b takes.
  const bool codes = wo_b_activation_ != ActivationFormat::bf16 && o_lora_rank_ % kActivationBlock == 0;
  const TensorView z = run.arena.tensor(codes ? DType::e4m3 : DType::bf16, {num_tokens, num_groups_, o_lora_rank_});
  TensorView z_scale;
  if (codes) z_scale = run.arena.tensor(DType::f32, {num_tokens, num_groups_, o_lora_rank_ / kActivationBlock});
  GroupedLinearParams product{.weight = &wo_a_->weight, .y = z, .y_scale = z_scale, .y_format = wo_b_activation_};
  if (fp8_) {
    product.x = run.arena.tensor(DType::e4m3, {num_tokens, num_groups_, group_width});
    product.x_scale = run.arena.tensor(DType::f32, {num_tokens, num_groups_, group_width / 128});
    run(run.ops.inverse_rope_quant,
        InverseRopeQuantParams{.o = o, .positions = positions, .cos_sin = cos_sin, .out = product.x, .scale = product.x_scale});
  } else {
    const TensorView heads = rotated ? o : run.arena.tensor(DType::bf16, {num_tokens, o.shape[1], o.shape[2]});
    if (!rotated) run(run.ops.inverse_rope, InverseRopeParams{.o = o, .positions = positions, .cos_sin = cos_sin, .out = heads});
    product.x = heads.reshape({num_tokens, num_groups_, group_width});
  }
  run(run.ops.grouped_linear, product);
  const int64_t width = num_groups_ * o_lora_rank_;
  run(run.ops.linear, LinearParams{.x = z.reshape({num_tokens, width}),
                                   .x_scale = codes ? z_scale.reshape({num_tokens, width / kActivationBlock}) : TensorView{},
                                   .weight = &wo_b_->weight,
                                   .y = out,
                                   .activation = wo_b_activation_});
}

}  // namespace strata
