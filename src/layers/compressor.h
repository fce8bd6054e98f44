// The compressor of one V4 layer: of the keys (d = 512) or of the indexer's keys (d = 128). V4 specification 9.
#pragma once

#include <string>
#include <vector>

#include "weights/load_weights.h"
#include "layers/op_runner.h"
#include "strata/attention.h"

namespace strata {

class Compressor {
 public:
  struct Groups {
    CacheGroup state;
    CacheGroup compressed;
  };
  // The weight rows that compute a token's kv, then its score, from x: [wkv ; wgate], 2 * coff * d rows. A layer stacks the rows of its
  // compressors into one product. `prefix`: "compressor" or "indexer.compressor". head_dim: 512 or 128.
  static std::vector<FusedPart> projection(const std::string& prefix, int64_t head_dim, int32_t ratio);

  Compressor(const WeightLoader& loader, const std::string& prefix, int64_t head_dim, int32_t ratio, Groups groups, float eps,
             bool hadamard);

  // Saves the step's states and writes every entry that the step completes. kv_score: f32 [T, 2 * coff * d], the projection of x.
  void forward(const OpRunner& run, const Batch& batch, const LayerCaches& caches, const TensorView& kv_score,
               const TensorView& cos_sin) const {
    run(run.ops.compress_norm_rope_store, params(batch, caches, kv_score, cos_sin));
  }

  int64_t weight_bytes() const;

 private:
  CompressNormRopeStoreParams params(const Batch& batch, const LayerCaches& caches, const TensorView& kv_score,
                                     const TensorView& cos_sin) const;

  int32_t ratio_;
  Groups groups_;
  float eps_;
  bool hadamard_;
  Tensor ape_;
  Tensor norm_;
};

}  // namespace strata
