// Which kernel, blocks and splits a call of sparse_attn_decode has on Hopper, over a grid of shapes and SM counts: what
// recorded/sparse_decode_selection.txt says. A change of plan.h that is meant writes that file anew (the test prints the lines).
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "backends/cuda/sparse_attn_decode/sm90/schedule.h"
#include "test_data.h"

namespace strata::cuda::sparse_decode {
namespace {

std::vector<int64_t> token_counts() {
  std::vector<int64_t> counts;
  for (int64_t tokens = 1; tokens <= 40; ++tokens) counts.push_back(tokens);
  counts.insert(counts.end(), {48, 64, 66, 67, 80, 96, 128, 132, 133, 160, 200, 256, 264, 265, 300, 400, 512, 1024, 2048});
  return counts;
}

// "few_heads/16x4": blocks of 16 heads, four splits.
std::string selection(const Problem& p, bool scheduled) {
  if (scheduled) {
    const BlockCost* const block = block_of_schedule(p);
    if (block == nullptr) return "none";
    return (block->heads < kHeadTile ? "few_heads_scheduled/" : "h64_scheduled/") + std::to_string(block->heads);
  }
  const Plans all = plans(p);
  return std::string(name_of(all.fastest)) + "/" + std::to_string(all.best().block_heads) + "x" + std::to_string(all.best().splits);
}

// Runs of token counts with one selection: " 1-3=few_heads/8x5 4=h64/64x1".
std::string selections(Problem p, bool scheduled) {
  std::string text, current;
  int64_t first = 0, last = 0;
  const auto end_run = [&] {
    if (current.empty()) return;
    text += " " + std::to_string(first) + (first == last ? "" : "-" + std::to_string(last)) + "=" + current;
  };
  for (const int64_t tokens : token_counts()) {
    p.tokens = tokens;
    if (const std::string now = selection(p, scheduled); now != current) {
      end_run();
      current = now, first = tokens;
    }
    last = tokens;
  }
  end_run();
  return text;
}

// "v4 heads 64 tiles 10 sms 132 raw: ...". raw: queries still to be normalised; scheduled: with a schedule.
TEST(SparseDecodeSelection, IsWhatWasRecorded) {
  std::ifstream file(test::data_folder() / "unit" / "recorded" / "sparse_decode_selection.txt");
  int64_t lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    std::istringstream in(line);
    std::string format, word, mode;
    Problem p{};
    in >> format >> word >> p.heads >> word >> p.tiles >> word >> p.num_sms >> mode;
    ASSERT_TRUE(in && mode.ends_with(':')) << line;
    mode.pop_back();
    p.format = format == "v4" ? KvFormat::fp8_ds_mla_v4 : KvFormat::fp8_ds_mla;
    p.batch_invariant = mode == "invariant", p.raw_queries = mode == "raw";
    const std::string head = line.substr(0, line.find(':') + 1);
    EXPECT_EQ(head + selections(p, mode == "scheduled"), line);
  }
  EXPECT_GT(lines, 400);
}

// What is forced by name runs wherever it can: a plan of its own, with room for its splits.
TEST(SparseDecodeSelection, EveryKernelHasAPlanWhereItCanRun) {
  for (const KvFormat format : {KvFormat::fp8_ds_mla_v4, KvFormat::fp8_ds_mla}) {
    for (const int64_t heads : {1, 8, 9, 16, 17, 32, 33, 64, 128}) {
      for (const int64_t tiles : {1, 2, 3, 4, 10, 33, 130}) {
        for (const bool invariant : {false, true}) {
          const Problem alone{.tokens = 1, .heads = heads, .tiles = tiles, .num_sms = 132, .format = format, .batch_invariant = invariant};
          for (const int64_t tokens : {1, 2, 66, 133, 1000}) {
            Problem p = alone;
            p.tokens = tokens;
            for (const Kernel kernel : kKernels) {
              if (!refusal(p, kernel).empty()) continue;
              const Plan plan = plan_of(p, plans(p), kernel);
              const auto at = testing::Message() << name_of(kernel) << ", " << tokens << " tokens, " << heads << " heads, " << tiles
                                                 << " tiles, invariant " << invariant;
              const bool few = kernel != Kernel::h64 && kernel != Kernel::h64_clusters;
              const bool combines = kernel == Kernel::few_heads || kernel == Kernel::h64;
              ASSERT_EQ(few, plan.block_heads < kHeadTile) << at;
              ASSERT_LE(plan.block_heads, few ? kernel == Kernel::few_heads ? 32 : 16 : 64) << at;
              ASSERT_GE(plan.splits, kernel == Kernel::few_heads_clusters ? 4 : kernel == Kernel::h64_clusters ? 2 : 1) << at;
              ASSERT_LE(plan.splits, tiles) << at;
              if (kernel == Kernel::persistent) {
                ASSERT_EQ(plan.splits, 1) << at;
              }
              if (combines && plan.splits > 1) {
                ASSERT_LE(tokens * plan.splits, plan.max_total_splits) << at;
              }
              if (invariant) {
                const Plan one = plan_of(alone, plans(alone), kernel);
                ASSERT_EQ(plan.block_heads, one.block_heads) << at;
                ASSERT_EQ(plan.splits, one.splits) << at;
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace strata::cuda::sparse_decode
