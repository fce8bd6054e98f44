// The scores of one token's candidates: V4 specification 10.3. IndexerLogits and IndexerTopk share it, so that both see the same numbers.
#pragma once

#include <algorithm>
#include <array>

#include "formats/kv_rows.h"
#include "formats/quantize.h"
#include "contracts/indexer_limits.h"
#include "strata/tensor.h"

namespace strata::reference {

// Query head `head` (= t * Hi + h) as numbers.
inline void load_query(const TensorView& q, const TensorView& q_scale, int64_t head, int64_t dim, float* out) {
  for (int64_t d = 0; d < dim; ++d) {
    switch (q.dtype) {
      case DType::e4m3: out[d] = to_float(q.ptr<E4m3>()[head * dim + d]); break;
      case DType::bf16: out[d] = to_float(q.ptr<Bf16>()[head * dim + d]); break;
      default: out[d] = e2m1_element(q.ptr<uint8_t>() + head * dim / 2, d) * to_float(q_scale.ptr<E8m0>()[(head * dim + d) / kMxfp4Block]);
    }
  }
}

// logits[j] for j < length. Works on tiles of keys, so that a key is decoded once and a query head once per tile. The key scale is
// inside the decoded key: it is positive, so that it commutes with the ReLU.
template <class Params>
void score_candidates(const Params& p, int64_t t, int64_t length, float* logits) {
  constexpr int64_t kTile = 16;
  const int64_t heads = p.q.shape[1];
  const int64_t dim = p.cache.row_dim;
  const float* weights = p.weights.template row<float>(t);
  std::array<std::array<float, ops::kMaxIndexerDim>, kTile> keys;
  std::array<float, ops::kMaxIndexerDim> query;
  for (int64_t first = 0; first < length; first += kTile) {
    const int64_t count = std::min(kTile, length - first);
    const int32_t* pages = p.block_table.template row<int32_t>(p.token_to_req.template ptr<int32_t>()[t]);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t j = first + i;
      load_row(p.cache, pages[j / p.cache.page_size] * int64_t{p.cache.page_size} + j % p.cache.page_size, keys[i].data());
    }
    std::array<double, kTile> sums{};
    for (int64_t h = 0; h < heads; ++h) {
      load_query(p.q, p.q_scale, t * heads + h, dim, query.data());
      for (int64_t i = 0; i < count; ++i) {
        double dot = 0.0;
        for (int64_t d = 0; d < dim; ++d) dot += double{query[d]} * keys[i][d];
        sums[i] += weights[h] * (dot < 0.0 ? 0.0 : dot);  // NaN passes
      }
    }
    for (int64_t i = 0; i < count; ++i) logits[first + i] = static_cast<float>(sums[i]);
  }
}

}  // namespace strata::reference
