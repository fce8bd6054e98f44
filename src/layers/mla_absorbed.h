// The absorbed form: multi-query attention over the latent cache. kv_b_proj is multiplied into the query on one side and applied to the
// attended latent on the other, so that no key is ever expanded. MLA specification 8 and 13.
#pragma once

#include "weights/load_weights.h"
#include "layers/mla_shape.h"
#include "layers/op_runner.h"

namespace strata {

// What the first N tokens of a sparse layer attend to: rows of the latent cache.
struct ChosenRows {
  TensorView positions;  // i32 [N, K], of their requests
  TensorView slots;      // i32 [N, K], the same
  TensorView lens;       // i32 [N]
};

class MlaAbsorbedAttention {
 public:
  MlaAbsorbedAttention(const LayerContext& context, const WeightLoader& loader, const MlaShape& shape);

  // q: bf16 [N, H, P + R], rotated, of the first N tokens of the batch; q_absorbed: bf16 [N, H, L + R] with the rotary lanes in it; o: bf16
  // [N, H, V]. Over everything earlier of requests [0, num_requests), whose tokens these are:
  void forward_dense(OpRunner& run, const Batch& batch, const PagedCache& cache, int64_t num_requests, const TensorView& q,
                     const TensorView& q_absorbed, const TensorView& o) const;
  // Over the rows chosen for each token, which what run.join() waits for may still be choosing. Straight from the pages, but for prefill
  // requests whose rows are gathered before (PrefillMode):
  void forward_sparse(OpRunner& run, const Batch& batch, const PagedCache& cache, const ChosenRows& rows, const TensorView& q,
                      const TensorView& q_absorbed, const TensorView& o) const;

  int64_t weight_bytes() const { return w_uk_->allocated_bytes() + w_uv_->allocated_bytes(); }

 private:
  // Calls attend(q_absorbed, z) between the two products; z: bf16 [N, H, L].
  template <class Attend>
  void forward(OpRunner& run, const TensorView& q, const TensorView& q_absorbed, const TensorView& o, Attend&& attend) const;

  // Tokens [first, first + count) of forward_sparse.
  struct Span {
    int64_t first, count;
  };
  bool gathers(const PagedCache& cache, int64_t num_tokens, int64_t num_rows, int64_t topk) const;
  void attend_paged(OpRunner& run, const PagedCache& cache, const ChosenRows& rows, const TensorView& q_absorbed, const TensorView& z,
                    Span span) const;
  // The tokens of request `request`, which has num_rows rows.
  void attend_gathered(OpRunner& run, const Batch& batch, const PagedCache& cache, const ChosenRows& rows, const TensorView& q_absorbed,
                       const TensorView& z, Span span, int64_t request, int64_t num_rows) const;

  MlaShape shape_;
  std::shared_ptr<Device> device_;
  PrefillMode prefill_mode_;
  bool batch_invariant_;
  std::unique_ptr<LoadedLinear> w_uk_;  // [H * L, P]: head h gives ql[h] = q_nope[h] W_UK_T[h]
  std::unique_ptr<LoadedLinear> w_uv_;  // [H * V, L]: head h gives o[h] = z[h] W_UV[h]
};

}  // namespace strata
