// From the attention output to hidden states: inverse rotation, grouped product with wo_a, product with wo_b. V4 specification 15.
#pragma once

#include "weights/load_weights.h"
#include "layers/op_runner.h"
#include "strata/attention.h"

namespace strata {

class OutputProjection {
 public:
  OutputProjection(const WeightLoader& loader, const LayerOptions& options);

  // The weights that forward() reads first.
  TensorView first_weights() const {
    const LinearWeight& w = wo_a_->weight;
    return w.packed.present() ? w.packed.reshape({1, w.packed.shape[0]}) : w.weight;
  }
  // Whether forward() takes o already rotated back, as attention's epilogue can leave it.
  bool takes_rotated() const { return !fp8_; }
  // o: bf16 [T, H, D], not written; `rotated`: it is already rotated back. out: bf16 [T, hidden], this rank's partial sum.
  void forward(const OpRunner& run, const TensorView& positions, const TensorView& cos_sin, const TensorView& o, bool rotated,
               const TensorView& out) const;

  int64_t weight_bytes() const { return wo_a_->allocated_bytes() + wo_b_->allocated_bytes(); }

 private:
  int64_t num_groups_;       // G, on this rank
  int64_t heads_per_group_;  // hpg
  int64_t o_lora_rank_;
  bool fp8_;  // quantise o before wo_a
  ActivationFormat wo_b_activation_;
  std::unique_ptr<LoadedLinear> wo_a_;
  std::unique_ptr<LoadedLinear> wo_b_;
};

}  // namespace strata
