#include <bit>

#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/indexer/indexer_checks.h"

namespace strata::ops {

void check_query(ParamCheck& c, const IndexerQueryParams& p) {
  c.view("q", p.q, DType::bf16, {kAny, kAny, kAny});
  const int64_t tokens = p.q.shape[0], heads = p.q.shape[1], dim = p.q.shape[2];
  c.require(dim >= 1 && dim <= kMaxIndexerDim, "q must have 1 to {} values per head, has {}", kMaxIndexerDim, dim);
  c.view("weights", p.weights, {DType::bf16, DType::f32}, {tokens, heads});
  if (p.cos_sin.present()) {
    c.view("cos_sin", p.cos_sin, DType::f32, {kAny, kAny});
    const int64_t rotary = p.cos_sin.shape[1];
    c.require(rotary >= 2 && rotary % 2 == 0 && rotary <= dim, "cos_sin must have an even number of columns in [2, {}], has {}", dim,
              rotary);
    c.view("positions", p.positions, DType::i64, {tokens});
  } else {
    c.optional("positions", p.positions, DType::i64, {tokens});
  }
  c.require(!p.hadamard || std::has_single_bit(static_cast<uint64_t>(dim)),
            "q must have a power of two of values per head for hadamard, has {}", dim);
  check_positive(c, "softmax_scale", p.softmax_scale);
  check_positive(c, "head_scale", p.head_scale);
  check_positive(c, "amax_floor", p.amax_floor);
  c.require(p.q_out.dtype != DType::u8 || dim % kMxfp4Block == 0, "q must have a multiple of {} values per head for MXFP4 codes, has {}",
            int{kMxfp4Block}, dim);
  check_query_codes(c, "q_out", p.q_out, "q_scale_out", p.q_scale_out, tokens, heads, dim);
  c.view("weights_out", p.weights_out, DType::f32, {tokens, heads});
  c.contiguous("weights_out", p.weights_out);
  if (p.cos_sin.present()) c.values_in("positions", p.positions, 0, p.cos_sin.shape[0], false);
}

namespace {

void check(const IndexerQueryParams& p, DeviceId device) {
  ParamCheck c("indexer_query", device);
  check_query(c, p);
}

}  // namespace

Op<IndexerQueryParams> make_indexer_query() {
  return {"indexer_query", check, join(cuda::indexer_query(), cpu::indexer_query(), reference::indexer_query())};
}

}  // namespace strata::ops
