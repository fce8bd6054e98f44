#include "layers/compressor.h"

namespace strata {

namespace {

int64_t state_width(int64_t head_dim, int32_t ratio) { return (ratio == 4 ? 2 : 1) * head_dim; }  // coff * d

}  // namespace

std::vector<FusedPart> Compressor::projection(const std::string& prefix, int64_t head_dim, int32_t ratio) {
  const int64_t width = state_width(head_dim, ratio);
  return {{prefix + ".wkv", width}, {prefix + ".wgate", width}};
}

Compressor::Compressor(const WeightLoader& loader, const std::string& prefix, int64_t head_dim, int32_t ratio, Groups groups, float eps,
                       bool hadamard)
    : ratio_(ratio), groups_(groups), eps_(eps), hadamard_(hadamard) {
  ape_ = loader.load_f32(prefix + ".ape", {ratio, state_width(head_dim, ratio)});
  norm_ = loader.load_vector_f32(prefix + ".norm.weight", head_dim);
}

CompressNormRopeStoreParams Compressor::params(const Batch& batch, const LayerCaches& caches, const TensorView& kv_score,
                                               const TensorView& cos_sin) const {
  const GroupMetadata& state = batch[groups_.state];
  const GroupMetadata& compressed = batch[groups_.compressed];
  return {.save_prologue = StateSave{.kv_score = kv_score, .ape = ape_},
          .state = caches[groups_.state],
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
          .hadamard = hadamard_};
}

int64_t Compressor::weight_bytes() const { return ape_.allocated_bytes() + norm_.allocated_bytes(); }

}  // namespace strata
