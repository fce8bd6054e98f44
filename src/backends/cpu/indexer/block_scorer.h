// Scores of one token block over a range of rows, block of keys by block of keys, on one thread.
#pragma once

#include <algorithm>

#include "backends/cpu/indexer/plan.h"

namespace strata::cpu::indexer {

class BlockScorer {
 public:
  // Scratch of one thread. It grows with the number of heads only.
  static size_t bytes(const Scorer& scorer, int64_t heads) {
    const size_t query = scorer.query_bytes(heads);
    return align_up(sizeof(KeyBlock)) + align_up(kBlockRows * sizeof(float)) +
           align_up(query) * static_cast<size_t>(tokens_per_block(query)) + align_up(scorer.scratch_bytes(heads));
  }

  BlockScorer(const Scorer& scorer, const Queries& queries, std::byte* memory)
      : scorer_(scorer), queries_(queries), query_bytes_(align_up(scorer.query_bytes(queries.heads()))) {
    keys_ = reinterpret_cast<KeyBlock*>(memory);
    memory += align_up(sizeof(KeyBlock));
    scores_ = reinterpret_cast<float*>(memory);
    memory += align_up(kBlockRows * sizeof(float));
    packed_ = memory;
    scratch_ = memory + query_bytes_ * static_cast<size_t>(tokens_per_block(scorer.query_bytes(queries.heads())));
  }

  // Calls use(i, first, count, scores): rows [first, first + count) of the block's i-th token, in ascending order of rows for each token.
  // length(i): wanted candidates of that token, 0 for none, at most those that it has.
  template <class Length, class Use>
  void run(const TokenBlock& block, int64_t begin, int64_t end, Length&& length, Use&& use) {
    int32_t wanted[kMaxTokens];
    end = std::min<int64_t>(end, block.max_length);
    int32_t sharing = 0;  // tokens with rows in the range
    scorer_.begin();
    for (int32_t i = 0; i < block.count; ++i) {
      wanted[i] = length(i);
      if (wanted[i] <= begin) continue;
      scorer_.pack_query(queries_, block.first + i, packed_ + query_bytes_ * static_cast<size_t>(i));
      ++sharing;
    }
    const int32_t* pages = queries_.block_table.row<int32_t>(queries_.request(block.first));
    for (int64_t first = begin; first < end; first += kBlockRows) {
      const int count = static_cast<int>(std::min<int64_t>(kBlockRows, end - first));
      find_rows(queries_.cache, pages, first, count, end, *keys_);
      KeyUse key_use = sharing > 1 ? KeyUse::first : KeyUse::once;
      for (int32_t i = 0; i < block.count; ++i) {
        const int rows = static_cast<int>(std::min<int64_t>(count, wanted[i] - first));
        if (rows <= 0) continue;
        const int groups = ((key_use == KeyUse::again ? rows : count) + kGroupRows - 1) / kGroupRows;
        scorer_.score(queries_, packed_ + query_bytes_ * static_cast<size_t>(i), *keys_, groups, key_use, scratch_, scores_);
        key_use = KeyUse::again;
        use(i, first, rows, scores_);
      }
    }
    scorer_.end();
  }

 private:
  const Scorer& scorer_;
  const Queries& queries_;
  size_t query_bytes_;
  KeyBlock* keys_;
  float* scores_;
  std::byte* packed_;
  std::byte* scratch_;
};

}  // namespace strata::cpu::indexer
