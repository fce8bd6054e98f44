// save_partial_states and compress_norm_rope_store on the reference.
#include <cmath>

#include "formats/hadamard.h"
#include "formats/rope.h"
#include "ops/factories.h"
#include "page_memory.h"

namespace strata {
namespace {

using test::Array;
using test::expect_refused;
using test::PageMemory;
using test::run;

struct SaveCase {
  Array<float> kv_score{{3, 4}, {1, 2, 10, 20, 3, 4, 30, 40, 5, 6, 50, 60}};
  Array<float> ape{{2, 2}, {0.5f, 0.25f, 100, 200}};
  Array<int64_t> positions{{3}, {6, 7, 9}};
  Array<int64_t> slots{{3}, {4, -1, 0}};
  PageMemory state{KvFormat::state_f32, 4, 3, 2, 7};
  SavePartialStatesParams params{.kv_score = kv_score, .ape = ape, .positions = positions, .state_slots = slots, .state = state.cache};
};

TEST(SavePartialStates, ValuesThenScoresWithTheirPositionBias) {
  SaveCase c;
  PageMemory expected(KvFormat::state_f32, 4, 3, 2, 7);
  const float first[] = {1, 2, 10.5f, 20.25f}, last[] = {5, 6, 150, 260};
  store_row(expected.cache, 4, first);
  store_row(expected.cache, 0, last);
  run(ops::make_save_partial_states(), c.params);
  EXPECT_EQ(c.state.bytes(), expected.bytes());
}

TEST(SavePartialStates, RefusesWhatContradictsTheContract) {
  const auto op = ops::make_save_partial_states();
  const auto refused = [&](auto change, std::initializer_list<const char*> words) {
    SaveCase c;
    change(c);
    expect_refused(op, c.params, words, c.state);
  };
  refused([](SaveCase& c) { c.params.kv_score.dtype = DType::bf16; }, {"kv_score", "f32", "bf16"});
  refused([](SaveCase& c) { c.params.kv_score.shape[1] = 3; }, {"kv_score", "even", "3"});
  refused([](SaveCase& c) { c.params.ape.shape[1] = 1; }, {"ape", "[any, 2]", "f32[2, 1]"});
  refused([](SaveCase& c) { c.params.ape.shape[0] = 0; }, {"ape", "one row", "0"});
  refused([](SaveCase& c) { c.params.positions.shape[0] = 2; }, {"positions", "[3]", "i64[2]"});
  refused([](SaveCase& c) { c.params.state_slots = {}; }, {"state_slots", "required", "absent"});
  refused([](SaveCase& c) { c.params.state.format = KvFormat::bf16; }, {"state", "state_f32", "bf16"});
  refused([](SaveCase& c) { c.params.state.row_dim = 8; }, {"state", "row_dim 4", "8"});
  refused([](SaveCase& c) { c.slots[0] = 6; }, {"state_slots[0]", "[0, 6)", "6"});
  refused([](SaveCase& c) { c.positions[2] = -1; }, {"positions[2]", "negative", "-1"});
  SaveCase skipped;
  skipped.positions[1] = -1;  // its slot is -1
  run(op, skipped.params);
}

// One request of `length` positions, its states saved in pages of a permuted table, and every token of the step given to the op.
struct CompressCase {
  CompressCase(int32_t ratio_, int64_t d_, KvFormat format, int64_t length, int32_t state_page_size)
      : ratio(ratio_),
        d(d_),
        width(2 * (ratio_ == 4 ? 2 : 1) * d_),
        num_blocks((length + state_page_size - 1) / state_page_size),
        state(KvFormat::state_f32, static_cast<int32_t>(width), state_page_size, num_blocks + 1, 12),
        cache(format, static_cast<int32_t>(d_), 2, length / ratio_ + 1, 40),
        block_table({1, num_blocks + 1}),
        token_to_req({length}, std::vector<int32_t>(static_cast<size_t>(length), 0)),
        positions({length}),
        state_slots({length}),
        out_slots({length}),
        norm_weight({d_}) {
    state.memory.fill(0xFF);  // NaN wherever nothing was saved
    for (int64_t b = 0; b < num_blocks; ++b) block_table[b] = static_cast<int32_t>(num_blocks - b);
    block_table[num_blocks] = 1 << 30;
    std::mt19937 generator(static_cast<uint32_t>(ratio * d));
    std::normal_distribution<float> distribution;
    for (int64_t i = 0; i < d; ++i) norm_weight[i] = 1.0f + 0.1f * distribution(generator);
    for (int64_t t = 0; t < length; ++t) {
      std::vector<float> row(static_cast<size_t>(width));
      for (float& v : row) v = distribution(generator);
      rows.push_back(row);
      positions[t] = t;
      state_slots[t] = block_table[t / state_page_size] * state_page_size + t % state_page_size;
      out_slots[t] = (t + 1) % ratio == 0 ? t / ratio : -1;
      store_row(state.cache, state_slots[t], row.data());
    }
    params = {.state = state.cache,
              .block_table = block_table,
              .token_to_req = token_to_req,
              .positions = positions,
              .state_slots = state_slots,
              .out_slots = out_slots,
              .ratio = ratio,
              .norm_weight = norm_weight,
              .cos_sin = table,
              .cache = cache.cache};
  }

