#include "ops/sparse_attention/rotate_behind.h"

#include <utility>

#include "ops/run_behind.h"

namespace strata::ops {
namespace {

// In place, all query tokens at once where they are evenly spaced.
void rotate(const Implementation<InverseRopeParams>& rotation, const SparseAttnDecodeParams& p, const ExecutionContext& context) {
  const int64_t batch = p.out.shape[0], queries = p.out.shape[1];
  const auto rotate_tokens = [&](TensorView o, const TensorView& positions) {
    rotation.run({.o = o, .positions = positions, .cos_sin = p.cos_sin, .out = o}, context);
  };
  const auto tokens = [&](int64_t count, int64_t stride) {
    TensorView v = p.out;
    v.rank = 3;
    v.shape = {count, p.out.shape[2], p.out.shape[3], 0};
    v.stride = {stride, p.out.stride[2], p.out.stride[3], 0};
    return v;
  };
  if (queries == 1 || p.out.stride[0] == queries * p.out.stride[1]) {
    return rotate_tokens(tokens(batch * queries, queries == 1 ? p.out.stride[0] : p.out.stride[1]), p.positions);
  }
  for (int64_t b = 0; b < batch; ++b) {
    TensorView o = tokens(queries, p.out.stride[1]);
    o.data = p.out.slice(b, 1).data;
    rotate_tokens(o, p.positions.slice(b * queries, queries));
  }
}

}  // namespace

std::vector<Implementation<SparseAttnDecodeParams>> rotate_behind(std::vector<Implementation<SparseAttnDecodeParams>> attention,
                                                                  const std::vector<Implementation<InverseRopeParams>>& rotations) {
  return run_behind(std::move(attention), rotations, [](const auto& rotation, const SparseAttnDecodeParams& p, const auto& context) {
    if (p.positions.present() && p.rotate_back) rotate(rotation, p, context);
  });
}

}  // namespace strata::ops
