// IndexerTopk: the scorer passes scores directly to selections, so that the logits never leave the L1.
//
// Floor: that of the scores (see score_amx.cpp). Selection adds half a cycle per score and AVX-512 vector of 16, plus compactions.
//
// Work: token blocks. If there are fewer than two per thread, each is cut into ranges of rows, whose selections are combined afterwards.
// Workspace, for any number of tokens and rows: per thread 0.4 to 1 MB of scorer scratch and kMaxTokens + 1 selections of (2k or k + 2048,
// plus 1024) candidates of 8 bytes; for all threads together at most 64 times k candidates each for the ranges; and 16 bytes per token for
// the list of blocks.
#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/indexer/block_scorer.h"
#include "backends/cpu/indexer/paths.h"
#include "backends/cpu/indexer/selection.h"

namespace strata::cpu {
namespace indexer {
namespace {

bool is_short(const IndexerTopkParams& p) { return p.max_length <= p.topk_indices.shape[1]; }

struct Layout {
  size_t threads_at, scorer_bytes, selection, per_thread, ranges_at, per_range, bytes;
  Layout(const IndexerTopkParams& p, const Scorer& scorer, int threads) {
    const int64_t tokens = p.q.shape[0], k = p.topk_indices.shape[1];
    threads_at = align_up(static_cast<size_t>(tokens) * sizeof(TokenBlock));
    scorer_bytes = align_up(BlockScorer::bytes(scorer, p.q.shape[1]));
    selection = align_up(selection_bytes(k));
    per_thread = scorer_bytes + selection * kMaxTokens + align_up(selection_scratch_bytes(k));
    ranges_at = threads_at + per_thread * static_cast<size_t>(threads);
    per_range = align_up(sizeof(int64_t) + static_cast<size_t>(k) * 8);
    bytes = ranges_at + per_range * static_cast<size_t>(max_ranges(tokens, threads));
  }
  // Of all tokens together. With b < 2 * threads blocks there are at most 16 b tokens and 2 * threads / b + 1 ranges of each.
  static int64_t max_ranges(int64_t tokens, int threads) { return std::min<int64_t>(2 * tokens, 4 * kMaxTokens) * threads; }
};

class Run {
 public:
  Run(const Path& path, const IndexerTopkParams& p, const ExecutionContext& context)
      : p_(p),
        k_(p.topk_indices.shape[1]),
        device_(context.device),
        scorer_(path.scorer(context.device)),
        queries_(queries_of(p)),
        functions_(selection_functions(context.device)),
        layout_(p, scorer_, threads_of(context.device)),
        memory_(static_cast<std::byte*>(context.workspace.data)),
        blocks_(reinterpret_cast<TokenBlock*>(memory_)) {}

  void operator()() {
    const int64_t tokens = p_.q.shape[0];
    const int threads = threads_of(device_);
    for (int64_t t = 0; t < tokens; ++t) {
      if (!scored(t)) select_all(queries_.length(t), k_, p_.topk_indices.row<int32_t>(t));
    }
    const int64_t count = cut_tokens(
        queries_, tokens, tokens_per_block(scorer_.query_bytes(queries_.heads())), [&](int64_t t) { return !scored(t); }, blocks_);
    if (count == 0) return;
    if (count >= 2 * threads) {
      parallel_for(device_, count, 1, [&](int64_t b) { score(blocks_[b], 0, blocks_[b].max_length, nullptr); });
      return;
    }
    const int64_t ranges = (2 * threads + count - 1) / count;
    parallel_for(device_, count * ranges, 1, [&](int64_t task) {
      const TokenBlock& block = blocks_[task / ranges];
      // In whole blocks of keys, so that no range ends with a short one but the last.
      const int64_t key_blocks = (block.max_length + kBlockRows - 1) / kBlockRows;
      const int64_t range = task % ranges;
      score(block, key_blocks * range / ranges * kBlockRows, key_blocks * (range + 1) / ranges * kBlockRows,
            range_at(ranges * first_scored(task / ranges) + range), ranges);
    });
    parallel_for(device_, count, 1, [&](int64_t b) { combine(b, ranges); });
  }

 private:
  // The k best of one token and one range of rows.
  struct Range {
    int64_t* count;
    int32_t *keys, *entries;
  };