  // Entry j by the definition of V4 9.1, straight from the rows.
  std::vector<float> entry(int64_t j) const {
    std::vector<double> n;
    double sum = 0.0;
    for (int64_t c = 0; c < d; ++c) {
      double z = 0.0, u = 0.0;
      for (int64_t i = 0; i < (ratio == 4 ? 8 : 128); ++i) {
        const int64_t position = ratio == 4 ? 4 * j - 4 + i : 128 * j + i;
        if (position < 0) continue;
        const size_t column = static_cast<size_t>(ratio == 4 && i >= 4 ? d + c : c);
        const std::vector<float>& row = rows[static_cast<size_t>(position)];
        const double e = std::exp(double{row[static_cast<size_t>(width) / 2 + column]});
        z += e;
        u += e * row[column];
      }
      n.push_back(u / z);
      sum += u / z * (u / z);
    }
    for (int64_t c = 0; c < d; ++c) {
      n[static_cast<size_t>(c)] *= norm_weight.values()[static_cast<size_t>(c)] / std::sqrt(sum / static_cast<double>(d) + 1e-6);
    }
    rotate(n.data() + d - 64, table.view().row<float>(j * ratio), 64, RopePairing::interleaved);
    return {n.begin(), n.end()};
  }

  int32_t ratio;
  int64_t d, width, num_blocks;
  PageMemory state, cache;
  Array<int32_t> block_table, token_to_req;
  Array<int64_t> positions, state_slots, out_slots;
  Array<float> norm_weight;
  Tensor table = build_rope_table({.theta = 160000.0, .factor = 16.0, .original_max_position = 65536}, 600, open_device({}));
  std::vector<std::vector<float>> rows;
  CompressNormRopeStoreParams params;
};

// What the cache gives for a row: the definition quantised by the format. Values that the two computations round to different fp32
// numbers can differ by one step of the format; `steps` allows that.
void expect_row(const PageMemory& cache, int64_t slot, const std::vector<float>& row, double relative) {
  const std::vector<float> got = cache.row(slot);
  PageMemory expected(cache.cache.format, cache.cache.row_dim, 1, 1, 0);
  store_row(expected.cache, 0, row.data());
  const std::vector<float> want = expected.row(0);
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], relative * std::fabs(want[i]) + 1e-6) << "slot " << slot << " dimension " << i;
  }
}

TEST(CompressNormRopeStore, EveryEntryOfEveryShape) {
  struct Shape {
    int32_t ratio;
    int64_t d;
    KvFormat format;
    double relative;
  };
  const Shape shapes[] = {{4, 512, KvFormat::fp8_ds_mla_v4, 0.125}, {4, 512, KvFormat::bf16, 0x1p-7},
                          {4, 512, KvFormat::fp8_tensor, 0.125},    {128, 512, KvFormat::bf16, 0x1p-7},
                          {4, 128, KvFormat::indexer_fp8, 0.125},   {4, 128, KvFormat::indexer_mxfp4, 1.0},
                          {4, 128, KvFormat::bf16, 0x1p-7}};
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(testing::Message() << shape.ratio << " " << shape.d << " " << to_string(shape.format));
    const int64_t length = shape.ratio == 4 ? 27 : 300;
    CompressCase c(shape.ratio, shape.d, shape.format, length, 4);
    run(ops::make_compress_norm_rope_store(), c.params);
    for (int64_t j = 0; j < length / shape.ratio; ++j) expect_row(c.cache, j, c.entry(j), shape.relative);
    const std::vector<float> unwritten = PageMemory(shape.format, static_cast<int32_t>(shape.d), 2, 1, 0).row(1);
    EXPECT_EQ(c.cache.row(length / shape.ratio), unwritten) << "an incomplete window has no entry";
  }
}

TEST(CompressNormRopeStore, StatePagesOfOtherSizes) {
  for (int32_t page_size : {1, 3, 8}) {
    CompressCase c(4, 128, KvFormat::bf16, 24, page_size);
    run(ops::make_compress_norm_rope_store(), c.params);
    for (int64_t j = 0; j < 6; ++j) expect_row(c.cache, j, c.entry(j), 0x1p-7);
  }
}

