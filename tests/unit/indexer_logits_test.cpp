#include <cmath>

#include "ops/factories.h"
#include "unit/cache_pages.h"
#include "unit/op_test.h"

namespace strata::test {
namespace {

const Op<IndexerLogitsParams> kLogits = ops::make_indexer_logits();
const Op<IndexerTopkParams> kTopk = ops::make_indexer_topk();

TEST(IndexerLogits, ReluPerHeadBeforeTheWeights) {
  CachePages cache(KvFormat::bf16, 2, 2, 2);
  cache.store(0, {1, 0});   // entry 1: page 0, row 0 is entry 2
  cache.store(2, {2, 1});   // entry 0
  cache.store(3, {-1, 3});  // entry 1
  Array<Bf16> q({1, 2, 2}, bf16_values({1, 1, 1, -1}));
  Array<float> w({1, 2}, {2, -3});
  Array<int32_t> table({1, 2}, {1, 0}), requests({1}, {0}), lengths({1}, {3});
  Array<float> logits({1, 5});
  logits.fill(42.0f);
  run(kLogits, {.q = q,
                .q_scale = {},
                .weights = w,
                .cache = cache,
                .block_table = table,
                .token_to_req = requests,
                .lengths = lengths,
                .logits = logits});
  // dots of head 0: 3, 2, 1; of head 1: 1, -4, 1.
  EXPECT_EQ(logits.values(), (std::vector<float>{2 * 3 - 3 * 1, 2 * 2, 2 * 1 - 3 * 1, 42, 42}));
}

TEST(IndexerLogits, KeyScaleOfFp8) {
  CachePages cache(KvFormat::indexer_fp8, 128, 64, 1, 192);
  std::vector<float> key(128, 0.0f);
  key[0] = 1.0f;
  key[1] = 0.25f;
  cache.store(0, key);
  Array<E4m3> q({1, 1, 128});
  q.fill(to_e4m3(0.0f));
  q[0] = to_e4m3(2.0f);
  q[1] = to_e4m3(8.0f);
  Array<float> w({1, 1}, {0.5f});
  Array<int32_t> table({1, 1}, {0}), requests({1}, {0}), lengths({1}, {1});
  Array<float> logits({1, 1});
  run(kLogits, {.q = q,
                .q_scale = {},
                .weights = w,
                .cache = cache,
                .block_table = table,
                .token_to_req = requests,
                .lengths = lengths,
                .logits = logits});
  EXPECT_EQ(logits[0], 2.0f);
}

// Random queries over permuted pages of any format; what no token needs is NaN.
struct RandomCase {
  static constexpr int64_t kTokens = 5, kHeads = 3, kDim = 128, kRequests = 2;
  KvFormat format;
  CachePages cache;
  Array<Bf16> bf16{{kTokens, kHeads, kDim}};
  Array<E4m3> fp8{{kTokens, kHeads, kDim}};
  Array<uint8_t> fp4{{kTokens, kHeads, kDim / 2}};
  Array<E8m0> fp4_scale{{kTokens, kHeads, kDim / 32}};
  Array<float> weights{{kTokens, kHeads}};
  Array<int32_t> table;
  Array<int32_t> requests{{kTokens}, {0, 1, 0, 1, -1}};
  Array<int32_t> lengths{{kTokens}, {40, 7, 33, 0, 0}};  // the last token is padding

