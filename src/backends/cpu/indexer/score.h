// Scores of index candidates, the inner part of IndexerLogits and IndexerTopk:
//
//   score[t, j] = k_scale[j] * sum_h w[t,h] relu(q[t,h] . k[j])        V4 specification 10.3, MLA specification 11.6
//
// Keys come in blocks of up to kBlockRows rows of one request. A block is decoded once and scored for every token of a token block.
// Decoding therefore costs nothing in prefill, and overlaps with the products in decode. Each scorer's score depends on the token and the
// row alone, not on where blocks begin: IndexerTopk therefore sees exactly the numbers of IndexerLogits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "strata/kv_format.h"
#include "strata/ops/indexer.h"

namespace strata::cpu::indexer {

inline constexpr int kDim = 128;        // values of an indexer vector; other widths use the reference
inline constexpr int kGroupRows = 16;   // rows that are scored at once
inline constexpr int kBlockRows = 256;  // 64 KB of bf16: a block and its queries stay in the L2
inline constexpr int kMaxTokens = 16;   // most tokens of a token block
inline constexpr int kLookahead = 32;   // rows after a block whose addresses are known too, for prefetching

// What IndexerLogitsParams and IndexerTopkParams have in common.
struct Queries {
  TensorView q, q_scale, weights;
  PagedCache cache;
  TensorView block_table, token_to_req, lengths;

  int64_t heads() const { return q.shape[1]; }
  int32_t length(int64_t t) const { return lengths.ptr<int32_t>()[t]; }
  int32_t request(int64_t t) const { return token_to_req.ptr<int32_t>()[t]; }
};
template <class Params>
Queries queries_of(const Params& p) {
  return {p.q, p.q_scale, p.weights, p.cache, p.block_table, p.token_to_req, p.lengths};
}

// Addresses of the rows of one block. Rows past the block's end are a row of zeros with scale 0, so that nothing after a request's last
// candidate is read.
struct KeyBlock {
  const uint8_t* row[kBlockRows + kLookahead];
  float scale[kBlockRows];         // indexer_fp8: the row's scale; other formats: 1
  uint32_t exponents[kBlockRows];  // indexer_mxfp4: the row's four ue8m0 bytes
};

// Rows [first, first + count) of a request as block `keys`, count <= kBlockRows; `available` candidates exist in all.
void find_rows(const PagedCache& cache, const int32_t* pages, int64_t first, int count, int64_t available, KeyBlock& keys);

// The first call with a block decodes its keys into the scratch, and must include all of the block's groups.
enum class KeyUse {
  first,  // decode and keep
  again,  // decoded by an earlier call with this scratch
  once,   // decode; no later call needs them
};

// One way of computing scores. Functions are plain pointers, selected once per call.
struct Scorer {
  size_t (*query_bytes)(int64_t heads);    // a packed query
  size_t (*scratch_bytes)(int64_t heads);  // decoded keys and accumulators of a thread
  void (*begin)();                         // before the first and after the last call of a thread
  void (*end)();
  void (*pack_query)(const Queries& queries, int64_t token, std::byte* packed);
  // out[0, 16 * groups) = scores of the block's first rows; out has room for kBlockRows.
  void (*score)(const Queries& queries, const std::byte* packed, const KeyBlock& keys, int groups, KeyUse use, std::byte* scratch,
                float* out);
};

Scorer amx_scorer();
Scorer avx512_bf16_scorer();
Scorer simd_scorer(const Device& device);

}  // namespace strata::cpu::indexer
