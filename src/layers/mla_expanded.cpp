#include "layers/mla_expanded.h"

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "layers/linear_activation.h"

namespace strata {
namespace {

// 4096 rows of 128 heads are 268 MB of keys and values; larger products gain nothing.
constexpr int64_t kDefaultChunkRows = 4096;

}  // namespace

// The views of one call.
struct MlaExpandedAttention::Step {
  const Batch& batch;
  const PagedCache& cache;
  const TensorView& q;
  const TensorView& c;
  const TensorView& k_pe;
  const TensorView& o;

  int64_t first_token(int64_t request) const { return batch.query_start_loc_host[static_cast<size_t>(request)]; }
  int64_t query_len(int64_t request) const { return first_token(request + 1) - first_token(request); }
  // Positions before the step's tokens that these attend to.
  int64_t context(int64_t request) const {
    return query_len(request) == 0 ? 0 : batch.seq_lens_host[static_cast<size_t>(request)] - query_len(request);
  }
};

MlaExpandedAttention::MlaExpandedAttention(const WeightLoader& loader, const MlaShape& shape, const LayerOptions& options,
                                           const TensorView& numbers)
    : shape_(shape),
      activation_(linear_activation(loader, "kv_b_proj", options)),
      chunk_rows_(options.context_chunk_rows > 0 ? options.context_chunk_rows : kDefaultChunkRows),
      numbers_(numbers) {
  kv_b_ = loader.load_linear("kv_b_proj", {.n = shape.total_heads * shape.kv_b_head(),
                                           .k = shape.latent,
                                           .rows = {shape.first_head * shape.kv_b_head(), shape.heads * shape.kv_b_head()},
                                           .activation = activation_});
}

MlaExpandedAttention::Expanded MlaExpandedAttention::expand(const OpRunner& run, const TensorView& c) const {
  const TensorView kv = run.arena.tensor(DType::bf16, {c.shape[0], shape_.heads, shape_.kv_b_head()});
  run(run.ops.linear,
      LinearParams{.x = c, .weight = &kv_b_->weight, .y = kv.reshape({c.shape[0], kv_b_->weight.n}), .activation = activation_});
  return {kv.columns(0, shape_.nope), kv.columns(shape_.nope, shape_.value)};
}

DenseAttnPrefillParams MlaExpandedAttention::attention(const TensorView& q, const Expanded& kv, const TensorView& k_pe, bool causal,
                                                       const TensorView& out) const {
  return {.q = q,
          .k_nope = kv.k_nope,
          .k_pe = k_pe,
          .v = kv.v,
          .max_query_len = q.shape[0],
          .max_key_len = k_pe.shape[0],
          .causal = causal,
          .softmax_scale = shape_.softmax_scale,
          .out = out};
}

void MlaExpandedAttention::forward(const OpRunner& run, const Batch& batch, const PagedCache& cache, int64_t first_request,
                                   const TensorView& q, const TensorView& c, const TensorView& k_pe, const TensorView& o) const {
  const Step step{batch, cache, q, c, k_pe, o};
  // Padding requests of a uniform step are the last ones, and have tokens.
  int64_t end = batch.num_requests;
  while (end > first_request && batch.seq_lens_host[static_cast<size_t>(end - 1)] == 0) --end;
  run.zero(o.slice(step.first_token(end), step.first_token(batch.num_requests) - step.first_token(end)));
  int64_t fresh = first_request;  // requests [fresh, r) have no context: one call computes them all
  for (int64_t r = first_request; r < end; ++r) {
    const int64_t context = step.context(r);
    if (context == 0) continue;
    attend_new(run, step, fresh, r - fresh);
    attend_with_context(run, step, r, context);
    fresh = r + 1;
  }
  attend_new(run, step, fresh, end - fresh);
}

void MlaExpandedAttention::attend_new(const OpRunner& run, const Step& step, int64_t first_request, int64_t num_requests) const {
  const int64_t first = step.first_token(first_request), count = step.first_token(first_request + num_requests) - first;
  if (count == 0) return;
  ArenaScope scope(run.arena);
  const Expanded kv = expand(run, step.c.slice(first, count));
  DenseAttnPrefillParams params =
      attention(step.q.slice(first, count), kv, step.k_pe.slice(first, count), /*causal=*/true, step.o.slice(first, count));
  params.query_start_loc = params.key_start_loc = step.batch.query_start_loc.slice(first_request, num_requests + 1);
  params.max_query_len = params.max_key_len = std::min(count, step.batch.max_query_len);
  run(run.ops.dense_attn_prefill, params);
}

void MlaExpandedAttention::attend_with_context(const OpRunner& run, const Step& step, int64_t request, int64_t context) const {
  const int64_t first = step.first_token(request), count = step.query_len(request);
  const TensorView q = step.q.slice(first, count);
  ArenaScope scope(run.arena);
  // Slice 0: the result so far, fp32 until the end. Slice 1: the next chunk's.
  const TensorView parts = run.arena.tensor(DType::f32, {2, count, shape_.heads, shape_.value});
  const TensorView lses = run.arena.tensor(DType::f32, {2, count, shape_.heads});
  const auto part = [&](int64_t i) { return parts.slice(i, 1).reshape({count, shape_.heads, shape_.value}); };
  const auto lse = [&](int64_t i) { return lses.slice(i, 1).reshape({count, shape_.heads}); };
  {
    ArenaScope keys(run.arena);
    const Expanded kv = expand(run, step.c.slice(first, count));
    DenseAttnPrefillParams params = attention(q, kv, step.k_pe.slice(first, count), /*causal=*/true, part(0));
    params.lse = lse(0);
    run(run.ops.dense_attn_prefill, params);
  }
  const CacheGroupSpec& spec = step.batch[CacheGroup::mla_latent].spec;
  const int64_t chunk_rows = (chunk_rows_ + spec.page_size - 1) / spec.page_size * spec.page_size;  // chunks begin with a page
  for (int64_t begin = 0; begin < context; begin += chunk_rows) {
    const int64_t rows = std::min(chunk_rows, context - begin);
    ArenaScope chunk(run.arena);
    const TensorView keys = run.arena.tensor(DType::bf16, {1, rows, shape_.row()});
    run(run.ops.dequantize_and_gather_k,
        DequantizeAndGatherKParams{.cache = step.cache,
                                   .seq_lens = numbers_.slice(begin + rows, 1),
                                   .gather_lens = numbers_.slice(rows, 1),
                                   .block_table = step.batch[CacheGroup::mla_latent].block_table.slice(request, 1),
                                   .out = keys});
    const TensorView latents = keys.reshape({rows, shape_.row()});
    const Expanded kv = expand(run, latents.columns(0, shape_.latent));
    DenseAttnPrefillParams params = attention(q, kv, latents.columns(shape_.latent, shape_.rope), /*causal=*/false, part(1));
    params.lse = lse(1);
    run(run.ops.dense_attn_prefill, params);
    const bool last = begin + rows == context;
    run(run.ops.merge_attn_states, MergeAttnStatesParams{.o = parts,
                                                         .lse = lses,
                                                         .empty_lse = -std::numeric_limits<float>::infinity(),
                                                         .out = last ? step.o.slice(first, count) : part(0),
                                                         .lse_out = last ? TensorView{} : lse(0)});
  }
}

}  // namespace strata
