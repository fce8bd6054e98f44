// The compressor of one V4 layer: of the keys (d = 512) or of the indexer's keys (d = 128). V4 specification 9.
#pragma once

#include <memory>
#include <string>

#include "checkpoint/load_weights.h"
#include "layers/op_runner.h"
#include "strata/attention.h"

namespace strata {

class Compressor {
 public:
  struct Groups {
    CacheGroup state;
    CacheGroup compressed;
  };
  // `prefix`: "compressor" or "indexer.compressor". head_dim: 512 or 128.
  Compressor(const WeightLoader& loader, const std::string& prefix, int64_t head_dim, int32_t ratio, Groups groups, float eps,
             bool hadamard);

  // Projects x, saves the step's states, and writes every entry that the step completes.
  void forward(OpRunner& run, const Batch& batch, const LayerCaches& caches, const TensorView& x, const TensorView& cos_sin) const;

  size_t weight_bytes() const;

 private:
  int32_t ratio_;
  Groups groups_;
  float eps_;
  bool hadamard_;
  std::unique_ptr<LoadedLinear> wkv_wgate_;  // [wkv ; wgate]: one product gives kv, then score
  Tensor ape_;
  Tensor norm_;
};

}  // namespace strata
