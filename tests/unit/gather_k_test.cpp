// dequantize_and_gather_k on the reference.

#include "ops/factories.h"
#include "page_memory.h"

namespace strata {
namespace {

using test::Array;
using test::expect_refused;
using test::PageMemory;
using test::run;

constexpr int32_t kPageSize = 2;
constexpr int64_t kPages = 6, kRows = 8;

struct GatherCase {
  explicit GatherCase(KvFormat format = KvFormat::fp8_ds_mla_v4, int32_t dim = 512)
      : pages(format, dim, kPageSize, kPages, 16), out({2, kRows, dim}) {
    // NaN wherever no row is stored: rows that are not gathered must not be read.
    pages.memory.fill(0xFF);
    for (int64_t slot : {8, 9, 2, 6, 7, 4}) {
      std::vector<float> row(static_cast<size_t>(dim), static_cast<float>(slot) + 1.0f);
      row[0] = -0.5f;
      store_row(pages.cache, slot, row.data());
    }
    params = {.cache = pages.cache, .seq_lens = seq_lens, .block_table = block_table, .offset = 1, .out = out};
  }
  PageMemory pages;
  Array<int32_t> seq_lens{{2}, {3, 3}};
  Array<int32_t> gather_lens{{2}, {2, 0}};
  Array<int32_t> block_table{{2, 3}, {4, 1, 1 << 30, 3, 2, -1}};  // entries after the rows that are needed are never used
  Array<Bf16> out;
  DequantizeAndGatherKParams params;

  float value(int64_t request, int64_t row, int64_t d) { return to_float(out[(request * kRows + row) * pages.cache.row_dim + d]); }
  bool untouched(int64_t request, int64_t row) {
    for (int64_t i = 0; i < pages.cache.row_dim; ++i) {
      if (out[(request * kRows + row) * pages.cache.row_dim + i].bits != 0xA5A5) return false;
    }
    return true;
  }
};

TEST(DequantizeAndGatherK, WholeRequestsFromTheirBlocks) {
  const std::pair<KvFormat, int32_t> formats[] = {{KvFormat::fp8_ds_mla_v4, 512}, {KvFormat::bf16, 512},
                                                  {KvFormat::fp8_tensor, 576},    {KvFormat::indexer_fp8, 128},
                                                  {KvFormat::indexer_mxfp4, 128}, {KvFormat::fp8_ds_mla, 576}};
  for (const auto& [format, dim] : formats) {
    SCOPED_TRACE(to_string(format));
    GatherCase c(format, dim);
    run(ops::make_dequantize_and_gather_k(), c.params);
    const int64_t slots[2][3] = {{8, 9, 2}, {6, 7, 4}};
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t i = 0; i < 3; ++i) {
        const std::vector<float> row = c.pages.row(slots[r][i]);
        for (int64_t d = 0; d < dim; ++d) ASSERT_EQ(c.value(r, 1 + i, d), row[static_cast<size_t>(d)]);
      }
      EXPECT_TRUE(c.untouched(r, 0));
      for (int64_t i = 4; i < kRows; ++i) EXPECT_TRUE(c.untouched(r, i)) << i;
    }
  }
}

TEST(DequantizeAndGatherK, LastRowsOnly) {
  GatherCase c;
  c.params.gather_lens = c.gather_lens;
  c.params.offset = 5;
  run(ops::make_dequantize_and_gather_k(), c.params);
  EXPECT_EQ(c.value(0, 5, 511), 10.0f) << "position 1, slot 9";
  EXPECT_EQ(c.value(0, 6, 511), 3.0f) << "position 2, slot 2";
  EXPECT_EQ(c.value(0, 6, 0), -0.5f);
  EXPECT_TRUE(c.untouched(0, 4) && c.untouched(0, 7));
  for (int64_t i = 0; i < kRows; ++i) EXPECT_TRUE(c.untouched(1, i)) << i;
}

TEST(DequantizeAndGatherK, BlocksBeforeTheGatheredRowsAreNotUsed) {
  GatherCase c;
  c.gather_lens[0] = 1;
  c.block_table[0] = -1;
  c.params.gather_lens = c.gather_lens;
  run(ops::make_dequantize_and_gather_k(), c.params);
  EXPECT_EQ(c.value(0, 1, 511), 3.0f);
}

TEST(DequantizeAndGatherK, NoRequestsAndNoRows) {
  GatherCase c;
  c.seq_lens[0] = c.seq_lens[1] = 0;
  c.params.offset = kRows;
  run(ops::make_dequantize_and_gather_k(), c.params);
  for (int64_t i = 0; i < kRows; ++i) EXPECT_TRUE(c.untouched(0, i) && c.untouched(1, i));
}

TEST(DequantizeAndGatherK, RefusesWhatContradictsTheContract) {
  const auto op = ops::make_dequantize_and_gather_k();
  const auto refused = [&](auto change, std::initializer_list<const char*> words) {
    GatherCase c;
    change(c);
    expect_refused(op, c.params, words, c.out);
  };
  refused([](GatherCase& c) { c.params.cache.format = KvFormat::state_f32; }, {"cache", "format", "has state_f32"});
  refused([](GatherCase& c) { c.params.cache.row_dim = 500; }, {"cache", "row_dim 512", "500"});
  refused([](GatherCase& c) { c.params.seq_lens.dtype = DType::i64; }, {"seq_lens", "i32", "i64"});
  refused([](GatherCase& c) { c.params.gather_lens = c.gather_lens.view().slice(0, 1); }, {"gather_lens", "[2]", "i32[1]"});
  refused([](GatherCase& c) { c.params.block_table.shape[0] = 1; }, {"block_table", "[2, any]", "i32[1, 3]"});
  refused([](GatherCase& c) { c.params.out.shape[2] = 511; }, {"out", "[2, any, 512]", "511"});
  refused([](GatherCase& c) { c.params.out.stride[0] = 512; }, {"out", "overlap"});
  refused([](GatherCase& c) { c.params.offset = -1; }, {"offset", "[0, 8]", "-1"});
  refused([](GatherCase& c) { c.params.offset = 6; }, {"out", "at least 9 rows", "has 8"});
  refused([](GatherCase& c) { c.seq_lens[1] = -2; }, {"seq_lens[1]", "negative", "-2"});
  refused([](GatherCase& c) { c.params.gather_lens = c.gather_lens, c.gather_lens[0] = 4; }, {"gather_lens[0]", "[0, 3]", "4"});
  refused([](GatherCase& c) { c.seq_lens[0] = 7; }, {"block_table", "at least 4 blocks", "has 3"});
  refused([](GatherCase& c) { c.block_table[1] = 6; }, {"block_table[0, 1]", "[0, 6)", "6"});
  refused([](GatherCase& c) { c.block_table[3] = -1; }, {"block_table[1, 0]", "[0, 6)", "-1"});
}

}  // namespace
}  // namespace strata
