#include "ops/sparse_attention/norm_in_front.h"

#include <utility>

#include "core/arena.h"
#include "ops/sparse_attention/query_tokens.h"

namespace strata::ops {
namespace {

// The call behind the norm: its queries are taken from the arena.
SparseAttnDecodeParams behind(const SparseAttnDecodeParams& p, Arena& arena) {
  SparseAttnDecodeParams normed = p;
  normed.q = arena.tensor(DType::bf16, {p.q.shape[0], p.q.shape[1], p.q.shape[2], p.q.shape[3]});
  normed.norm_queries = false;
  if (!p.rotate_back) normed.positions = normed.cos_sin = {};
  return normed;
}

void normalise(const Implementation<QNormRopeKvInsertParams>& norm, const SparseAttnDecodeParams& p, const TensorView& out,
               const ExecutionContext& context) {
  const int64_t queries = p.q.shape[1];
  for_even_entries(p.q, [&](int64_t first, int64_t entries) {
    const TensorView q = as_tokens(p.q.slice(first, entries));
    TensorView kv = q;  // of which nothing is read
    kv.rank = 2;
    kv.shape = {q.shape[0], q.shape[2], 0, 0};
    kv.stride = {q.stride[0], q.stride[2], 0, 0};
    norm.run({.q = q,
              .kv = kv,
              .positions = p.positions.slice(first * queries, entries * queries),
              .cos_sin = p.cos_sin,
              .q_out = as_tokens(out.slice(first, entries)),
              .eps = p.q_eps},
             context);
  });
}

}  // namespace

std::vector<Implementation<SparseAttnDecodeParams>> norm_in_front(std::vector<Implementation<SparseAttnDecodeParams>> attention,
                                                                  const std::vector<Implementation<QNormRopeKvInsertParams>>& norms) {
  if (norms.empty()) return attention;
  for (Implementation<SparseAttnDecodeParams>& implementation : attention) {
    implementation.workspace_bytes = [bytes = implementation.workspace_bytes](const SparseAttnDecodeParams& p, const Device& device) {
      if (!p.norm_queries) return bytes(p, device);
      Arena measure(p.q.device);
      const SparseAttnDecodeParams normed = behind(p, measure);
      return measure.used() + bytes(normed, device);
    };
    implementation.run = [run = implementation.run, norm = norms.front()](const SparseAttnDecodeParams& p,
                                                                          const ExecutionContext& context) {
      if (!p.norm_queries) return run(p, context);
      Arena arena(p.q.device, context.workspace);
      const SparseAttnDecodeParams normed = behind(p, arena);
      if (normed.q.numel() > 0) normalise(norm, p, normed.q, context);
      run(normed, {context.device, context.stream, arena.rest(0)});
    };
  }
  return attention;
}

}  // namespace strata::ops