  RandomCase(KvFormat f, int32_t page_size)
      : format(f), cache(f, kDim, page_size, 2 * pages(page_size) + 1, 24), table({kRequests, pages(page_size)}) {
    std::mt19937 generator(11);
    std::normal_distribution<float> normal;
    for (int64_t r = 0; r < kRequests; ++r) {
      for (int64_t b = 0; b < pages(page_size); ++b) {
        table[r * pages(page_size) + b] = static_cast<int32_t>(2 * pages(page_size) - (2 * b + r));  // descending, interleaved
      }
    }
    const int64_t needed[] = {40, 7};
    for (int64_t r = 0; r < kRequests; ++r) {
      for (int64_t j = 0; j < needed[r]; ++j) {
        std::vector<float> key(kDim);
        for (float& v : key) v = normal(generator);
        cache.store(slot(r, j), key);
      }
    }
    for (float& v : weights.values()) v = normal(generator);
    bf16.values() = random_bf16(kTokens * kHeads * kDim, 1.0f, 13);
    for (int64_t head = 0; head < kTokens * kHeads; ++head) {
      quantize_indexer_fp8(&bf16[head * kDim], kDim, kKvAmaxFloor, &fp8[head * kDim]);
      for (int64_t b = 0; b < kDim / 32; ++b)
        fp4_scale[head * 4 + b] = quantize_mxfp4_block(&bf16[head * kDim + 32 * b], &fp4[head * 64 + 16 * b]);
    }
  }
  static int64_t pages(int64_t page_size) { return (40 + page_size - 1) / page_size; }
  int64_t slot(int64_t r, int64_t j) {
    const int64_t page_size = cache.view().page_size;
    return table[r * pages(page_size) + j / page_size] * page_size + j % page_size;
  }
  TensorView q() { return format == KvFormat::bf16 ? bf16.view() : format == KvFormat::indexer_fp8 ? fp8.view() : fp4.view(); }
  TensorView q_scale() { return format == KvFormat::indexer_mxfp4 ? fp4_scale.view() : TensorView{}; }
  float q_value(int64_t i) {
    if (format == KvFormat::bf16) return to_float(bf16[i]);
    if (format == KvFormat::indexer_fp8) return to_float(fp8[i]);
    return e2m1_element(fp4.values().data(), i) * to_float(fp4_scale[i / 32]);
  }
  IndexerLogitsParams logits_params(TensorView logits) {
    return {.q = q(),
            .q_scale = q_scale(),
            .weights = weights,
            .cache = cache,
            .block_table = table,
            .token_to_req = requests,
            .lengths = lengths,
            .logits = logits};
  }
  IndexerTopkParams topk_params(TensorView out) {
    return {.q = q(),
            .q_scale = q_scale(),
            .weights = weights,
            .cache = cache,
            .block_table = table,
            .token_to_req = requests,
            .lengths = lengths,
            .max_length = 40,
            .topk_indices = out};
  }
};

class EveryFormatAndPage : public testing::TestWithParam<std::tuple<KvFormat, int>> {};

TEST_P(EveryFormatAndPage, LogitsAreTheSum) {
  RandomCase c(std::get<0>(GetParam()), std::get<1>(GetParam()));
  Array<float> wide({RandomCase::kTokens, 50});
  wide.fill(42.0f);
  run(kLogits, c.logits_params(wide.view().columns(3, 41)));
  for (int64_t t = 0; t < RandomCase::kTokens; ++t) {
    for (int64_t j = 0; j < 47; ++j) {
      const float got = wide[t * 50 + 3 + j];
      if (j >= c.lengths[t]) {
        EXPECT_EQ(got, 42.0f);
        continue;
      }
      const std::vector<float> key = c.cache.load(c.slot(c.requests[t], j));
      double expected = 0, magnitude = 0;
      for (int64_t h = 0; h < RandomCase::kHeads; ++h) {
        double dot = 0;
        for (int64_t d = 0; d < 128; ++d) dot += double{c.q_value((t * RandomCase::kHeads + h) * 128 + d)} * key[static_cast<size_t>(d)];
        expected += c.weights[t * RandomCase::kHeads + h] * std::max(dot, 0.0);
        magnitude += std::fabs(c.weights[t * RandomCase::kHeads + h] * dot);
      }
      EXPECT_NEAR(got, expected, 1e-6 * magnitude + 1e-12) << "token " << t << ", entry " << j;
    }
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(wide[t * 50 + i], 42.0f);
  }
}

TEST_P(EveryFormatAndPage, TopkIsLogitsThenSelection) {
  RandomCase c(std::get<0>(GetParam()), std::get<1>(GetParam()));
  Array<float> logits({RandomCase::kTokens, 40});
  logits.fill(kNaN);
  run(kLogits, c.logits_params(logits));
  for (int64_t k : {1, 8, 33, 39}) {
    Array<int32_t> both({RandomCase::kTokens, k}), separate({RandomCase::kTokens, k});
    run(ops::make_topk_select(), {.logits = logits, .lengths = c.lengths, .topk_indices = separate});
    run(kTopk, c.topk_params(both));
    EXPECT_EQ(both.values(), separate.values()) << "k = " << k;
  }
}

INSTANTIATE_TEST_SUITE_P(IndexerLogits, EveryFormatAndPage,
                         testing::Combine(testing::Values(KvFormat::bf16, KvFormat::indexer_fp8, KvFormat::indexer_mxfp4),
                                          testing::Values(1, 2, 3, 16, 64)),
                         [](const auto& tested) {
                           return std::string(to_string(std::get<0>(tested.param))) + "_" + std::to_string(std::get<1>(tested.param));
                         });

TEST(IndexerTopk, ShortContextNeedsNoQuery) {
  Array<int32_t> lengths({3}, {0, 2, 4});
  Array<int32_t> out({3, 4});
  const IndexerTopkParams p{.q = {},
                            .q_scale = {},
                            .weights = {},
                            .cache = {},
                            .block_table = {},
                            .token_to_req = {},
                            .lengths = lengths,
                            .max_length = 4,
                            .topk_indices = out};
  run(kTopk, p);
  EXPECT_EQ(out.values(), (std::vector<int32_t>{-1, -1, -1, -1, 0, 1, -1, -1, 0, 1, 2, 3}));
  EXPECT_EQ(kTopk.workspace_bytes(p, *open_device({})), 0);
  lengths[2] = 5;
  expect_refused(kTopk, p, {"lengths[2]", "[0, 5)", "is 5"}, out);
  IndexerTopkParams longer = p;
  longer.max_length = 5;
  expect_refused(kTopk, longer, {"q is required", "absent"}, out);
  longer.max_length = -1;
  expect_refused(kTopk, longer, {"max_length", "is -1"}, out);
}

TEST(IndexerTopk, SlotsOfTheFirstTokens) {
  Array<int32_t> lengths({4}, {0, 3, 2, 3}), requests({4}, {-7, 1, 0, 1}), table({2, 2}, {9, 4, 3, 5}), out({4, 4}), slots({3, 4}),
      lens({3});
  IndexerTopkParams p{.token_to_req = requests,
                      .lengths = lengths,
                      .max_length = 4,
                      .topk_indices = out,
                      .slots_epilogue = TopkSlots{.block_table = table, .page_size = 2, .slots = slots, .lens = lens}};
  run(kTopk, p);
  EXPECT_EQ(slots.values(), (std::vector<int32_t>{-1, -1, -1, -1, 6, 7, 10, -1, 18, 19, -1, -1}));
  EXPECT_EQ(lens.values(), (std::vector<int32_t>{0, 3, 2}));
  EXPECT_EQ(out[15], -1);
  p.slots_epilogue->block_table = table.view().columns(0, 1);  // entries past it are no slots, but counted
  run(kTopk, p);
  EXPECT_EQ(slots.values(), (std::vector<int32_t>{-1, -1, -1, -1, 6, 7, -1, -1, 18, 19, -1, -1}));
  EXPECT_EQ(lens[1], 3);

  const auto refuse = [&](const IndexerTopkParams& bad, std::initializer_list<const char*> words) {
    expect_refused(kTopk, bad, words, out, slots, lens);
  };
  IndexerTopkParams bad = p;
  bad.slots_epilogue->page_size = 0;
  refuse(bad, {"slots_epilogue: page_size", "positive", "is 0"});
  bad = p;
  bad.slots_epilogue->block_table = {};
  refuse(bad, {"slots_epilogue: block_table is required"});
  bad = p;
  bad.token_to_req = {};
  refuse(bad, {"token_to_req is required"});
  bad = p;
  bad.slots_epilogue->slots.shape[1] = 3;
  refuse(bad, {"slots", "[any, 4]", "i32[3, 3]"});
  bad = p;
  bad.slots_epilogue->lens.shape[0] = 2;
  refuse(bad, {"slots_epilogue: lens", "[3]", "i32[2]"});
  bad = p;
  bad.slots_epilogue->slots.shape[0] = 5;
  refuse(bad, {"slots", "at most 4 rows", "has 5"});
  requests[2] = 2;
  refuse(p, {"token_to_req[2]", "[0, 2)", "is 2"});
  requests[2] = 0;
  const int32_t page = table[0];
  table[0] = -1;
  refuse(p, {"slots_epilogue: block_table[0, 0]", "is -1"});
  table[0] = 2'000'000'000;
  refuse(p, {"slots_epilogue: block_table[0, 0]", "is 2000000000"});
  table[0] = page;
}

// The prologue is what indexer_query makes before the op.
TEST(IndexerTopk, PrologueIsTheQueryOfIndexerQuery) {
  RandomCase c(KvFormat::indexer_fp8, 16);
  Array<Bf16> raw({RandomCase::kTokens, RandomCase::kHeads, RandomCase::kDim}, c.bf16.values());
  Array<Bf16> raw_weights({RandomCase::kTokens, RandomCase::kHeads}, random_bf16(RandomCase::kTokens * RandomCase::kHeads, 1.0f, 5));
  Array<int32_t> apart({RandomCase::kTokens, 8}), together({RandomCase::kTokens, 8});
  const IndexerQueryParams query{.q = raw,
                                 .weights = raw_weights,
                                 .softmax_scale = 0.1f,
                                 .head_scale = 0.5f,
                                 .amax_floor = kKvAmaxFloor,
                                 .q_out = c.fp8,
                                 .weights_out = c.weights};
  run(ops::make_indexer_query(), query);
  run(kTopk, c.topk_params(apart));
  IndexerTopkParams p = c.topk_params(together);
  p.query_prologue = {.q = raw, .weights = raw_weights, .softmax_scale = 0.1f, .head_scale = 0.5f, .amax_floor = kKvAmaxFloor};
  expect_refused(kTopk, p, {"q must be absent with query_prologue"}, together);
  p.q = {};
  expect_refused(kTopk, p, {"weights must be absent with query_prologue"}, together);
  p.weights = {};
  run(kTopk, p);
  EXPECT_EQ(together.values(), apart.values());

  p.query_prologue->weights = raw_weights.view().slice(0, 2);
  expect_refused(kTopk, p, {"query_prologue: weights", "[5, 3]", "[2, 3]"}, together);
}

TEST(IndexerTopk, WorkspaceIsOneRow) {
  RandomCase c(KvFormat::indexer_fp8, 64);
  Array<int32_t> out({RandomCase::kTokens, 8});
  const IndexerTopkParams p = c.topk_params(out);
  Config config;
  config.force["indexer_topk"] = "reference";
  const auto device = open_device({}, config);
  EXPECT_EQ(kTopk.workspace_bytes(p, *device), 40 * sizeof(float));
  const std::string before = out.bytes();
  try {
    kTopk(p, {*device, {}, {}});
    ADD_FAILURE() << "ran without a workspace";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::workspace_too_small);
  }
  EXPECT_EQ(out.bytes(), before);
}

TEST(IndexerLogits, RefusesWhatContradictsTheContract) {
  RandomCase c(KvFormat::indexer_fp8, 16);
  Array<float> logits({RandomCase::kTokens, 40});
  const auto refuse = [&](const IndexerLogitsParams& p, std::initializer_list<const char*> words) {
    expect_refused(kLogits, p, words, logits);
  };
  const auto good = [&] { return c.logits_params(logits); };
  c.table[1] = static_cast<int32_t>(c.cache.view().num_pages);
  refuse(good(), {"block_table[0, 1]", "[0, 7)", "is 7"});
  c.table[1] = -1;
  refuse(good(), {"block_table[0, 1]", "is -1"});
  c.table[1] = 2;
  c.lengths[0] = 41;
  refuse(good(), {"lengths[0]", "[0, 41)", "is 41"});
  c.lengths[0] = -2;
  refuse(good(), {"lengths[0]", "is -2"});
  c.lengths[0] = 40;
  c.requests[2] = 2;
  refuse(good(), {"token_to_req[2]", "[0, 2)", "is 2"});
  c.requests[2] = 0;

  IndexerLogitsParams p = good();
  p.block_table = p.block_table.columns(0, 2);
  refuse(p, {"block_table", "at least 3 blocks", "has 2"});
  p = good();
  p.cache.format = KvFormat::indexer_mxfp4;
  refuse(p, {"cache", "indexer_fp8", "indexer_mxfp4"});
  p = good();
  p.cache.row_dim = 64;
  refuse(p, {"cache", "row_dim 128", "has 64"});
  p = good();
  p.cache.page_stride = 100;
  refuse(p, {"cache", "page_stride", "2112", "has 100"});
  p = good();
  p.cache.page_size = 0;
  refuse(p, {"cache", "required", "page_size 0"});
  p = good();
  p.q_scale = c.fp4_scale;
  refuse(p, {"q_scale", "absent", "e8m0[5, 3, 4]"});
  p = good();
  p.q.shape[2] = 64;
  p.q.stride = {192, 64, 1, 0};
  refuse(p, {"q must have 128", "has 64"});
  p = good();
  p.q.dtype = DType::u8;
  p.q.shape[2] = 17;
  p.q.stride = {51, 17, 1, 0};
  refuse(p, {"q must hold a multiple of 32 MXFP4 values per head", "holds 34"});
  p = good();
  p.q.stride[0] = 512;
  refuse(p, {"q must be contiguous", "strides"});
  p = good();
  p.weights.dtype = DType::bf16;
  refuse(p, {"weights", "f32", "bf16[5, 3]"});
  p = good();
  p.weights = p.weights.columns(0, 2);
  refuse(p, {"weights", "[5, 3]", "f32[5, 2]"});

  Array<int32_t> out({RandomCase::kTokens, 8});
  IndexerTopkParams topk = c.topk_params(out);
  topk.max_length = 39;
  expect_refused(kTopk, topk, {"lengths[0]", "[0, 40)", "is 40"}, out);
  topk = c.topk_params(out);
  topk.q = topk.q.slice(0, 4);
  topk.weights = topk.weights.slice(0, 4);
  topk.token_to_req = topk.token_to_req.slice(0, 4);
  expect_refused(kTopk, topk, {"lengths", "[4]", "i32[5]"}, out);
  topk = c.topk_params(out);
  topk.topk_indices.shape[1] = 0;
  expect_refused(kTopk, topk, {"topk_indices", "at least 1 column", "has 0"}, out);
  c.table[1] = -5;
  expect_refused(kTopk, c.topk_params(out), {"block_table[0, 1]", "is -5"}, out);
}

}  // namespace
}  // namespace strata::test
