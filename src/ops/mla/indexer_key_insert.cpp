#include <bit>

#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/indexer/indexer_checks.h"
#include "ops/mla/token_checks.h"

namespace strata::ops {
namespace {

void check(const IndexerKeyInsertParams& p, DeviceId device) {
  ParamCheck c("indexer_key_insert", device);
  c.view("k", p.k, DType::bf16, {kAny, kAny});
  const int64_t tokens = p.k.shape[0], dim = p.k.shape[1];
  c.require(dim >= 1 && dim <= kMaxIndexerDim, "k must have 1 to {} dimensions, has {}", kMaxIndexerDim, dim);
  c.view("weight", p.weight, DType::f32, {dim});
  c.view("bias", p.bias, DType::f32, {dim});
  check_positive(c, "eps", p.eps);
  check_rotation(c, p.positions, p.cos_sin, tokens);
  if (p.cos_sin.present()) {
    const int64_t rotary = p.cos_sin.shape[1];
    c.require(rotary >= 2 && rotary % 2 == 0 && rotary <= dim, "cos_sin must have an even number of columns in [2, {}], has {}", dim,
              rotary);
  }
  c.require(!p.hadamard || std::has_single_bit(static_cast<uint64_t>(dim)), "k must have a power of two of dimensions for hadamard, has {}",
            dim);
  check_rows(c, "cache", p.cache, {KvFormat::indexer_fp8, KvFormat::bf16}, dim);
  check_slots(c, p.slot_mapping, tokens, p.cache);
}

}  // namespace

Op<IndexerKeyInsertParams> make_indexer_key_insert() {
  return {"indexer_key_insert", check,
          join(cuda::indexer_key_insert(), opencl::indexer_key_insert(), cpu::indexer_key_insert(), reference::indexer_key_insert())};
}

}  // namespace strata::ops
