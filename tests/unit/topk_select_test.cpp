#include <algorithm>
#include <numeric>

#include "ops/factories.h"
#include "unit/op_test.h"

namespace strata::test {
namespace {

const Op<TopkSelectParams> kOp = ops::make_topk_select();

// One row of logits; columns after `length` are NaN so that a read of them shows.
std::vector<int32_t> select(std::vector<float> logits, int32_t length, int64_t k) {
  Array<float> row({1, static_cast<int64_t>(logits.size())}, logits);
  Array<int32_t> lengths({1}, {length});
  Array<int32_t> out({1, k});
  run(kOp, {.logits = row, .lengths = lengths, .topk_indices = out});
  return out.values();
}

TEST(TopkSelect, LargestInAscendingOrder) {
  EXPECT_EQ(select({5, 1, 7, -3, 6}, 5, 3), (std::vector<int32_t>{0, 2, 4}));
  EXPECT_EQ(select({-5, -1, -7, -3, -6}, 5, 2), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(select({-1, 0, 1}, 3, 1), (std::vector<int32_t>{2}));
}

TEST(TopkSelect, ShortRowsAreEverything) {
  EXPECT_EQ(select({kNaN, kNaN, 9}, 2, 4), (std::vector<int32_t>{0, 1, -1, -1}));
  EXPECT_EQ(select({3, 2, 1}, 3, 3), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(select({3, 2, 1}, 0, 2), (std::vector<int32_t>{-1, -1}));
  EXPECT_EQ(select({}, 0, 2), (std::vector<int32_t>{-1, -1}));
}

TEST(TopkSelect, SmallerEntryWinsATie) {
  EXPECT_EQ(select({1, 2, 2, 2, 3}, 5, 3), (std::vector<int32_t>{1, 2, 4}));
  EXPECT_EQ(select({7, 7, 7, 7}, 4, 2), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(select({-0.0f, 0.0f, -0.0f, 0.0f}, 4, 2), (std::vector<int32_t>{0, 1}));  // both zeros are one value
}

TEST(TopkSelect, NaNCountsAsMinusInfinity) {
  EXPECT_EQ(select({kNaN, 1, -kNaN, 2}, 4, 2), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(select({kNaN, -kInf, 1, kNaN}, 4, 2), (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(select({-kInf, kNaN, 1}, 3, 2), (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(select({1, kInf, -kInf, 2}, 4, 1), (std::vector<int32_t>{1}));
}

TEST(TopkSelect, ColumnsBehindTheLengthAreNotRead) { EXPECT_EQ(select({1, 3, 2, kInf, kInf}, 3, 2), (std::vector<int32_t>{1, 2})); }

TEST(TopkSelect, AgreesWithASort) {
  std::mt19937 generator(7);
  std::uniform_int_distribution<int> level(-20, 20);  // few levels: many ties
  for (int64_t n : {1, 2, 63, 64, 65, 1000}) {
    for (int64_t k : {1, 3, 64, 512}) {
      std::vector<float> logits(static_cast<size_t>(n));
      for (float& v : logits) v = static_cast<float>(level(generator)) * 0.37f;
      std::vector<int32_t> order(static_cast<size_t>(n));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
      order.resize(static_cast<size_t>(std::min(n, k)));
      std::sort(order.begin(), order.end());
      order.resize(static_cast<size_t>(k), -1);
      EXPECT_EQ(select(logits, static_cast<int32_t>(n), k), order) << "n = " << n << ", k = " << k;
    }
  }
}

TEST(TopkSelect, StridedViewsAndManyRows) {
  Array<float> logits({3, 8});
  logits.fill(kNaN);
  for (int64_t j = 0; j < 4; ++j) logits[j] = static_cast<float>(j), logits[8 + j] = static_cast<float>(-j), logits[16 + j] = 1.0f;
  Array<int32_t> lengths({3}, {4, 4, 1});
  Array<int32_t> out({3, 6});
  const std::vector<int32_t> before = out.values();
  run(kOp, {.logits = logits.view().columns(0, 4), .lengths = lengths, .topk_indices = out.view().columns(2, 2)});
  const std::vector<std::vector<int32_t>> expected{{2, 3}, {0, 1}, {0, -1}};
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t i = 0; i < 6; ++i) {
      const bool written = i == 2 || i == 3;
      EXPECT_EQ(out[t * 6 + i],
                written ? expected[static_cast<size_t>(t)][static_cast<size_t>(i - 2)] : before[static_cast<size_t>(t * 6 + i)]);
    }
  }
}

TEST(TopkSelect, RefusesWhatContradictsTheContract) {
  Array<float> logits({2, 4}, std::vector<float>(8, 1.0f));
  Array<int32_t> lengths({2}, {4, 5});
  Array<int32_t> out({2, 2});
  const TopkSelectParams p{.logits = logits, .lengths = lengths, .topk_indices = out};
  expect_refused(kOp, p, {"lengths[1]", "[0, 5)", "is 5"}, out);
  lengths[1] = -1;
  expect_refused(kOp, p, {"lengths[1]", "is -1"}, out);
  lengths[1] = 4;

  TopkSelectParams bad = p;
  bad.logits = {};
  expect_refused(kOp, bad, {"logits", "f32", "absent"}, out);
  bad = p;
  bad.logits.dtype = DType::i32;
  expect_refused(kOp, bad, {"logits", "f32", "i32[2, 4]"}, out);
  bad = p;
  bad.lengths.shape[0] = 1;
  expect_refused(kOp, bad, {"lengths", "[2]", "i32[1]"}, out);
  bad = p;
  bad.topk_indices.shape[1] = 0;
  expect_refused(kOp, bad, {"topk_indices", "at least 1", "has 0"}, out);
  bad = p;
  bad.topk_indices.stride[0] = 1;
  expect_refused(kOp, bad, {"topk_indices", "at least 2", "strides [1, 1]"}, out);
  bad = p;
  bad.logits.stride[1] = 2;
  expect_refused(kOp, bad, {"logits", "stride 1", "has 2"}, out);
  bad = p;
  bad.lengths.device = {DeviceKind::cuda, 0};
  expect_refused(kOp, bad, {"lengths", "cpu", "cuda:0"}, out);
}

}  // namespace
}  // namespace strata::test
