#include "ops/sparse_attention/rotate_behind.h"

#include <utility>

#include "ops/run_with.h"
#include "ops/sparse_attention/query_tokens.h"

namespace strata::ops {
namespace {

// In place.
void rotate(const Implementation<InverseRopeParams>& rotation, const SparseAttnDecodeParams& p, const ExecutionContext& context) {
  const int64_t queries = p.out.shape[1];
  for_even_entries(p.out, [&](int64_t first, int64_t entries) {
    const TensorView o = as_tokens(p.out.slice(first, entries));
    rotation.run({.o = o, .positions = p.positions.slice(first * queries, entries * queries), .cos_sin = p.cos_sin, .out = o}, context);
  });
}

}  // namespace

std::vector<Implementation<SparseAttnDecodeParams>> rotate_behind(std::vector<Implementation<SparseAttnDecodeParams>> attention,
                                                                  const std::vector<Implementation<InverseRopeParams>>& rotations) {
  return run_with(std::move(attention), rotations,
                  [](const auto& run, const auto& rotation, const SparseAttnDecodeParams& p, const auto& context) {
                    run(p, context);
                    if (p.positions.present() && p.rotate_back) rotate(rotation, p, context);
                  });
}

}  // namespace strata::ops
