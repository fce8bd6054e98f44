// IndexerLogits: token blocks times row ranges over all threads. The work is in the scorers.
#include <cstring>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/indexer/block_scorer.h"
#include "backends/cpu/indexer/paths.h"

namespace strata::cpu {
namespace indexer {
namespace {

size_t blocks_bytes(int64_t tokens) { return align_up(static_cast<size_t>(tokens) * sizeof(TokenBlock)); }

size_t workspace_bytes(const Path& path, const IndexerLogitsParams& p, const Device& device) {
  return blocks_bytes(p.q.shape[0]) +
         static_cast<size_t>(threads_of(device)) * align_up(BlockScorer::bytes(path.scorer(device), p.q.shape[1]));
}

void run(const Path& path, const IndexerLogitsParams& p, const ExecutionContext& context) {
  const Scorer scorer = path.scorer(context.device);
  const Queries queries = queries_of(p);
  auto* blocks = static_cast<TokenBlock*>(context.workspace.data);
  std::byte* scratch = static_cast<std::byte*>(context.workspace.data) + blocks_bytes(p.q.shape[0]);
  const size_t scratch_bytes = align_up(BlockScorer::bytes(scorer, queries.heads()));

  const int64_t count = cut_tokens(
      queries, p.q.shape[0], tokens_per_block(scorer.query_bytes(queries.heads())), [&](int64_t t) { return queries.length(t) <= 0; },
      blocks);
  int64_t longest = 0;
  for (int64_t b = 0; b < count; ++b) longest = std::max<int64_t>(longest, blocks[b].max_length);
  const int64_t rows = rows_per_task(blocks, count, threads_of(context.device));
  const int64_t ranges = (longest + rows - 1) / rows;

  parallel_for(context.device, count * ranges, 1, [&](int64_t task) {
    const TokenBlock& block = blocks[task / ranges];
    const int64_t begin = task % ranges * rows;
    if (begin >= block.max_length) return;
    BlockScorer worker(scorer, queries, scratch + scratch_bytes * static_cast<size_t>(thread_index()));
    worker.run(
        block, begin, begin + rows, [&](int32_t i) { return queries.length(block.first + i); },
        [&](int32_t i, int64_t first, int n, const float* scores) {
          std::memcpy(p.logits.row<float>(block.first + i) + first, scores, static_cast<size_t>(n) * sizeof(float));
        });
  });
}

}  // namespace
}  // namespace indexer

std::vector<Implementation<IndexerLogitsParams>> indexer_logits() {
  std::vector<Implementation<IndexerLogitsParams>> result;
  for (const indexer::Path& path : indexer::paths()) {
    Implementation<IndexerLogitsParams> impl;
    impl.name = path.name;
    impl.supports = [&path](const IndexerLogitsParams& p, const Device& device) {
      const Support support = indexer::supports_device(path, device);
      return support ? indexer::supports_cache(p.cache) : support;
    };
    impl.workspace_bytes = [&path](const IndexerLogitsParams& p, const Device& device) {
      return indexer::workspace_bytes(path, p, device);
    };
    impl.run = [&path](const IndexerLogitsParams& p, const ExecutionContext& context) { indexer::run(path, p, context); };
    result.push_back(std::move(impl));
  }
  return result;
}

}  // namespace strata::cpu
