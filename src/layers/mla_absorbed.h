// The absorbed form: multi-query attention over the latent cache. kv_b_proj is multiplied into the query, and applied to the attended
// latent, so that no key is ever expanded. MLA specification 8 and 13.
#pragma once

#include "weights/load_weights.h"
#include "layers/mla_shape.h"
#include "layers/op_runner.h"

namespace strata {

// The rows of the latent cache that the first N tokens of a sparse layer attend to.
struct TopkRows {
  TensorView positions;  // i32 [N, K]: positions in their requests
  TensorView slots;      // i32 [N, K]: slots of these positions
  TensorView lens;       // i32 [N]
};

class MlaAbsorbedAttention {
 public:
  MlaAbsorbedAttention(const LayerContext& context, const WeightLoader& loader, const MlaShape& shape);

  // Writes the first L dimensions of q_absorbed, bf16 [N, H, L + R], from q, bf16 [N, H, P + R].
  void absorb_queries(const OpRunner& run, const TensorView& q, const TensorView& q_absorbed) const;
  // Attention of the first N tokens of the batch with their complete absorbed queries; o: bf16 [N, H, V].
  // attend_dense: to all earlier positions of requests [0, num_requests), which own these tokens.
  void attend_dense(const OpRunner& run, const Batch& batch, const PagedCache& cache, int64_t num_requests, const TensorView& q_absorbed,
                    const TensorView& o) const;
  // attend_sparse: to each token's rows, directly from the pages, except for prefill requests whose rows are gathered first (PrefillMode).
  void attend_sparse(const OpRunner& run, const Batch& batch, const PagedCache& cache, const TopkRows& rows, const TensorView& q_absorbed,
                     const TensorView& o) const;

  int64_t weight_bytes() const { return w_uk_->allocated_bytes() + w_uv_->allocated_bytes(); }

 private:
  // o := z W_UV, for z bf16 [N, H, L].
  void project_values(const OpRunner& run, const TensorView& z, const TensorView& o) const;
  // Tokens [first, first + count) of attend_sparse.
  struct Tokens {
    int64_t first, count;
  };
  bool gathers(const PagedCache& cache, int64_t num_tokens, int64_t num_rows, int64_t topk) const;
  void attend_paged(const OpRunner& run, const PagedCache& cache, const TopkRows& rows, const TensorView& q_absorbed, const TensorView& z,
                    Tokens tokens) const;
  // For the tokens of request `request`, which has num_rows rows.
  void attend_gathered(const OpRunner& run, const Batch& batch, const PagedCache& cache, const TopkRows& rows, const TensorView& q_absorbed,
                       const TensorView& z, Tokens tokens, int64_t request, int64_t num_rows) const;

  MlaShape shape_;
  std::shared_ptr<Device> device_;
  LayerOptions options_;
  std::unique_ptr<LoadedLinear> w_uk_;  // [H * L, P]: head h gives ql[h] = q_nope[h] W_UK_T[h]
  std::unique_ptr<LoadedLinear> w_uv_;  // [H * V, L]: head h gives o[h] = z[h] W_UV[h]
};

}  // namespace strata
