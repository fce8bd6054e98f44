#include "ops/sparse_attention/norm_in_front.h"

#include <utility>

#include "core/arena.h"

namespace strata::ops {
namespace {

constexpr size_t kAlignment = 256;  // of a workspace

// The call behind the norm: its queries, contiguous, where `data` is.
SparseAttnDecodeParams behind(const SparseAttnDecodeParams& p, void* data) {
  SparseAttnDecodeParams normed = p;
  normed.q = TensorView::contiguous(data, DType::bf16, p.q.device, {p.q.shape[0], p.q.shape[1], p.q.shape[2], p.q.shape[3]});
  normed.norm_queries = false;
  if (!p.rotate_back) normed.positions = normed.cos_sin = {};
  return normed;
}

size_t bytes_of_queries(const SparseAttnDecodeParams& p) {
  return (behind(p, nullptr).q.bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

// All query tokens at once where they are evenly spaced.
void normalise(const Implementation<QNormRopeKvInsertParams>& norm, const SparseAttnDecodeParams& p, const TensorView& out,
               const ExecutionContext& context) {
  const int64_t batch = p.q.shape[0], queries = p.q.shape[1];
  const auto tokens = [](const TensorView& v, int64_t count, int64_t stride) {
    TensorView t = v;
    t.rank = 3;
    t.shape = {count, v.shape[2], v.shape[3], 0};
    t.stride = {stride, v.stride[2], v.stride[3], 0};
    return t;
  };
  const auto of = [&](const TensorView& q, const TensorView& q_out, const TensorView& positions) {
    TensorView kv = q;  // of which nothing is read
    kv.rank = 2;
    kv.shape = {q.shape[0], q.shape[2], 0, 0};
    kv.stride = {q.stride[0], q.stride[2], 0, 0};
    norm.run({.q = q, .kv = kv, .positions = positions, .cos_sin = p.cos_sin, .q_out = q_out, .eps = p.q_eps}, context);
  };
  if (queries == 1 || p.q.stride[0] == queries * p.q.stride[1]) {
    const int64_t stride = queries == 1 ? p.q.stride[0] : p.q.stride[1];
    return of(tokens(p.q, batch * queries, stride), tokens(out, batch * queries, out.stride[1]), p.positions);
  }
  for (int64_t b = 0; b < batch; ++b) {
    of(tokens(p.q.slice(b, 1), queries, p.q.stride[1]), tokens(out.slice(b, 1), queries, out.stride[1]),
       p.positions.slice(b * queries, queries));
  }
}

}  // namespace

std::vector<Implementation<SparseAttnDecodeParams>> norm_in_front(std::vector<Implementation<SparseAttnDecodeParams>> attention,
                                                                  const std::vector<Implementation<QNormRopeKvInsertParams>>& norms) {
  if (norms.empty()) return attention;
  for (Implementation<SparseAttnDecodeParams>& implementation : attention) {
    implementation.workspace_bytes = [bytes = implementation.workspace_bytes](const SparseAttnDecodeParams& p, const Device& device) {
      return p.norm_queries ? bytes_of_queries(p) + bytes(behind(p, nullptr), device) : bytes(p, device);
    };
    implementation.run = [run = implementation.run, norm = norms.front()](const SparseAttnDecodeParams& p,
                                                                          const ExecutionContext& context) {
      if (!p.norm_queries) return run(p, context);
      const SparseAttnDecodeParams normed = behind(p, context.workspace.data);
      const size_t taken = bytes_of_queries(p);
      ExecutionContext rest = context;
      rest.workspace = {static_cast<uint8_t*>(context.workspace.data) + taken, context.workspace.bytes - taken};
      if (normed.q.numel() > 0) normalise(norm, p, normed.q, context);
      run(normed, rest);
    };
  }
  return attention;
}

}  // namespace strata::ops