  bool scored(int64_t t) const { return queries_.length(t) > k_; }
  // Scored tokens of the blocks before block b: where its ranges start.
  int64_t first_scored(int64_t b) const {
    int64_t count = 0;
    for (int64_t i = 0; i < b; ++i) {
      for (int32_t j = 0; j < blocks_[i].count; ++j) count += scored(blocks_[i].first + j);
    }
    return count;
  }
  std::byte* range_at(int64_t i) const { return memory_ + layout_.ranges_at + layout_.per_range * static_cast<size_t>(i); }
  Range range(std::byte* at) const {
    auto* keys = reinterpret_cast<int32_t*>(at + sizeof(int64_t));
    return {reinterpret_cast<int64_t*>(at), keys, keys + k_};
  }
  std::byte* thread_memory() const { return memory_ + layout_.threads_at + layout_.per_thread * static_cast<size_t>(thread_index()); }
  Selection selection(std::byte* thread, int32_t i) const {
    return make_selection(thread + layout_.scorer_bytes + layout_.selection * static_cast<size_t>(i), k_);
  }
  int32_t* scratch(std::byte* thread) const {
    return reinterpret_cast<int32_t*>(thread + layout_.scorer_bytes + layout_.selection * kMaxTokens);
  }

  // Rows [begin, end) of a block. The best go to the output; those of the i-th scored token to range i * stride after `out`.
  void score(const TokenBlock& block, int64_t begin, int64_t end, std::byte* out, int64_t stride = 0) const {
    std::byte* thread = thread_memory();
    Selection selections[kMaxTokens];
    for (int32_t i = 0; i < block.count; ++i) selections[i] = selection(thread, i);
    BlockScorer scorer(scorer_, queries_, thread);
    scorer.run(
        block, begin, end, [&](int32_t i) { return scored(block.first + i) ? queries_.length(block.first + i) : 0; },
        [&](int32_t i, int64_t first, int n, const float* scores) {
          functions_.append(selections[i], scores, n, first, k_, scratch(thread));
        });
    for (int32_t i = 0; i < block.count; ++i) {
      if (!scored(block.first + i)) continue;
      functions_.compact(selections[i], k_, scratch(thread));
      if (out == nullptr) {
        std::copy_n(selections[i].entry, k_, p_.topk_indices.row<int32_t>(block.first + i));
        continue;
      }
      const Range best = range(out);
      *best.count = selections[i].count;
      std::copy_n(selections[i].key, selections[i].count, best.keys);
      std::copy_n(selections[i].entry, selections[i].count, best.entries);
      out += layout_.per_range * static_cast<size_t>(stride);
    }
  }

  void combine(int64_t b, int64_t ranges) const {
    std::byte* thread = thread_memory();
    std::byte* at = range_at(ranges * first_scored(b));
    for (int64_t t = blocks_[b].first; t < blocks_[b].first + blocks_[b].count; ++t) {
      if (!scored(t)) continue;
      Selection all = selection(thread, 0);
      for (int64_t i = 0; i < ranges; ++i, at += layout_.per_range) {
        const Range best = range(at);
        functions_.append_candidates(all, best.keys, best.entries, *best.count, k_, scratch(thread));
      }
      functions_.compact(all, k_, scratch(thread));
      std::copy_n(all.entry, k_, p_.topk_indices.row<int32_t>(t));
    }
  }

  const IndexerTopkParams& p_;
  int64_t k_;
  const Device& device_;
  Scorer scorer_;
  Queries queries_;
  SelectionFunctions functions_;
  Layout layout_;
  std::byte* memory_;
  TokenBlock* blocks_;
};

void run(const Path& path, const IndexerTopkParams& p, const ExecutionContext& context) {
  if (!is_short(p)) return Run(path, p, context)();
  // The query side need not exist here.
  for (int64_t t = 0; t < p.lengths.shape[0]; ++t) {
    select_all(p.lengths.ptr<int32_t>()[t], p.topk_indices.shape[1], p.topk_indices.row<int32_t>(t));
  }
}

}  // namespace
}  // namespace indexer

std::vector<Implementation<IndexerTopkParams>> indexer_topk() {
  std::vector<Implementation<IndexerTopkParams>> result;
  for (const indexer::Path& path : indexer::paths()) {
    Implementation<IndexerTopkParams> impl;
    impl.name = path.name;
    impl.supports = [&path](const IndexerTopkParams& p, const Device& device) {
      const Support support = indexer::supports_device(path, device);
      return support && !indexer::is_short(p) ? indexer::supports_cache(p.cache) : support;
    };
    impl.workspace_bytes = [&path](const IndexerTopkParams& p, const Device& device) -> size_t {
      if (indexer::is_short(p)) return 0;
      return indexer::Layout(p, path.scorer(device), threads_of(device)).bytes;
    };
    impl.run = [&path](const IndexerTopkParams& p, const ExecutionContext& context) { indexer::run(path, p, context); };
    result.push_back(std::move(impl));
  }
  return result;
}

}  // namespace strata::cpu
