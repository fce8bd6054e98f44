#include "batch/chunk_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <tuple>

#include "strata/error.h"

namespace strata {
namespace {

struct Requests {
  std::vector<int32_t> query_start_loc{0};
  std::vector<int32_t> seq_lens;
  void add(int32_t seq_len, int32_t query_len) {
    query_start_loc.push_back(query_start_loc.back() + query_len);
    seq_lens.push_back(seq_len);
  }
  int32_t query_len(int64_t r) const { return query_start_loc[static_cast<size_t>(r) + 1] - query_start_loc[static_cast<size_t>(r)]; }
  ChunkPlanInput input(const BatchLimits& limits, int32_t ratio, int64_t window, int64_t first_prefill = 0) const {
    return {query_start_loc, seq_lens, first_prefill, limits, ratio, window};
  }
};

std::vector<PrefillChunk> adaptive(const ChunkPlanInput& input) {
  std::vector<PrefillChunk> chunks;
  plan_chunks(input, chunks);
  return chunks;
}

const BatchLimits kLimits{.max_num_batched_tokens = 256, .max_num_seqs = 64, .max_model_len = 1024, .num_speculative_tokens = 0};

// What a row of the gathered workspace holds: request, whether it is a compressed entry, entry or position.
using Key = std::tuple<int64_t, bool, int64_t>;

// Token -> the keys that it reads, in order, by the formulas of V4 13 (every visible entry selected). Fails when a token reads a row that
// was not gathered, or a chunk does not fit.
std::map<int64_t, std::vector<Key>> attended(const Requests& requests, const ChunkPlanInput& in, const std::vector<PrefillChunk>& chunks) {
  std::map<int64_t, std::vector<Key>> result;
  for (const PrefillChunk& chunk : chunks) {
    EXPECT_LE(chunk.num_requests * chunk.max_rows, prefill_workspace_rows(in.limits, in.ratio, in.window));
    std::map<int64_t, Key> workspace;
    for (int64_t c = 0; c < chunk.num_requests; ++c) {
      const int64_t r = chunk.first_request + c;
      const int64_t seq_len = requests.seq_lens[static_cast<size_t>(r)];
      const int64_t gather = gather_len(requests.query_len(r), seq_len, in.window);
      const int64_t compressed = in.ratio == 1 ? 0 : seq_len / in.ratio;
      EXPECT_LE(compressed, chunk.max_compressed);
      EXPECT_LE(chunk.max_compressed + gather, chunk.max_rows);
      for (int64_t j = 0; j < compressed; ++j) workspace[c * chunk.max_rows + j] = {r, true, j};
      for (int64_t i = 0; i < gather; ++i) {
        workspace[c * chunk.max_rows + chunk.max_compressed + i] = {r, false, seq_len - gather + i};
      }
    }
    int64_t tokens = 0;
    for (int64_t c = 0; c < chunk.num_requests; ++c) {
      const int64_t r = chunk.first_request + c;
      const int64_t seq_len = requests.seq_lens[static_cast<size_t>(r)];
      const int64_t gather_start = seq_len - gather_len(requests.query_len(r), seq_len, in.window);
      for (int64_t i = 0; i < requests.query_len(r); ++i, ++tokens) {
        const int64_t p = seq_len - requests.query_len(r) + i;
        std::vector<Key>& keys = result[requests.query_start_loc[static_cast<size_t>(r)] + i];
        EXPECT_TRUE(keys.empty()) << "token in two chunks";
        EXPECT_EQ(chunk.first_token + tokens, requests.query_start_loc[static_cast<size_t>(r)] + i);
        const int64_t nt = in.ratio == 1 ? 0 : (p + 1) / in.ratio;
        const int64_t ns = std::min(p + 1, in.window);
        std::vector<int64_t> rows;
        for (int64_t j = 0; j < nt; ++j) rows.push_back(c * chunk.max_rows + j);
        for (int64_t j = 0; j < ns; ++j) rows.push_back(c * chunk.max_rows + chunk.max_compressed + (p - ns + 1 - gather_start) + j);
        for (int64_t row : rows) {
          const auto key = workspace.find(row);
          if (key == workspace.end()) {
            ADD_FAILURE() << "token " << i << " of request " << r << " reads row " << row << ", which nobody gathered";
            return result;
          }
          keys.push_back(key->second);
        }
      }
    }
    EXPECT_EQ(tokens, chunk.num_tokens);
  }
  return result;
}

// The same from the rule of visibility (12.1).
std::map<int64_t, std::vector<Key>> visible(const Requests& requests, const ChunkPlanInput& in) {
  std::map<int64_t, std::vector<Key>> result;
  for (int64_t r = in.first_prefill; r < std::ssize(requests.seq_lens); ++r) {
    for (int64_t i = 0; i < requests.query_len(r); ++i) {
      const int64_t p = requests.seq_lens[static_cast<size_t>(r)] - requests.query_len(r) + i;
      std::vector<Key>& keys = result[requests.query_start_loc[static_cast<size_t>(r)] + i];
      if (in.ratio > 1) {
        for (int64_t j = 0; in.ratio * (j + 1) <= p + 1; ++j) keys.emplace_back(r, true, j);
      }
      for (int64_t s = std::max<int64_t>(0, p - in.window + 1); s <= p; ++s) keys.emplace_back(r, false, s);
    }
  }
  return result;
}

// V4 19, "Prefill example": N = 256, M = 640.
TEST(ChunkPlan, FixedPlanOfTheSpecification) {
  Requests requests;
  for (int i = 0; i < 6; ++i) requests.add(300, 30);
  const auto chunks = plan_chunks_fixed(requests.input(kLimits, 4, 128));
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(chunks[0].max_compressed, 256);
  EXPECT_EQ(chunks[0].max_rows, 640);
  EXPECT_EQ(chunks[0].num_requests, 4);
  EXPECT_EQ(chunks[1].first_request, 4);
  EXPECT_EQ(chunks[1].num_requests, 2);
  EXPECT_EQ(chunks[1].first_token, 120);
  EXPECT_EQ(chunks[1].num_tokens, 60);
  EXPECT_EQ(plan_chunks_fixed(requests.input(kLimits, 1, 128))[0].max_rows, 384);
  EXPECT_EQ(gather_len(100, 300, 128), 227);
  EXPECT_EQ(gather_len(100, 100, 128), 100);
  EXPECT_EQ(gather_len(5, 100, 0), 5);
}

TEST(ChunkPlan, WorkspaceRows) {
  EXPECT_EQ(prefill_workspace_rows(kLimits, 1, 128), 4 * (128 + 256));
  EXPECT_EQ(prefill_workspace_rows(kLimits, 4, 128), 4 * 640);
  EXPECT_EQ(prefill_workspace_rows(kLimits, 128, 128), 4 * (8 + 128 + 256));
  EXPECT_THROW(static_cast<void>(prefill_workspace_rows(kLimits, 3, 128)), Error);
  EXPECT_THROW(static_cast<void>(prefill_workspace_rows(kLimits, 4, -1)), Error);
  EXPECT_THROW(static_cast<void>(prefill_workspace_rows(kLimits, 4, int64_t{1} << 62)), Error);
  BatchLimits huge = kLimits;
  huge.max_model_len = std::numeric_limits<int64_t>::max();
  EXPECT_THROW(static_cast<void>(prefill_workspace_rows(huge, 4, 128)), Error);
}

// Short requests share a chunk far beyond four; the workspace bounds it.
// 8 requests of 9 tokens and 91 positions before them gather 100 rows each: exactly the 4 * (128 + 72) there are.
TEST(ChunkPlan, AChunkMayFillTheWorkspace) {
  const BatchLimits limits{.max_num_batched_tokens = 72, .max_num_seqs = 8, .max_model_len = 1024};
  Requests requests;
  for (int r = 0; r < 8; ++r) requests.add(100, 9);
  ASSERT_EQ(prefill_workspace_rows(limits, 1, 128), 800);
  const auto chunks = adaptive(requests.input(limits, 1, 128));
  ASSERT_EQ(chunks.size(), 1u);
  EXPECT_EQ(chunks[0].num_requests, 8);
  EXPECT_EQ(chunks[0].max_rows, 100);
}

TEST(ChunkPlan, ShortRequestsShareAChunk) {
  Requests requests;
  for (int i = 0; i < 64; ++i) requests.add(4, 4);
  const auto chunks = adaptive(requests.input(kLimits, 4, 128));
  ASSERT_EQ(chunks.size(), 1u);
  EXPECT_EQ(chunks[0].num_requests, 64);
  EXPECT_EQ(chunks[0].max_compressed, 1);
  EXPECT_EQ(chunks[0].max_rows, 5);
}

TEST(ChunkPlan, LongRequestsSplit) {
  Requests requests;
  for (int i = 0; i < 12; ++i) requests.add(1024, 20);  // 256 compressed + 147 window rows: 6 fit in 2560
  const auto chunks = adaptive(requests.input(kLimits, 4, 128));
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(chunks[0].num_requests, 6);
  EXPECT_EQ(chunks[1].first_request, 6);
  EXPECT_EQ(chunks[1].first_token, 120);
}

TEST(ChunkPlan, RequestsWithoutTokensAreInNoChunk) {
  Requests requests;
  requests.add(9, 1);  // decode
  requests.add(1000, 0);
  requests.add(8, 8);
  requests.add(500, 0);
  requests.add(7, 5);
  requests.add(0, 0);
  const auto chunks = adaptive(requests.input(kLimits, 4, 128, 1));
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(chunks[0].first_request, 2);
  EXPECT_EQ(chunks[0].first_token, 1);
  EXPECT_EQ(chunks[0].max_compressed, 2);
  EXPECT_EQ(chunks[1].first_request, 4);
  EXPECT_EQ(chunks[1].num_requests, 1);
  EXPECT_EQ(chunks[1].num_tokens, 5);
  EXPECT_TRUE(adaptive(requests.input(kLimits, 4, 128, 6)).empty());
  EXPECT_TRUE(plan_chunks_fixed(requests.input(kLimits, 4, 128, 6)).empty());
}

TEST(ChunkPlan, BothPlansLetEveryTokenReadWhatItSees) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](int32_t n) { return static_cast<int32_t>(random() % static_cast<uint32_t>(n)); };
    const BatchLimits limits{
        .max_num_batched_tokens = 1 + below(90), .max_num_seqs = 40, .max_model_len = 1 + below(600), .num_speculative_tokens = 0};
    const int64_t window = 1 + below(140);
    Requests requests;
    auto tokens_left = static_cast<int32_t>(limits.max_num_batched_tokens);
    const int32_t count = below(30);
    for (int32_t r = 0; r < count; ++r) {
      const int32_t seq_len = below(static_cast<int32_t>(limits.max_model_len) + 1);
      const int32_t query_len = std::min({seq_len, tokens_left, below(12)});
      tokens_left -= query_len;
      requests.add(seq_len, query_len);
    }
    for (int32_t ratio : {1, 4, 128}) {
      SCOPED_TRACE(ratio);
      const ChunkPlanInput input = requests.input(limits, ratio, window, below(count + 1));
      const auto expected = visible(requests, input);
      EXPECT_EQ(attended(requests, input, plan_chunks_fixed(input)), expected);
      EXPECT_EQ(attended(requests, input, adaptive(input)), expected);
    }
  }
}

}  // namespace
}  // namespace strata
