#include <algorithm>
#include <cmath>

#include "ops/factories.h"
#include "unit/cache_pages.h"
#include "unit/op_test.h"

namespace strata::test {
namespace {

const Op<SparseAttnDecodeParams> kDecode = ops::make_sparse_attn_decode();
constexpr int32_t kIntMax = std::numeric_limits<int32_t>::max();
constexpr int32_t kIntMin = std::numeric_limits<int32_t>::min();

std::vector<float> one_hot(int64_t n, int64_t at, float value) {
  std::vector<float> v(static_cast<size_t>(n), 0.0f);
  v[static_cast<size_t>(at)] = value;
  return v;
}

// One query token over a bf16 cache of rows 4 * one_hot(s): dimension s of the output is 4 * (weight of row s).
struct HandCase {
  static constexpr int64_t kDim = 512;
  int64_t heads;
  CachePages cache{KvFormat::bf16, kDim, 4, 2};
  Array<Bf16> q, out;
  Array<int32_t> indices, length = Array<int32_t>({1}, {0});
  Array<float> sink, lse, max_logits;
  SparseAttnDecodeParams p;

  explicit HandCase(std::vector<int32_t> slots, int64_t num_heads = 1)
      : heads(num_heads),
        q({1, 1, num_heads, kDim}),
        out({1, 1, num_heads, kDim}),
        indices({1, 1, static_cast<int64_t>(slots.size())}, slots),
        sink({num_heads}),
        lse({1, num_heads, 1}),
        max_logits({1, num_heads, 1}) {
    q.fill(to_bf16(0.0f));
    sink.fill(0.0f);
    for (int64_t s = 0; s < 4; ++s) cache.store(s, one_hot(kDim, s, 4.0f));  // page 1 stays NaN
    p = {.q = q,
         .cache = cache,
         .indices = indices,
         .topk_length = {},
         .extra_cache = {},
         .extra_indices = {},
         .extra_topk_length = {},
         .attn_sink = {},
         .softmax_scale = 0.5f,
         .out = out,
         .lse = lse,
         .max_logits = max_logits};
  }
  void use_length(int32_t n) {
    length[0] = n;
    p.topk_length = length;
  }
  float value_at(int64_t d, int64_t h = 0) { return to_float(out[h * kDim + d]); }
  float total() {
    float sum = 0;
    for (Bf16 v : out.values()) sum += std::fabs(to_float(v));
    return sum;
  }
};

TEST(SparseAttnDecode, OneKeyAgainstASinkOfZero) {
  HandCase c({2});
  c.p.attn_sink = c.sink;
  run(kDecode, c.p);
  EXPECT_EQ(c.value_at(2), 2.0f);  // v / 2
  EXPECT_EQ(c.total(), 2.0f);
  EXPECT_EQ(c.lse[0], 0.0f);
  EXPECT_EQ(c.max_logits[0], 0.0f);
}

TEST(SparseAttnDecode, SinkInfinities) {
  HandCase c({2}, 3);
  c.p.attn_sink = c.sink;
  c.sink[0] = -kInf;
  c.sink[1] = kInf;
  c.sink[2] = 1e30f;
  run(kDecode, c.p);
  EXPECT_EQ(c.value_at(2, 0), 4.0f);
  EXPECT_EQ(c.value_at(2, 1), 0.0f);
  EXPECT_EQ(c.value_at(2, 2), 0.0f);
  for (int64_t h = 0; h < 3; ++h) EXPECT_EQ(c.lse[h], 0.0f);  // without the sink
}

TEST(SparseAttnDecode, SinkIsNotScaled) {
  HandCase c({0});
  c.p.attn_sink = c.sink;
  c.sink[0] = std::log(3.0f);
  run(kDecode, c.p);
  EXPECT_FLOAT_EQ(c.value_at(0), 1.0f);  // 4 * 1 / (1 + 3), whatever the scale
}

TEST(SparseAttnDecode, EmptyScopesGiveZeroForEverySink) {
  for (float sink : {0.0f, kInf, -kInf, 5.0f}) {
    HandCase c({kIntMax, -7, 4});
    c.use_length(0);
    Array<int32_t> extra({1, 1, 2}, {kIntMin, 99}), extra_length({1}, {0});
    c.p.extra_cache = c.cache;
    c.p.extra_indices = extra;
    c.p.extra_topk_length = extra_length;
    c.p.attn_sink = c.sink;
    c.sink[0] = sink;
    run(kDecode, c.p);
    EXPECT_EQ(c.total(), 0.0f);
    EXPECT_EQ(c.lse[0], kInf);
    EXPECT_EQ(c.max_logits[0], -kInf);
  }
  HandCase none({});  // no columns at all
  run(kDecode, none.p);
  EXPECT_EQ(none.total(), 0.0f);
  HandCase skipped({-1, -1});
  run(kDecode, skipped.p);
  EXPECT_EQ(skipped.total(), 0.0f);
  EXPECT_EQ(skipped.lse[0], kInf);
}

TEST(SparseAttnDecode, SkippedEntriesAndDuplicates) {
  HandCase c({-1, 3, -1, 0, 3, 5, kIntMax, -9});  // slot 5 is NaN; it and the entries after it are after the length
  c.use_length(5);
  run(kDecode, c.p);
  EXPECT_FLOAT_EQ(c.value_at(0), to_float(to_bf16(4.0f / 3)));
  EXPECT_FLOAT_EQ(c.value_at(3), to_float(to_bf16(8.0f / 3)));  // twice
  EXPECT_FLOAT_EQ(c.lse[0], std::log(3.0f));
}

TEST(SparseAttnDecode, LogitsAreScaledAndLogarithmsNatural) {
  HandCase c({0, 1});
  c.q[0] = to_bf16(1.0f);  // l_0 = 0.5 * 4 = 2, l_1 = 0
  run(kDecode, c.p);
  EXPECT_FLOAT_EQ(c.lse[0], std::log(std::exp(2.0f) + 1));
  EXPECT_FLOAT_EQ(c.max_logits[0], 2.0f);
  EXPECT_FLOAT_EQ(c.value_at(0), to_float(to_bf16(4 * std::exp(2.0f) / (std::exp(2.0f) + 1))));
}

TEST(SparseAttnDecode, LargeLogitsDoNotOverflow) {
  HandCase c({0, 1, 2});
  c.q[0] = to_bf16(4096.0f);  // l = 8192, 0, -8192
  c.q[2] = to_bf16(-4096.0f);
  run(kDecode, c.p);
  EXPECT_EQ(c.value_at(0), 4.0f);
  EXPECT_EQ(c.value_at(2), 0.0f);
  EXPECT_EQ(c.lse[0], 8192.0f);
}

TEST(SparseAttnDecode, TwoScopesAreOneSoftmax) {
  HandCase c({0, 1});
  CachePages other(KvFormat::bf16, HandCase::kDim, 3, 1);
  other.store(2, one_hot(HandCase::kDim, 100, 6.0f));
  Array<int32_t> extra({1, 1, 3}, {-1, 2, 0});
  Array<int32_t> extra_length({1}, {2});
  c.p.extra_cache = other;
  c.p.extra_indices = extra;
  c.p.extra_topk_length = extra_length;
  run(kDecode, c.p);
  EXPECT_FLOAT_EQ(c.value_at(0), to_float(to_bf16(4.0f / 3)));
  EXPECT_EQ(c.value_at(100), 2.0f);
  c.use_length(0);  // only the second scope
  run(kDecode, c.p);
  EXPECT_EQ(c.value_at(100), 6.0f);
  EXPECT_EQ(c.total(), 6.0f);
}

TEST(SparseAttnDecode, WantedOutputsOnly) {
  HandCase c({1});
  c.p.lse = {};
  c.p.max_logits = {};
  const std::string before = c.lse.bytes() + c.max_logits.bytes();
  run(kDecode, c.p);
  EXPECT_EQ(c.value_at(1), 4.0f);
  EXPECT_EQ(c.lse.bytes() + c.max_logits.bytes(), before);
}

// Softmax in long double over rows that were read back from the cache, for a token and head.
struct Expected {
  std::vector<double> out;
  double lse, max;
};
Expected softmax(const Bf16* q, const std::vector<std::vector<float>>& rows, double scale, double sink, int64_t value_dim) {
  std::vector<long double> logits;
  for (const auto& row : rows) {
    long double sum = 0;
    for (size_t d = 0; d < row.size(); ++d) sum += static_cast<long double>(to_float(q[d])) * row[d];
    logits.push_back(sum * scale);
  }
  long double max = -kInf, sum = 0;
  for (long double l : logits) max = std::max(max, l);
  for (long double l : logits) sum += std::exp(l - max);
  Expected e{std::vector<double>(static_cast<size_t>(value_dim), 0.0), static_cast<double>(max + std::log(sum)), static_cast<double>(max)};
  const long double denominator = sum + std::exp(sink - max);
  for (size_t s = 0; s < rows.size(); ++s) {
    for (size_t d = 0; d < e.out.size(); ++d) e.out[d] += static_cast<double>(std::exp(logits[s] - max) / denominator * rows[s][d]);
  }
  return e;
}

struct FormatCase {
  KvFormat main, extra;
  int64_t dim, value_dim;
};

class EveryFormatAndPage : public testing::TestWithParam<std::tuple<FormatCase, int>> {};

// Random rows, other rows NaN, two scopes of different page sizes, several batch entries, query tokens and heads, strided views.
TEST_P(EveryFormatAndPage, AgreesWithSoftmax) {
  const auto [format, page_size] = GetParam();
  constexpr int64_t kBatch = 2, kQueries = 2, kHeads = 9, kTopk = 7, kTopk2 = 5;
  const int32_t other_page_size = page_size == 64 ? 2 : 64;
  CachePages main(format.main, static_cast<int32_t>(format.dim), page_size, 3, 40);
  CachePages extra(format.extra, static_cast<int32_t>(format.dim), other_page_size, 5);
  main.set_scale(0.25f);
  extra.set_scale(0.125f);
  std::mt19937 generator(5);
  std::normal_distribution<float> normal;
  const auto fill = [&, format = format](CachePages& cache, Array<int32_t>& indices) {
    std::uniform_int_distribution<int32_t> slot(0, static_cast<int32_t>(cache.view().num_slots()) - 1);
    for (int32_t& index : indices.values()) {
      index = slot(generator);
      std::vector<float> row(static_cast<size_t>(format.dim));
      for (float& v : row) v = normal(generator);
      cache.store(index, row);
    }
  };
  Array<int32_t> indices({kBatch, kQueries, kTopk}), extra_indices({kBatch, kQueries, kTopk2});
  fill(main, indices);
  fill(extra, extra_indices);
  Array<int32_t> length({kBatch}, {kTopk, 3}), extra_length({kBatch}, {0, kTopk2});
  indices[1] = -1;
  extra_indices[kQueries * kTopk2] = -1;
  // q and out are permuted views [B, S, H, D] of [B, H, S, D + 8] memory.
  Array<Bf16> q_memory({kBatch, kHeads, kQueries, format.dim + 8}, random_bf16(kBatch * kHeads * kQueries * (format.dim + 8), 0.3f, 9));
  Array<Bf16> out_memory({kBatch, kHeads, kQueries, format.value_dim + 8});
  const auto permuted = [](TensorView v, int64_t dim) {
    v = v.columns(0, dim);
    std::swap(v.shape[1], v.shape[2]);
    std::swap(v.stride[1], v.stride[2]);
    return v;
  };
  Array<float> sink({kHeads}), lse({kBatch, kHeads, kQueries}), max_logits({kBatch, kHeads, kQueries});
  for (float& v : sink.values()) v = normal(generator);
  const SparseAttnDecodeParams p{.q = permuted(q_memory, format.dim),
                                 .cache = main,
                                 .indices = indices,
                                 .topk_length = length,
                                 .extra_cache = extra,
                                 .extra_indices = extra_indices,
                                 .extra_topk_length = extra_length,
                                 .attn_sink = sink,
                                 .softmax_scale = 0.06f,
                                 .out = permuted(out_memory, format.value_dim),
                                 .lse = lse,
                                 .max_logits = max_logits};
  const std::vector<Bf16> before = out_memory.values();
  run(kDecode, p);
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t s = 0; s < kQueries; ++s) {
      std::vector<std::vector<float>> rows;
      for (int64_t i = 0; i < length[b]; ++i) {
        if (const int32_t slot = indices[(b * kQueries + s) * kTopk + i]; slot >= 0) rows.push_back(main.load(slot));
      }
      for (int64_t i = 0; i < extra_length[b]; ++i) {
        if (const int32_t slot = extra_indices[(b * kQueries + s) * kTopk2 + i]; slot >= 0) rows.push_back(extra.load(slot));
      }
      for (int64_t h = 0; h < kHeads; ++h) {
        const Expected e = softmax(p.q.row<Bf16>(b, s) + h * p.q.stride[2], rows, 0.06f, sink[h], format.value_dim);
        const int64_t at = (b * kHeads + h) * kQueries + s;
        ASSERT_NEAR(lse[at], e.lse, 1e-6 + std::fabs(e.lse) * 1e-6);
        ASSERT_NEAR(max_logits[at], e.max, 1e-6 + std::fabs(e.max) * 1e-6);
        for (int64_t d = 0; d < format.value_dim; ++d) {
          const double expected = e.out[static_cast<size_t>(d)];
          ASSERT_NEAR(to_float(out_memory[at * (format.value_dim + 8) + d]), expected, std::fabs(expected) / 255 + 1e-6)
              << "dimension " << d;
        }
        for (int64_t d = format.value_dim; d < format.value_dim + 8; ++d) {
          ASSERT_EQ(out_memory[at * (format.value_dim + 8) + d].bits, before[static_cast<size_t>(at * (format.value_dim + 8) + d)].bits);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(SparseAttnDecode, EveryFormatAndPage,
                         testing::Combine(testing::Values(FormatCase{KvFormat::fp8_ds_mla_v4, KvFormat::fp8_ds_mla_v4, 512, 512},
                                                          FormatCase{KvFormat::bf16, KvFormat::fp8_ds_mla_v4, 512, 512},
                                                          FormatCase{KvFormat::fp8_tensor, KvFormat::bf16, 512, 448},
                                                          FormatCase{KvFormat::fp8_ds_mla, KvFormat::fp8_ds_mla, 576, 512},
                                                          FormatCase{KvFormat::bf16, KvFormat::fp8_tensor, 576, 576}),
                                          testing::Values(2, 53, 61, 64, 69, 256, 576)),
                         [](const auto& tested) {
                           const FormatCase f = std::get<0>(tested.param);
                           return std::string(to_string(f.main)) + "_and_" + std::string(to_string(f.extra)) + "_" + std::to_string(f.dim) +
                                  "_page_" + std::to_string(std::get<1>(tested.param));
                         });

TEST(SparseAttnDecode, ResultsDoNotDependOnHeadsOrBatch) {
  // Head h alone, and as one of 128, give the same bits.
  constexpr int64_t kHeads = 128, kDim = 512;
  CachePages cache(KvFormat::bf16, kDim, 16, 1);
  for (int64_t s = 0; s < 16; ++s) {
    const std::vector<Bf16> row = random_bf16(kDim, 1.0f, static_cast<uint32_t>(s));
    std::vector<float> values;
    for (Bf16 v : row) values.push_back(to_float(v));
    cache.store(s, values);
  }
  Array<Bf16> q({1, 1, kHeads, kDim}, random_bf16(kHeads * kDim, 1.0f, 77));
  Array<Bf16> out({1, 1, kHeads, kDim}), alone({1, 1, 1, kDim});
  Array<int32_t> indices({1, 1, 16});
  for (int32_t i = 0; i < 16; ++i) indices[i] = i;
  SparseAttnDecodeParams p{.q = q,
                           .cache = cache,
                           .indices = indices,
                           .topk_length = {},
                           .extra_cache = {},
                           .extra_indices = {},
                           .extra_topk_length = {},
                           .attn_sink = {},
                           .softmax_scale = 0.04f,
                           .out = out,
                           .lse = {},
                           .max_logits = {}};
  run(kDecode, p);
  for (int64_t h : {0, 7, 8, 127}) {
    SparseAttnDecodeParams one = p;
    one.q = TensorView::contiguous(&q[h * kDim], DType::bf16, {}, {1, 1, 1, kDim});
    one.out = alone;
    run(kDecode, one);
    EXPECT_EQ(std::memcmp(alone.values().data(), &out[h * kDim], kDim * sizeof(Bf16)), 0) << "head " << h;
  }
}

// Four rows of bf16.
CachePages random_page(int32_t dim) {
  CachePages cache(KvFormat::bf16, dim, 4, 1);
  for (int64_t s = 0; s < 4; ++s) {
    std::vector<float> values;
    for (Bf16 v : random_bf16(dim, 1.0f, static_cast<uint32_t>(s))) values.push_back(to_float(v));
    cache.store(s, values);
  }
  return cache;
}

// As by inverse_rope after the op, at strides that several queries of an entry do not share with the entries.
TEST(SparseAttnDecode, EpilogueIsTheInverseRotation) {
  constexpr int64_t kBatch = 3, kQueries = 2, kHeads = 3, kDim = 512, kPositions = 7, kTokens = kBatch * kQueries;
  CachePages cache = random_page(kDim);
  Array<Bf16> q({kBatch, kQueries, kHeads, kDim}, random_bf16(kTokens * kHeads * kDim, 1.0f, 77));
  Array<Bf16> plain({kBatch, kQueries, kHeads, kDim}), rotated({kTokens, kHeads, kDim}), memory({kBatch, kQueries + 1, kHeads, kDim});
  Array<int32_t> indices({kBatch, kQueries, 4});
  for (int32_t i = 0; i < 4 * kTokens; ++i) indices[i] = i % 4;
  Array<int64_t> positions({kTokens}, {6, 0, 3, 5, 1, 2});
  const Tensor table = build_rope_table({}, kPositions, open_device({}));
  SparseAttnDecodeParams p{.q = q, .cache = cache, .indices = indices, .softmax_scale = 0.04f, .out = plain};
  run(kDecode, p);
  run(ops::make_inverse_rope(),
      InverseRopeParams{
          .o = plain.view().reshape({kTokens, kHeads, kDim}), .positions = positions, .cos_sin = table.view(), .out = rotated});
  p.out_epilogue = {.positions = positions, .cos_sin = table.view()};
  p.out = memory.view();
  p.out.shape[1] = kQueries;
  run(kDecode, p);
  for (int64_t t = 0; t < kTokens; ++t) {
    EXPECT_EQ(std::memcmp(p.out.row<Bf16>(t / kQueries, t % kQueries), &rotated[t * kHeads * kDim], kHeads * kDim * sizeof(Bf16)), 0) << t;
  }
}

// As by qnorm_rope_kv_insert before the op, at strides that several queries of an entry do not share with the entries; q stays.
TEST(SparseAttnDecode, PrologueIsTheNormAndRotationOfQueries) {
  constexpr int64_t kBatch = 3, kQueries = 2, kHeads = 3, kDim = 512, kPositions = 7, kTokens = kBatch * kQueries;
  CachePages cache = random_page(kDim);
  Array<Bf16> memory({kBatch, kQueries + 1, kHeads, kDim}, random_bf16(kBatch * (kQueries + 1) * kHeads * kDim, 3.0f, 77));
  Array<Bf16> raw({kTokens, kHeads, kDim}), normed({kTokens, kHeads, kDim}), kv({kTokens, kDim});
  Array<Bf16> in_front({kBatch, kQueries, kHeads, kDim}), out({kBatch, kQueries, kHeads, kDim});
  TensorView q = memory.view();
  q.shape[1] = kQueries;
  for (int64_t t = 0; t < kTokens; ++t) {
    std::memcpy(&raw[t * kHeads * kDim], q.row<Bf16>(t / kQueries, t % kQueries), kHeads * kDim * sizeof(Bf16));
  }
  const std::vector<Bf16> before(memory.values().begin(), memory.values().end());
  Array<int32_t> indices({kBatch, kQueries, 4});
  for (int32_t i = 0; i < 4 * kTokens; ++i) indices[i] = i % 4;
  Array<int64_t> positions({kTokens}, {6, 0, 3, 5, 1, 2});
  const Tensor table = build_rope_table({}, kPositions, open_device({}));
  run(ops::make_qnorm_rope_kv_insert(),
      QNormRopeKvInsertParams{.q = raw, .kv = kv, .positions = positions, .cos_sin = table.view(), .q_out = normed, .eps = 0.5f});
  SparseAttnDecodeParams p{.q = normed.view().reshape({kBatch, kQueries, kHeads, kDim}),
                           .cache = cache,
                           .indices = indices,
                           .softmax_scale = 0.04f,
                           .out = in_front};
  run(kDecode, p);
  p.q = q, p.query_prologue = {.positions = positions, .cos_sin = table.view(), .eps = 0.5f}, p.out = out;
  run(kDecode, p);
  EXPECT_EQ(std::memcmp(out.values().data(), in_front.values().data(), in_front.view().bytes()), 0);
  EXPECT_EQ(std::memcmp(memory.values().data(), before.data(), memory.view().bytes()), 0);
}

TEST(SparseAttnDecode, NoTokens) {
  CachePages cache(KvFormat::bf16, 512, 4, 1);
  Array<Bf16> q({0, 1, 4, 512}), out({0, 1, 4, 512});
  Array<int32_t> indices({0, 1, 3});
  run(kDecode, {.q = q,
                .cache = cache,
                .indices = indices,
                .topk_length = {},
                .extra_cache = {},
                .extra_indices = {},
                .extra_topk_length = {},
                .attn_sink = {},
                .softmax_scale = 1,
                .out = out,
                .lse = {},
                .max_logits = {}});
}

TEST(SparseAttnDecode, RefusesWhatContradictsTheContract) {
  HandCase c({0, 1, 2}, 2);
  Array<int32_t> extra({1, 1, 2}, {0, 1}), extra_length({1}, {2});
  c.use_length(3);
  c.p.attn_sink = c.sink;
  c.p.extra_cache = c.cache;
  c.p.extra_indices = extra;
  c.p.extra_topk_length = extra_length;
  const SparseAttnDecodeParams good = c.p;
  const auto refuse = [&](const SparseAttnDecodeParams& p, std::initializer_list<const char*> words) {
    expect_refused(kDecode, p, words, c.out, c.lse, c.max_logits);
  };
  c.indices[2] = 8;
  refuse(good, {"indices[0, 0, 2]", "[0, 8)", "is 8"});
  c.indices[2] = -2;
  refuse(good, {"indices[0, 0, 2]", "-1 or in", "is -2"});
  c.indices[2] = -1;
  c.length[0] = 4;
  refuse(good, {"topk_length[0]", "[0, 3]", "is 4"});
  c.length[0] = -1;
  refuse(good, {"topk_length[0]", "is -1"});
  c.length[0] = 3;
  extra[1] = kIntMax;
  refuse(good, {"extra_indices[0, 0, 1]", "[0, 8)", "is 2147483647"});
  extra[1] = 1;
  extra_length[0] = 3;
  refuse(good, {"extra_topk_length[0]", "[0, 2]", "is 3"});
  extra_length[0] = 2;
  SparseAttnDecodeParams wrong = good;
  wrong.out.dtype = DType::f16;
  refuse(wrong, {"out must be bf16", "f16["});
  c.sink[1] = kNaN;
  refuse(good, {"attn_sink[1]", "infinity", "NaN"});
  c.sink[1] = 0;

  SparseAttnDecodeParams p = good;
  p.q.shape[3] = 500;
  refuse(p, {"head dimension of 512 or 576", "has 500"});
  p = good;
  p.q.shape[2] = 129;
  refuse(p, {"1 to 128 heads", "has 129"});
  p.q.shape[2] = 0;
  refuse(p, {"1 to 128 heads", "has 0"});
  p = good;
  p.q.dtype = DType::f16;
  refuse(p, {"q must be bf16", "f16[1, 1, 2, 512]"});
  p = good;
  p.cache.row_dim = 576;
  p.cache.page_stride = 576 * 8;
  refuse(p, {"cache", "row_dim 512", "has 576"});
  p = good;
  p.cache.format = KvFormat::indexer_fp8;
  refuse(p, {"cache", "fp8_ds_mla_v4", "has indexer_fp8"});
  p = good;
  p.cache.format = KvFormat::fp8_ds_mla;
  refuse(p, {"cache of format fp8_ds_mla", "row_dim 576", "has 512"});
  p = good;
  p.q = TensorView::contiguous(c.p.q.data, DType::bf16, {}, {1, 1, 1, 576});
  p.cache.format = KvFormat::fp8_ds_mla_v4;
  p.cache.row_dim = 576;
  refuse(p, {"cache of format fp8_ds_mla_v4", "row_dim 512", "has 576"});
  p = good;
  p.cache.page_stride = 4095;
  refuse(p, {"cache", "at least 4096 bytes", "has 4095"});
  p = good;
  p.cache.format = KvFormat::fp8_tensor;
  p.cache.scale = 0;
  refuse(p, {"cache.scale", "positive", "is 0"});
  p = good;
  p.cache = {};
  refuse(p, {"cache is required"});
  p = good;
  Array<int64_t> positions({1}, {4});
  Array<float> cos_sin({4, 64});
  p.out_epilogue = {.positions = positions, .cos_sin = cos_sin};
  refuse(p, {"out_epilogue: positions[0]", "[0, 4)", "is 4"});
  positions[0] = -1;
  refuse(p, {"out_epilogue: positions[0]", "[0, 4)", "is -1"});
  p.out_epilogue->cos_sin = {};
  refuse(p, {"out_epilogue: cos_sin is required"});
  p.out_epilogue->cos_sin = cos_sin.view().columns(0, 63);
  refuse(p, {"out_epilogue: cos_sin", "even number of columns", "has 63"});
  p.out_epilogue->cos_sin = cos_sin;
  p.out_epilogue->positions.shape[0] = 2;
  refuse(p, {"out_epilogue: positions", "[1]", "i64[2]"});
  p = good;
  p.query_prologue = {.cos_sin = cos_sin};
  refuse(p, {"query_prologue: positions is required"});
  p.query_prologue->eps = -1;
  refuse(p, {"query_prologue: eps", "not negative", "is -1"});
  p = good;
  p.extra_cache = {};
  refuse(p, {"extra_indices", "absent without extra_cache", "i32[1, 1, 2]"});
  p.extra_indices = {};
  refuse(p, {"extra_topk_length", "absent without extra_cache", "i32[1]"});
  p = good;
  p.extra_indices = {};
  refuse(p, {"extra_indices is required", "absent"});
  p = good;
  p.softmax_scale = 0;
  refuse(p, {"softmax_scale", "positive", "is 0"});
  p = good;
  p.out.shape[3] = 513;
  refuse(p, {"out", "1 to 512 value dimensions", "has 513"});
  p = good;
  p.out.stride[2] = 100;
  refuse(p, {"out", "at least 512", "strides"});
  p = good;
  p.out.shape[2] = 1;
  refuse(p, {"out", "[1, 1, 2, any]", "bf16[1, 1, 1, 512]"});
  p = good;
  p.lse.shape[1] = 1;
  refuse(p, {"lse", "[1, 2, 1]", "f32[1, 1, 1]"});
  p = good;
  p.max_logits.dtype = DType::bf16;
  refuse(p, {"max_logits", "f32", "bf16[1, 2, 1]"});
  p = good;
  p.attn_sink.shape[0] = 1;
  refuse(p, {"attn_sink", "[2]", "f32[1]"});
  p = good;
  p.indices.dtype = DType::i64;
  refuse(p, {"indices", "i32", "i64[1, 1, 3]"});
  p = good;
  p.extra_cache.device = {DeviceKind::cuda, 1};
  refuse(p, {"extra_cache", "cpu", "cuda:1"});
  run(kDecode, good);
}

}  // namespace
}  // namespace strata::test
