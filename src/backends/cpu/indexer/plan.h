// Divides a batch into work: token blocks (consecutive tokens of one request, which share their keys) times ranges of rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cpu/indexer/score.h"

namespace strata::cpu::indexer {

struct TokenBlock {
  int64_t first = 0;
  int32_t count = 0;       // at most kMaxTokens
  int32_t max_length = 0;  // of its tokens, at least 1; with max_length 0 no token has candidates
};

// Cuts tokens [0, tokens) into blocks of at most `per_block`; `blocks` has room for one block per token. Tokens that `skip(t)` says
// need no scores may be inside a block, but no block consists of them only. Returns the number of blocks.
template <class Skip>
int64_t cut_tokens(const Queries& queries, int64_t tokens, int per_block, Skip&& skip, TokenBlock* blocks) {
  int64_t count = 0;
  bool open = false;
  for (int64_t t = 0; t < tokens; ++t) {
    if (skip(t)) continue;
    TokenBlock* last = open ? &blocks[count - 1] : nullptr;
    if (last == nullptr || queries.request(t) != queries.request(last->first) || t - last->first >= per_block) {
      blocks[count++] = {t, 0, 0};
      last = &blocks[count - 1];
      open = true;
    }
    last->count = static_cast<int32_t>(t - last->first + 1);
    last->max_length = std::max(last->max_length, queries.length(t));
  }
  return count;
}

// Packed queries of a token block should leave room for the keys in the L2.
inline int tokens_per_block(size_t query_bytes) {
  constexpr size_t kBudget = 288 << 10;  // 16 tokens of 64 heads in bf16
  return static_cast<int>(std::clamp<size_t>(kBudget / std::max<size_t>(query_bytes, 1), 1, kMaxTokens));
}

// Rows of one task: a multiple of kBlockRows. Small enough to give every thread several tasks; large enough that packing the queries (the
// time of about 8 rows' products each) is negligible.
inline int64_t rows_per_task(const TokenBlock* blocks, int64_t count, int threads) {
  int64_t rows = 0;
  for (int64_t b = 0; b < count; ++b) rows += blocks[b].max_length;
  const int64_t wanted = rows / (int64_t{threads} * 4) / kBlockRows * kBlockRows;
  return std::clamp<int64_t>(wanted, kBlockRows, 16 * kBlockRows);
}

inline size_t align_up(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace strata::cpu::indexer
