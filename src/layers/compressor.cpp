#include "layers/compressor.h"

namespace strata {

Compressor::Compressor(const WeightLoader& loader, const std::string& prefix, int64_t head_dim, int32_t ratio, Groups groups, float eps,
                       bool hadamard)
    : ratio_(ratio), groups_(groups), eps_(eps), hadamard_(hadamard) {
  const int64_t width = (ratio == 4 ? 2 : 1) * head_dim;  // coff * d
  // The products stay fp32: they are summed over up to 128 positions before they are rounded (V4 5.1).
  wkv_wgate_ = loader.load_fused_linear({{prefix + ".wkv", width}, {prefix + ".wgate", width}},
                                        {.k = loader.checkpoint.config().hidden_size, .output = DType::f32});
  ape_ = loader.load_f32(prefix + ".ape", {ratio, width});
  norm_ = loader.load_vector_f32(prefix + ".norm.weight", head_dim);
}

void Compressor::forward(OpRunner& run, const Batch& batch, const LayerCaches& caches, const TensorView& x,
                         const TensorView& cos_sin) const {
  const GroupMetadata& state = batch[groups_.state];
  const GroupMetadata& compressed = batch[groups_.compressed];
  ArenaScope scope(run.arena);
  const TensorView kv_score = run.arena.tensor(DType::f32, {x.shape[0], wkv_wgate_->weight.n});
  run(run.ops.linear, LinearParams{.x = x, .weight = &wkv_wgate_->weight, .y = kv_score});
  run(run.ops.save_partial_states, SavePartialStatesParams{.kv_score = kv_score,
                                                           .ape = ape_,
                                                           .positions = batch.positions,
                                                           .state_slots = state.slot_mapping,
                                                           .state = caches[groups_.state]});
  run(run.ops.compress_norm_rope_store, CompressNormRopeStoreParams{.state = caches[groups_.state],
                                                                    .block_table = state.block_table,
                                                                    .token_to_req = batch.token_to_req,
                                                                    .positions = batch.positions,
                                                                    .state_slots = state.slot_mapping,
                                                                    .out_slots = compressed.slot_mapping,
                                                                    .ratio = ratio_,
                                                                    .norm_weight = norm_,
                                                                    .eps = eps_,
                                                                    .cos_sin = cos_sin,
                                                                    .cache = caches[groups_.compressed],
                                                                    .hadamard = hadamard_});
}

size_t Compressor::weight_bytes() const {
  return wkv_wgate_->allocated_bytes() + ape_.allocated_bytes() + norm_.allocated_bytes();
}

}  // namespace strata
