#include "ops/factories.h"
#include "unit/op_test.h"

namespace strata::test {
namespace {

using Row = std::vector<int32_t>;

Row row_of(const Array<int32_t>& a, int64_t width, int64_t t) {
  return {a.values().begin() + t * width, a.values().begin() + (t + 1) * width};
}

// --- scatter_block_tables ---

TEST(ScatterBlockTables, RefusesWhatContradictsTheContract) {
  const auto op = ops::make_scatter_block_tables();
  Array<int32_t> entries({5}, {1, 2, 3, 4, 5}), table({2, 4});
  const auto refuse = [&](Row segment, std::initializer_list<const char*> words) {
    Array<int32_t> segments({2, 4}, {0, 0, 0, 4, segment[0], segment[1], segment[2], segment[3]});
    expect_refused(op, {.entries = entries, .segments = segments, .block_table = table}, words, table);
  };
  refuse({1, 0, 0, -1}, {"segments[1]", "count that is not negative", "-1"});
  refuse({2, 0, 0, 1}, {"segments[1]", "row in [0, 2)", "has 2"});
  refuse({-1, 0, 0, 1}, {"segments[1]", "row in [0, 2)", "has -1"});
  refuse({1, 2, 0, 3}, {"segments[1]", "columns in [0, 4)", "[2, 5)"});
  refuse({1, -1, 0, 3}, {"segments[1]", "columns in [0, 4)", "[-1, 2)"});
  refuse({1, 0, 3, 3}, {"segments[1]", "entries in [0, 5)", "[3, 6)"});
  refuse({1, 0, -1, 3}, {"segments[1]", "entries in [0, 5)", "[-1, 2)"});
  refuse({1, 0, INT32_MAX, INT32_MAX}, {"segments[1]", "columns in [0, 4)", "[0, 2147483647)"});
}

// --- slot_mapping ---

struct SlotCase {
  Array<int64_t> positions, out;
  Array<int32_t> token_to_req, table;
  Array<uint8_t> valid;
  SlotCase(std::vector<int64_t> p, Row requests, std::vector<uint8_t> is_valid, Row pages, int64_t blocks)
      : positions({static_cast<int64_t>(p.size())}, p),
        out({static_cast<int64_t>(p.size())}),
        token_to_req({static_cast<int64_t>(p.size())}, requests),
        table({static_cast<int64_t>(pages.size()) / blocks, blocks}, pages),
        valid({static_cast<int64_t>(p.size())}, is_valid) {}
  SlotMappingParams params(int32_t page_size, int32_t ratio) {
    return {.positions = positions,
            .token_to_req = token_to_req,
            .is_valid_token = valid,
            .block_table = table,
            .page_size = page_size,
            .ratio = ratio,
            .slot_mapping = out};
  }
};

TEST(SlotMapping, ByPosition) {
  SlotCase c({0, 63, 64, 130, 5}, {0, 0, 0, 0, 1}, {1, 1, 1, 1, 1}, {2, 0, 7, 9, -1, -1}, 3);
  run(ops::make_slot_mapping(), c.params(64, 1));
  EXPECT_EQ(c.out.values(), (std::vector<int64_t>{128, 191, 0, 7 * 64 + 2, 9 * 64 + 5}));
}

TEST(SlotMapping, CompressedOnlyAtBoundaries) {
  // ratio 4, 64 entries of 4 positions to a page: token 259 completes entry 64, the first of block 1.
  SlotCase c({2, 3, 4, 7, 255, 259}, {0, 0, 0, 0, 0, 0}, {1, 1, 1, 1, 1, 1}, {5, 3}, 2);
  run(ops::make_slot_mapping(), c.params(64, 4));
  EXPECT_EQ(c.out.values(), (std::vector<int64_t>{-1, 320, -1, 321, 383, 192}));
  // ratio 128, two entries to a page.
  SlotCase d({126, 127, 255, 383}, {0, 0, 0, 0}, {1, 1, 1, 1}, {5, 3}, 2);
  run(ops::make_slot_mapping(), d.params(2, 128));
  EXPECT_EQ(d.out.values(), (std::vector<int64_t>{-1, 10, 11, 6}));
}

TEST(SlotMapping, InvalidTokensMayHoldAnything) {
  SlotCase c({1, -9, 1 << 30}, {0, 77, -5}, {1, 0, 0}, {4}, 1);
  run(ops::make_slot_mapping(), c.params(16, 1));
  EXPECT_EQ(c.out.values(), (std::vector<int64_t>{65, -1, -1}));
}

TEST(SlotMapping, SlotsPastInt32) {
  SlotCase c({63}, {0}, {1}, {100000000}, 1);
  run(ops::make_slot_mapping(), c.params(64, 1));
  EXPECT_EQ(c.out[0], 6400000063);
}

TEST(SlotMapping, RefusesWhatContradictsTheContract) {
  const auto op = ops::make_slot_mapping();
  SlotCase c({64}, {0}, {1}, {4}, 1);
  expect_refused(op, c.params(64, 1), {"block_table", "at least 2 blocks", "has 1"}, c.out);
  c.positions[0] = -1;
  expect_refused(op, c.params(64, 1), {"positions[0]", "negative", "is -1"}, c.out);
  c.positions[0] = INT64_MAX;
  expect_refused(op, c.params(64, 1), {"positions[0]", "below 2^63 - 1", "is 9223372036854775807"}, c.out);
  c.positions[0] = 1;
  c.token_to_req[0] = 1;
  expect_refused(op, c.params(64, 1), {"token_to_req[0]", "[0, 1)", "is 1"}, c.out);
  c.token_to_req[0] = 0;
  c.table[0] = -1;
  expect_refused(op, c.params(64, 1), {"block_table[0, 0]", "is -1"}, c.out);
  c.table[0] = 0;
  expect_refused(op, c.params(0, 1), {"page_size", "positive", "is 0"}, c.out);
  expect_refused(op, c.params(64, 0), {"ratio", "at least 1", "is 0"}, c.out);
  SlotMappingParams p = c.params(64, 1);
  p.slot_mapping.dtype = DType::i32;
  expect_refused(op, p, {"slot_mapping must be i64", "i32[1]"}, c.out);
  p = c.params(64, 1);
  p.is_valid_token.dtype = DType::boolean;
  expect_refused(op, p, {"is_valid_token", "u8", "bool[1]"}, c.out);
}

// A table without entries may have no memory: that is no reason not to look.
TEST(SlotMapping, TablesWithoutEntries) {
  SlotCase c({64}, {0}, {1}, {4}, 1);
  for (const auto& [shape, words] : {std::pair{std::array<int64_t, 2>{1, 0}, "block_table must have at least 2 blocks"},
                                     std::pair{std::array<int64_t, 2>{0, 3}, "token_to_req[0] must be in [0, 0)"}}) {
    SlotMappingParams p = c.params(64, 1);
    p.block_table = TensorView::contiguous(nullptr, DType::i32, {}, {shape[0], shape[1]});
    expect_refused(ops::make_slot_mapping(), p, {words}, c.out);
  }
}

// --- swa_indices ---

struct WindowCase {
  SlotCase tokens;
  int32_t window;
  Array<int32_t> indices, lens;
  WindowCase(SlotCase t, int32_t w)
      : tokens(std::move(t)), window(w), indices({tokens.positions.view().shape[0], w}), lens({tokens.positions.view().shape[0]}) {}
  SwaIndicesParams params(int32_t page_size) {
    return {.positions = tokens.positions,
            .token_to_req = tokens.token_to_req,
            .is_valid_token = tokens.valid,
            .block_table = tokens.table,
            .page_size = page_size,
            .window = window,
            .indices = indices,
            .lens = lens};
  }
};

TEST(SwaIndices, WindowIncludesTheQuery) {
  // Visibility of section 19: p = 2 sees 0..2, p = 127 sees 0..127, p = 128 sees 1..128.
  WindowCase c({{2, 127, 128}, {0, 0, 0}, {1, 1, 1}, {0, 1, 2}, 3}, 128);
  run(ops::make_swa_indices(), c.params(64));
  EXPECT_EQ(c.lens.values(), (Row{3, 128, 128}));
  for (int32_t i = 0; i < 128; ++i) {
    EXPECT_EQ(c.indices[i], i < 3 ? i : -1);
    EXPECT_EQ(c.indices[128 + i], i);
    EXPECT_EQ(c.indices[256 + i], i + 1);
  }
}

TEST(SwaIndices, PagesAndStaleTableEntries) {
  // Window 4, pages of 3 rows. The block before the window may be anything; so may invalid tokens.
  WindowCase c({{7, 0, 9}, {0, 1, 99}, {1, 1, 0}, {-7, 5, 2, 1, -1, -1}, 3}, 4);
  run(ops::make_swa_indices(), c.params(3));
  EXPECT_EQ(c.lens.values(), (Row{4, 1, 0}));
  EXPECT_EQ(row_of(c.indices, 4, 0), (Row{16, 17, 6, 7}));  // positions 4, 5 in page 5, then 6, 7 in page 2
  EXPECT_EQ(row_of(c.indices, 4, 1), (Row{3, -1, -1, -1}));
  EXPECT_EQ(row_of(c.indices, 4, 2), (Row{-1, -1, -1, -1}));
}

TEST(SwaIndices, AbsentValidityAndStrides) {
  WindowCase c({{1, 0}, {0, 0}, {1, 1}, {3}, 1}, 2);
  SwaIndicesParams p = c.params(8);
  p.is_valid_token = {};
  Array<int32_t> wide({2, 5});
  const Row before = wide.values();
  p.indices = wide.view().columns(1, 2);
  run(ops::make_swa_indices(), p);
  EXPECT_EQ(wide.values(), (Row{before[0], 24, 25, before[3], before[4], before[5], 24, -1, before[8], before[9]}));
}

TEST(SwaIndices, RefusesWhatContradictsTheContract) {
  const auto op = ops::make_swa_indices();
  WindowCase c({{7}, {0}, {1}, {0, 5, -2}, 3}, 4);
  expect_refused(op, c.params(3), {"block_table[0, 2]", "is -2"}, c.indices, c.lens);
  c.tokens.table[2] = 715827882;  // its last slot, 2147483648, does not fit an i32
  expect_refused(op, c.params(3), {"block_table[0, 2]", "[0, 715827882)", "is 715827882"}, c.indices, c.lens);
  c.tokens.table[2] = 1;
  c.tokens.positions[0] = 9;
  expect_refused(op, c.params(3), {"block_table", "at least 4", "has 3"}, c.indices, c.lens);
  c.tokens.positions[0] = 7;
  SwaIndicesParams p = c.params(3);
  p.window = 5;
  expect_refused(op, p, {"indices", "[1, 5]", "i32[1, 4]"}, c.indices, c.lens);
  p.window = 0;
  expect_refused(op, p, {"window", "at least 1", "is 0"}, c.indices, c.lens);
  p = c.params(3);
  p.lens = {};
  expect_refused(op, p, {"lens", "absent"}, c.indices, c.lens);
}

// --- compressed_indices ---

TEST(CompressedIndices, CompleteEntriesOnly) {
  Array<int64_t> positions({5}, {2, 126, 127, 255, 1000000});
  Array<int32_t> requests({5}, {0, 0, 0, 0, 0});
  Array<int32_t> table({1, 2}, {9, 4});
  Array<int32_t> indices({5, 3}), lens({5});
  CompressedIndicesParams p{.positions = positions,
                            .token_to_req = requests,
                            .is_valid_token = {},
                            .block_table = table,
                            .page_size = 2,
                            .ratio = 128,
                            .indices = indices,
                            .lens = lens};
  run(ops::make_compressed_indices(), p);
  EXPECT_EQ(lens.values(), (Row{0, 0, 1, 2, 3}));  // the width bounds them
  EXPECT_EQ(indices.values(), (Row{-1, -1, -1, -1, -1, -1, 18, -1, -1, 18, 19, -1, 18, 19, 8}));

  p.block_table = {};
  p.token_to_req = {};
  run(ops::make_compressed_indices(), p);
  EXPECT_EQ(lens.values(), (Row{0, 0, 1, 2, 3}));
  EXPECT_EQ(indices.values(), (Row{-1, -1, -1, -1, -1, -1, 0, -1, -1, 0, 1, -1, 0, 1, 2}));

  // Visibility of section 19 at ratio 4.
  p.ratio = 4;
  positions.values() = {2, 3, 7, 10, 11};
  run(ops::make_compressed_indices(), p);
  EXPECT_EQ(lens.values(), (Row{0, 1, 2, 2, 3}));
}

TEST(CompressedIndices, InvalidTokensAndRefusals) {
  const auto op = ops::make_compressed_indices();
  Array<int64_t> positions({2}, {-4, 255});
  Array<int32_t> requests({2}, {-1, 0});
  Array<uint8_t> valid({2}, {0, 1});
  Array<int32_t> table({1, 1}, {3});
  Array<int32_t> indices({2, 128}), lens({2});
  CompressedIndicesParams p{.positions = positions,
                            .token_to_req = requests,
                            .is_valid_token = valid,
                            .block_table = table,
                            .page_size = 2,
                            .ratio = 128,
                            .indices = indices,
                            .lens = lens};
  run(op, p);
  EXPECT_EQ(lens.values(), (Row{0, 2}));
  EXPECT_EQ(indices[0], -1);
  EXPECT_EQ(indices[129], 7);

  positions[1] = 383;
  expect_refused(op, p, {"block_table", "at least 2 blocks", "has 1"}, indices, lens);
  valid[0] = 1;
  expect_refused(op, p, {"positions[0]", "is -4"}, indices, lens);
  p.block_table = {};
  expect_refused(op, p, {"positions[0]", "is -4"}, indices, lens);
  positions[0] = 0;
  positions[1] = 255;
  p.block_table = table;
  table[0] = -3;
  expect_refused(op, p, {"block_table[0, 0]", "is -3"}, indices, lens);
  p.ratio = 0;
  expect_refused(op, p, {"ratio", "is 0"}, indices, lens);
  p.ratio = 128;
  p.page_size = -1;
  expect_refused(op, p, {"page_size", "is -1"}, indices, lens);
}

// --- compute_global_topk ---

TEST(ComputeGlobalTopk, EntriesToSlots) {
  Array<int32_t> local({3, 4}, {0, 63, 64, -1, 130, -1, -1, -1, 5, 6, 7, 8});
  Array<int32_t> requests({3}, {0, 1, 55});
  Array<uint8_t> valid({3}, {1, 1, 0});
  Array<int32_t> table({2, 2}, {7, 2, 1, 0});
  Array<int32_t> global({3, 4}), lens({3});
  ComputeGlobalTopkParams p{.topk_indices = local,
                            .token_to_req = requests,
                            .is_valid_token = valid,
                            .block_table = table,
                            .page_size = 64,
                            .global_indices = global,
                            .lens = lens};
  run(ops::make_compute_global_topk(), p);
  EXPECT_EQ(row_of(global, 4, 0), (Row{448, 511, 128, -1}));
  EXPECT_EQ(row_of(global, 4, 1), (Row{-1, -1, -1, -1}));  // block 2 is past the table
  EXPECT_EQ(row_of(global, 4, 2), (Row{-1, -1, -1, -1}));
  EXPECT_EQ(lens.values(), (Row{3, 1, 0}));

  p.global_indices = local;  // in place
  run(ops::make_compute_global_topk(), p);
  EXPECT_EQ(local.values(), global.values());
}

TEST(ComputeGlobalTopk, RefusesWhatContradictsTheContract) {
  const auto op = ops::make_compute_global_topk();
  Array<int32_t> local({1, 2}, {64, -1});
  Array<int32_t> requests({1}, {0});
  Array<int32_t> table({1, 2}, {-9, -1});
  Array<int32_t> global({1, 2}), lens({1});
  ComputeGlobalTopkParams p{.topk_indices = local,
                            .token_to_req = requests,
                            .is_valid_token = {},
                            .block_table = table,
                            .page_size = 64,
                            .global_indices = global,
                            .lens = lens};
  expect_refused(op, p, {"block_table[0, 1]", "is -1"}, global, lens);
  table[1] = 33554432;
  expect_refused(op, p, {"block_table[0, 1]", "[0, 33554432)", "is 33554432"}, global, lens);
  requests[0] = 1;
  expect_refused(op, p, {"token_to_req[0]", "[0, 1)", "is 1"}, global, lens);
  local[0] = 1000;  // past the table: the request must exist all the same
  expect_refused(op, p, {"token_to_req[0]", "[0, 1)", "is 1"}, global, lens);
  p.global_indices.shape[1] = 1;
  expect_refused(op, p, {"global_indices", "[1, 2]", "i32[1, 1]"}, global, lens);
  p.page_size = 0;
  expect_refused(op, p, {"page_size", "positive", "is 0"}, global, lens);
}

// --- combine_topk_swa ---

struct ChunkCase {
  Array<int32_t> topk, starts, seq_lens, gather_lens, indices, lens;
  CombineTopkSwaParams p;
  ChunkCase(std::vector<int32_t> query_lens, Row sequence_lens, int32_t window, int32_t ratio, int32_t top_k, int64_t n, int64_t m,
            int64_t width)
      : topk({sum(query_lens), top_k}),
        starts({static_cast<int64_t>(query_lens.size()) + 1}),
        seq_lens({static_cast<int64_t>(query_lens.size())}, sequence_lens),
        gather_lens({static_cast<int64_t>(query_lens.size())}),
        indices({sum(query_lens), width}),
        lens({sum(query_lens)}) {
    starts[0] = 1000;  // query_start_loc counts the whole batch
    int64_t t = 0;
    for (size_t r = 0; r < query_lens.size(); ++r) {
      const auto i = static_cast<int64_t>(r);
      starts[i + 1] = starts[i] + query_lens[r];
      gather_lens[i] = query_lens[r] + std::min(sequence_lens[r] - query_lens[r], window - 1);
      for (int32_t q = 0; q < query_lens[r]; ++q, ++t) {
        const int32_t visible = (sequence_lens[r] - query_lens[r] + q + 1) / ratio;
        for (int32_t k = 0; k < top_k; ++k) topk[t * top_k + k] = k < visible ? k : -1;
      }
    }
    p = {.topk_indices = top_k > 0 ? topk.view() : TensorView{},
         .query_start_loc = starts,
         .seq_lens = seq_lens,
         .gather_lens = gather_lens,
         .window = window,
         .ratio = ratio,
         .top_k = top_k,
         .m = m,
         .n = n,
         .combined_indices = indices,
         .combined_lens = lens};
  }
  static int64_t sum(const std::vector<int32_t>& v) {
    int64_t result = 0;
    for (int32_t x : v) result += x;
    return result;
  }
};

TEST(CombineTopkSwa, ExampleOfTheSpecification) {
  // Section 19: N = 256, M = 640, seq_len 300, q_len 100, twice.
  ChunkCase c({100, 100}, {300, 300}, 128, 4, 512, 256, 640, 640);
  EXPECT_EQ(c.gather_lens[0], 227);
  run(ops::make_combine_topk_swa(), c.p);
  EXPECT_EQ(c.lens[0], 50 + 128);
  EXPECT_EQ(c.indices[0], 0);
  EXPECT_EQ(c.indices[49], 49);
  EXPECT_EQ(c.indices[50], 256);  // N + (200 - 127 - 73) = N + 0
  EXPECT_EQ(c.indices[50 + 127], 256 + 127);
  EXPECT_EQ(c.indices[178], -1);
  EXPECT_EQ(c.indices[639], -1);
  // The last query, p = 299: 75 entries, window 172..299.
  EXPECT_EQ(c.lens[99], 75 + 128);
  EXPECT_EQ(c.indices[99 * 640 + 75], 256 + 172 - 73);
  EXPECT_EQ(c.indices[99 * 640 + 75 + 127], 256 + 226);
  // The second request adds M to every index.
  for (int64_t i = 0; i < 100 * 640; ++i) {
    ASSERT_EQ(c.indices[100 * 640 + i], c.indices[i] < 0 ? -1 : c.indices[i] + 640) << i;
  }
}

TEST(CombineTopkSwa, WindowOnlyAndEmptyRequests) {
  ChunkCase c({2, 0, 1}, {2, 9, 9}, 4, 1, 0, 0, 10, 6);
  c.gather_lens[1] = 3;  // gathered although nothing needs it: allowed
  run(ops::make_combine_topk_swa(), c.p);
  EXPECT_EQ(c.lens.values(), (Row{1, 2, 4}));
  EXPECT_EQ(c.indices.values(), (Row{0, -1, -1, -1, -1, -1, 0, 1, -1, -1, -1, -1, 20, 21, 22, 23, -1, -1}));
}

TEST(CombineTopkSwa, TopKBoundsTheEntries) {
  ChunkCase c({1}, {40}, 2, 4, 3, 16, 32, 5);
  c.topk.values() = {9, 2, 5};  // any order
  run(ops::make_combine_topk_swa(), c.p);
  EXPECT_EQ(c.lens[0], 5);
  EXPECT_EQ(c.indices.values(), (Row{9, 2, 5, 16, 17}));
}

TEST(CombineTopkSwa, RefusesWhatContradictsTheContract) {
  const auto op = ops::make_combine_topk_swa();
  ChunkCase c({2}, {12}, 4, 4, 3, 4, 16, 8);
  const CombineTopkSwaParams good = c.p;
  const auto refuse = [&](std::initializer_list<const char*> words) { expect_refused(op, c.p, words, c.indices, c.lens); };
  c.topk[1] = -1;
  refuse({"topk_indices[0, 1]", "[0, 2)", "is -1"});
  c.topk[1] = 2;
  refuse({"topk_indices[0, 1]", "[0, 2)", "is 2"});
  c.topk[1] = 1;
  c.p.n = 1;
  refuse({"topk_indices[0, 1]", "n = 1", "is 1"});
  c.p = good;
  c.gather_lens[0] = 4;
  refuse({"gather_lens[0]", "[5, 12]", "is 4"});
  c.gather_lens[0] = 13;
  refuse({"gather_lens[0]", "[5, 12]", "is 13"});
  c.gather_lens[0] = 5;
  c.p.m = 8;
  refuse({"m must be at least", "9", "is 8"});
  c.p.m = 3;
  refuse({"n must be in", "m = 3", "is 4"});
  c.p.m = int64_t{1} << 32;
  refuse({"m must be at most", "2147483648", "is 4294967296"});
  c.p = good;
  c.seq_lens[0] = 1;
  refuse({"seq_lens[0]", "at least the query length 2", "is 1"});
  c.seq_lens[0] = 12;
  c.starts[1] = 999;
  refuse({"query_start_loc[1]", "1000", "is 999"});
  c.starts[1] = 1001;
  refuse({"query_start_loc", "2 rows", "spans 1"});
  c.starts[1] = 1002;
  c.p.top_k = -1;
  refuse({"top_k", "negative", "is -1"});
  c.p.top_k = 0;
  refuse({"topk_indices", "absent", "i32[2, 3]"});
  c.p = good;
  c.p.window = 6;
  refuse({"combined_indices", "top_k + window = 9", "has 8"});
  c.p.window = 0;
  refuse({"window", "at least 1", "is 0"});
  c.p = good;
  c.p.combined_lens.shape[0] = 1;
  refuse({"combined_lens", "[2]", "i32[1]"});
}

}  // namespace
}  // namespace strata::test
