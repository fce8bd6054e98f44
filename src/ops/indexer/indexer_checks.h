// Shared checks of the indexer ops.
#pragma once

#include <bit>

#include "contracts/indexer_limits.h"
#include "formats/quantize.h"
#include "ops/indices/value_checks.h"
#include "strata/ops/indexer.h"

namespace strata::ops {

// Quantised queries in one of the three formats: e4m3 or bf16 [T, Hi, Di], or u8 [T, Hi, Di/2] with e8m0 scales [T, Hi, Di/32]. Contiguous.
inline void check_query_codes(ParamCheck& c, std::string_view name, const TensorView& q, std::string_view scale_name,
                              const TensorView& scale, int64_t tokens, int64_t heads, int64_t dim) {
  const bool mxfp4 = q.dtype == DType::u8;
  c.view(name, q, {DType::e4m3, DType::u8, DType::bf16}, {tokens, heads, mxfp4 && dim != kAny ? dim / 2 : dim});
  c.contiguous(name, q);
  if (mxfp4) {
    const int64_t width = q.shape[2] * 2;
    c.require(width % kMxfp4Block == 0, "{} must hold a multiple of {} MXFP4 values per head, holds {}", name, int{kMxfp4Block}, width);
    c.view(scale_name, scale, DType::e8m0, {q.shape[0], q.shape[1], width / kMxfp4Block});
    c.contiguous(scale_name, scale);
  } else {
    c.require(!scale.present(), "{} must be absent with {} of {}, is {}", scale_name, name, to_string(q.dtype), scale);
  }
}

// The paged addressing of IndexerLogits and IndexerTopk.
template <class Params>
void check_addressing(ParamCheck& c, const Params& p, int64_t tokens) {
  c.view("block_table", p.block_table, DType::i32, {kAny, kAny});
  c.view("token_to_req", p.token_to_req, DType::i32, {tokens});
  c.view("lengths", p.lengths, DType::i32, {tokens});
}

// q, weights, cache and the paged addressing of IndexerLogits and IndexerTopk.
template <class Params>
void check_scoring_views(ParamCheck& c, const Params& p) {
  check_query_codes(c, "q", p.q, "q_scale", p.q_scale, kAny, kAny, kAny);
  const KvFormat format = p.q.dtype == DType::e4m3   ? KvFormat::indexer_fp8
                          : p.q.dtype == DType::bf16 ? KvFormat::bf16
                                                     : KvFormat::indexer_mxfp4;
  const int64_t tokens = p.q.shape[0];
  const int64_t dim = p.q.dtype == DType::u8 ? p.q.shape[2] * 2 : p.q.shape[2];
  c.require(dim >= 1 && dim <= kMaxIndexerDim, "q must have 1 to {} values per head, has {}", kMaxIndexerDim, dim);
  c.require(format == KvFormat::bf16 || dim == 128, "q must have 128 values per head with a cache of format {}, has {}", to_string(format),
            dim);
  c.view("weights", p.weights, DType::f32, {tokens, p.q.shape[1]});
  c.contiguous("weights", p.weights);
  c.cache("cache", p.cache, {format}, dim);
  check_addressing(c, p, tokens);
}

// Every candidate of every token is a row of the cache.
template <class Params>
void check_candidates(ParamCheck& c, const Params& p) {
  if (!host_visible(p.lengths) || !host_visible(p.token_to_req) || !host_visible(p.block_table)) return;
  for (int64_t t = 0; t < p.lengths.shape[0]; ++t) {
    const int64_t length = p.lengths.template ptr<int32_t>()[t];
    check_blocks(c, t, p.token_to_req, p.block_table, 0, (length + p.cache.page_size - 1) / p.cache.page_size, p.cache.num_pages);
  }
}

// What indexer_query reads, as an op or as a prologue.
template <class Query>
void check_query_inputs(ParamCheck& c, const Query& p) {
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
    c.values_in("positions", p.positions, 0, p.cos_sin.shape[0], false);
  } else {
    c.optional("positions", p.positions, DType::i64, {tokens});
  }
  c.require(!p.hadamard || std::has_single_bit(static_cast<uint64_t>(dim)),
            "q must have a power of two of values per head for hadamard, has {}", dim);
  check_positive(c, "softmax_scale", p.softmax_scale);
  check_positive(c, "head_scale", p.head_scale);
  check_positive(c, "amax_floor", p.amax_floor);
}

}  // namespace strata::ops
