// The expanded form: multi-head attention with keys and values that kv_b_proj expands from latents. New tokens' latents come from memory,
// unquantised. Earlier ones come from the cache, in chunks of bounded size whose results merge_attn_states combines. MLA specification 7.
#pragma once

#include "weights/load_weights.h"
#include "layers/mla_shape.h"
#include "layers/op_runner.h"

namespace strata {

class MlaExpandedAttention {
 public:
  // `numbers`: RopeTables::numbers(), at least max_model_len + 1 entries.
  MlaExpandedAttention(const WeightLoader& loader, const MlaShape& shape, const LayerOptions& options, const TensorView& numbers);

  // Requests [first_request, num_requests) of the batch. q: bf16 [T, H, P + R], rotated; c: bf16 [T, L] and k_pe: bf16 [T, R], the step's
  // latents after norm and rotation; o: bf16 [T, H, V]. All views have the whole batch's rows.
  void forward(const OpRunner& run, const Batch& batch, const PagedCache& cache, int64_t first_request, const TensorView& q,
               const TensorView& c, const TensorView& k_pe, const TensorView& o) const;

  int64_t weight_bytes() const { return kv_b_->allocated_bytes(); }

 private:
  // Keys and values of all heads, expanded from latents.
  struct Expanded {
    TensorView k_nope;  // bf16 [N, H, P]
    TensorView v;       // bf16 [N, H, V]
  };
  Expanded expand(const OpRunner& run, const TensorView& c) const;
  // The params of attention without the request boundaries.
  DenseAttnPrefillParams attention(const TensorView& q, const Expanded& kv, const TensorView& k_pe, bool causal,
                                   const TensorView& out) const;

  struct Step;
  void attend_new(const OpRunner& run, const Step& step, int64_t first_request, int64_t num_requests) const;
  void attend_with_context(const OpRunner& run, const Step& step, int64_t request, int64_t context) const;

  MlaShape shape_;
  ActivationFormat activation_;
  int64_t chunk_rows_;
  TensorView numbers_;
  std::unique_ptr<LoadedLinear> kv_b_;
};

}  // namespace strata