// The case's rows as a step that has yet to save them.
struct SavingCase : CompressCase {
  SavingCase(int32_t ratio_, int64_t d_, KvFormat format, int64_t length)
      : CompressCase(ratio_, d_, format, length, 4), kv_score({length, width}), ape({ratio_, width / 2}) {
    state.memory.fill(0xFF);
    std::mt19937 generator(5);
    std::normal_distribution<float> distribution;
    for (int64_t i = 0; i < ratio_ * width / 2; ++i) ape[i] = distribution(generator);
    for (int64_t t = 0; t < length; ++t) {
      std::vector<float>& row = rows[static_cast<size_t>(t)];
      for (int64_t i = 0; i < width; ++i) kv_score[t * width + i] = row[static_cast<size_t>(i)];
      for (int64_t i = 0; i < width / 2; ++i) row[static_cast<size_t>(width / 2 + i)] += ape[t % ratio_ * width / 2 + i];
    }
    params.save_prologue = {.kv_score = kv_score, .ape = ape};
  }

  Array<float> kv_score, ape;
};

TEST(CompressNormRopeStore, SavesTheStepFirst) {
  for (const int32_t ratio : {4, 128}) {
    const int64_t length = ratio == 4 ? 14 : 259;
    SavingCase c(ratio, 128, KvFormat::bf16, length);
    run(ops::make_compress_norm_rope_store(), c.params);
    for (int64_t t = 0; t < length; ++t) EXPECT_EQ(c.state.row(c.state_slots[t]), c.rows[static_cast<size_t>(t)]) << t;
    for (int64_t j = 0; j < length / ratio; ++j) expect_row(c.cache, j, c.entry(j), 0x1p-7);
  }
}

TEST(CompressNormRopeStore, RefusesStepsThatItCannotSave) {
  const auto op = ops::make_compress_norm_rope_store();
  const auto refused = [&](auto change, std::initializer_list<const char*> words) {
    SavingCase c(4, 128, KvFormat::indexer_fp8, 12);
    change(c);
    expect_refused(op, c.params, words, c.cache, c.state);
  };
  refused([](SavingCase& c) { c.params.save_prologue->kv_score = {}; }, {"save_prologue: kv_score", "required"});
  refused([](SavingCase& c) { c.params.save_prologue->ape = {}; }, {"ape", "required", "[4, 256]"});
  refused([](SavingCase& c) { c.params.save_prologue->ape.shape[0] = 3; }, {"ape", "[4, 256]", "f32[3, 256]"});
  refused([](SavingCase& c) { c.params.save_prologue->kv_score.shape[0] = 11; }, {"kv_score", "[12, 512]", "f32[11, 512]"});
  refused([](SavingCase& c) { c.params.save_prologue->kv_score.shape[1] = 256; }, {"kv_score", "[12, 512]", "f32[12, 256]"});
  refused([](SavingCase& c) { c.state_slots[5] = 16; }, {"state_slots", "[0, 16)", "16"});
  refused([](SavingCase& c) { c.state_slots[5] += 1; }, {"state_slots[5]", "where block_table has the position"});
  refused([](SavingCase& c) { c.positions[2] = -3; }, {"positions[2]", "negative", "-3"});
  refused([](SavingCase& c) { c.token_to_req[4] = -1; }, {"token_to_req[4]", "0 at least", "-1"});
  refused([](SavingCase& c) { c.positions[6] = 5; }, {"positions[6]", "1 more than positions[5]", "0 more"});
  refused([](SavingCase& c) { c.state_slots[6] = -1, c.positions[7] = 6; }, {"positions[7]", "2 more than positions[5]", "1 more"});
}

TEST(CompressNormRopeStore, HadamardFollowsTheRotation) {
  CompressCase c(4, 128, KvFormat::bf16, 8, 4);
  c.params.hadamard = true;
  run(ops::make_compress_norm_rope_store(), c.params);
  std::vector<float> row = c.entry(1);
  hadamard(row.data(), 128);
  const std::vector<float> got = c.cache.row(1);
  for (size_t i = 0; i < 128; ++i) EXPECT_NEAR(got[i], row[i], 0.02) << i;
}

TEST(CompressNormRopeStore, TokensWithoutASlotWriteNothing) {
  CompressCase c(4, 128, KvFormat::indexer_fp8, 12, 4);
  c.state_slots[3] = -1;
  c.out_slots[7] = -1;
  c.token_to_req[3] = 99;  // never looked at
  run(ops::make_compress_norm_rope_store(), c.params);
  const std::vector<float> unwritten = PageMemory(KvFormat::indexer_fp8, 128, 2, 1, 0).row(0);
  EXPECT_EQ(c.cache.row(0), unwritten);
  EXPECT_EQ(c.cache.row(1), unwritten);
  expect_row(c.cache, 2, c.entry(2), 0.125);
}

TEST(CompressNormRopeStore, NegativeTableEntriesAreReadAsPageZero) {
  CompressCase c(4, 128, KvFormat::bf16, 8, 4);
  for (int64_t t = 4; t < 8; ++t) store_row(c.state.cache, t - 4, c.rows[static_cast<size_t>(t)].data());
  c.block_table[1] = -1;
  run(ops::make_compress_norm_rope_store(), c.params);
  expect_row(c.cache, 1, c.entry(1), 0x1p-7);
}

TEST(CompressNormRopeStore, ALargeScoreTakesAllTheWeight) {
  CompressCase c(4, 128, KvFormat::bf16, 4, 4);
  for (int64_t t = 0; t < 4; ++t) {
    std::vector<float>& row = c.rows[static_cast<size_t>(t)];
    for (size_t i = 0; i < 128; ++i) {
      row[128 + i] = static_cast<float>(t + 1);
      row[256 + 128 + i] = t == 2 ? 3e4f : -3e4f;  // exp would overflow without the maximum taken off
    }
    store_row(c.state.cache, c.state_slots[t], row.data());
  }
  run(ops::make_compress_norm_rope_store(), c.params);
  const std::vector<float> got = c.cache.row(0);
  for (size_t i = 0; i < 128; ++i) EXPECT_NEAR(got[i], c.norm_weight[static_cast<int64_t>(i)], 0.01) << "u = 3, so n = w";
}

TEST(CompressNormRopeStore, RefusesWhatContradictsTheContract) {
  const auto op = ops::make_compress_norm_rope_store();
  const auto refused = [&](auto change, std::initializer_list<const char*> words) {
    CompressCase c(4, 128, KvFormat::indexer_fp8, 12, 4);
    change(c);
    expect_refused(op, c.params, words, c.cache);
  };
  refused([](CompressCase& c) { c.params.ratio = 8; }, {"ratio", "4 or 128", "8"});
  refused([](CompressCase& c) { c.params.eps = -1.0f; }, {"eps", "negative", "-1"});
  refused([](CompressCase& c) { c.params.norm_weight.shape[0] = 64; }, {"norm_weight", "128 or 512", "64"});
  refused([](CompressCase& c) { c.params.ratio = 128; }, {"state", "row_dim 256", "512"});
  refused([](CompressCase& c) { c.params.cache.format = KvFormat::fp8_ds_mla_v4; },
          {"cache", "indexer_fp8 or indexer_mxfp4 or bf16", "fp8_ds_mla_v4"});
  refused([](CompressCase& c) { c.params.cache.row_dim = 64; }, {"cache", "row_dim 128", "64"});
  refused([](CompressCase& c) { c.params.positions.shape[0] = 11; }, {"positions", "[12]", "i64[11]"});
  refused([](CompressCase& c) { c.params.out_slots.shape[0] = 11; }, {"out_slots", "[12]", "i64[11]"});
  refused([](CompressCase& c) { c.params.block_table.rank = 1; }, {"block_table", "[any, any]", "i32[1]"});
  refused([](CompressCase& c) { c.params.cos_sin.shape[1] = 130; }, {"cos_sin", "[2, 128]", "130"});
  refused([](CompressCase& c) { c.out_slots[7] = 8; }, {"out_slots[7]", "[0, 8)", "8"});
  refused([](CompressCase& c) { c.params.cos_sin.shape[0] = 8; }, {"positions[11]", "[0, 8)", "11"});
  refused([](CompressCase& c) { c.positions[11] = INT64_MAX; }, {"positions[11]", "below 2^63 - 1", "9223372036854775807"});
  refused([](CompressCase& c) { c.token_to_req[3] = 1; }, {"token_to_req[3]", "[0, 1)", "1"});
  refused([](CompressCase& c) { c.params.block_table.shape[1] = 2; }, {"block_table", "at least 3 blocks", "has 2"});
  refused([](CompressCase& c) { c.block_table[1] = 4; }, {"block_table[0, 1]", "below 4", "4"});
  CompressCase main(4, 512, KvFormat::fp8_ds_mla_v4, 8, 4);
  main.params.hadamard = true;
  expect_refused(op, main.params, {"hadamard", "512", "true"}, main.cache);
  main.params.hadamard = false;
  main.params.cos_sin.shape[1] = 32;
  expect_refused(op, main.params, {"cos_sin", "64 columns", "32"}, main.cache);
}

}  // namespace
}  // namespace strata
