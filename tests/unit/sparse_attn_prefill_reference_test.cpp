#include <cmath>

#include "ops/factories.h"
#include "unit/op_test.h"

namespace strata::test {
namespace {

const Op<SparseAttnDecodeParams> kDecode = ops::make_sparse_attn_decode();
const Op<SparseAttnPrefillParams> kPrefill = ops::make_sparse_attn_prefill();
constexpr int32_t kIntMax = std::numeric_limits<int32_t>::max();
constexpr int32_t kIntMin = std::numeric_limits<int32_t>::min();

struct PrefillCase {
  static constexpr int64_t kDim = 512;
  Array<Bf16> kv{{6, kDim}};  // rows 4, 5 are NaN
  Array<Bf16> q{{2, 2, kDim}}, out{{2, 2, kDim}};
  Array<int32_t> indices, length{{2}};
  Array<float> sink{{2}}, lse{{2, 2}}, max_logits{{2, 2}};
  SparseAttnPrefillParams p;
  explicit PrefillCase(std::vector<int32_t> rows) : indices({2, static_cast<int64_t>(rows.size()) / 2}, rows) {
    kv.fill(to_bf16(0.0f));
    for (int64_t s = 0; s < 4; ++s) kv[s * kDim + s] = to_bf16(4.0f);
    for (int64_t i = 4 * kDim; i < 6 * kDim; ++i) kv[i] = {0xFFFF};
    q.fill(to_bf16(0.0f));
    sink.fill(0.0f);
    p = {.q = q,
         .kv = kv,
         .indices = indices,
         .topk_length = {},
         .attn_sink = {},
         .softmax_scale = 0.5f,
         .out = out,
         .lse = lse,
         .max_logits = max_logits};
  }
  float value_at(int64_t t, int64_t h, int64_t d) { return to_float(out[(t * 2 + h) * kDim + d]); }
};

TEST(SparseAttnPrefill, InvalidIndicesAreSkippedSilently) {
  PrefillCase c({-1, 1, 6, kIntMax, kIntMin, 0, 1, 4,  //
                 -5, 6, kIntMax, kIntMin, -1, 100, 4, 5});
  c.length.values() = {7, 6};
  c.p.topk_length = c.length;
  c.p.attn_sink = c.sink;
  c.sink[1] = -kInf;
  run(kPrefill, c.p);
  EXPECT_EQ(c.value_at(0, 0, 0), 1.0f);  // 4 * 1 / (3 + 1)
  EXPECT_EQ(c.value_at(0, 0, 1), 2.0f);  // twice
  EXPECT_FLOAT_EQ(c.value_at(0, 1, 0), to_float(to_bf16(4.0f / 3)));
  EXPECT_FLOAT_EQ(c.lse[0], std::log(3.0f));
  EXPECT_EQ(c.max_logits[0], 0.0f);
  for (int64_t h = 0; h < 2; ++h) {
    EXPECT_EQ(c.value_at(1, h, 0), 0.0f);
    EXPECT_EQ(c.lse[2 + h], kInf);
    EXPECT_EQ(c.max_logits[2 + h], -kInf);
  }
}

TEST(SparseAttnPrefill, AgreesWithDecode) {
  // The same rows as a bf16 cache with one query token to a batch entry.
  for (int64_t dim : {512, 576}) {
    constexpr int64_t kTokens = 3, kHeads = 11, kRows = 20, kTopk = 9;
    const int64_t value_dim = 512;
    Array<Bf16> kv({kRows, dim}, random_bf16(kRows * dim, 1.0f, 1));
    Array<Bf16> q({kTokens, kHeads, dim}, random_bf16(kTokens * kHeads * dim, 1.0f, 2));
    Array<int32_t> indices({kTokens, kTopk}), length({kTokens}, {9, 0, 4});
    for (int64_t i = 0; i < kTokens * kTopk; ++i) indices[i] = static_cast<int32_t>(i * 7 % kRows);
    Array<float> sink({kHeads}), lse({kTokens, kHeads}), max_logits({kTokens, kHeads});
    Array<float> decode_lse({kTokens, kHeads, 1}), decode_max({kTokens, kHeads, 1});
    for (int64_t h = 0; h < kHeads; ++h) sink[h] = static_cast<float>(h) - 3;
    Array<Bf16> out({kTokens, kHeads, value_dim}), decode_out({kTokens, 1, kHeads, value_dim});
    run(kPrefill, {.q = q,
                   .kv = kv,
                   .indices = indices,
                   .topk_length = length,
                   .attn_sink = sink,
                   .softmax_scale = 0.05f,
                   .out = out,
                   .lse = lse,
                   .max_logits = max_logits});
    PagedCache cache{.data = kv.values().data(),
                     .device = {},
                     .format = KvFormat::bf16,
                     .row_dim = static_cast<int32_t>(dim),
                     .page_size = 5,
                     .num_pages = 4,
                     .page_stride = 5 * dim * 2};
    run(kDecode, {.q = q.view().reshape({kTokens, 1, kHeads, dim}),
                  .cache = cache,
                  .indices = indices.view().reshape({kTokens, 1, kTopk}),
                  .topk_length = length,
                  .extra_cache = {},
                  .extra_indices = {},
                  .extra_topk_length = {},
                  .attn_sink = sink,
                  .softmax_scale = 0.05f,
                  .out = decode_out,
                  .lse = decode_lse,
                  .max_logits = decode_max});
    EXPECT_EQ(out.bytes(), decode_out.bytes());
    EXPECT_EQ(lse.bytes(), decode_lse.bytes());
    EXPECT_EQ(max_logits.bytes(), decode_max.bytes());
  }
}

TEST(SparseAttnPrefill, StridedRowsAndNoLength) {
  PrefillCase c({0, 1, 2, 9});
  Array<Bf16> wide({6, 600});
  for (Bf16& v : wide.values()) v = {0xFFFF};
  for (int64_t s = 0; s < 4; ++s) {
    for (int64_t d = 0; d < 512; ++d) wide[s * 600 + 8 + d] = c.kv[s * 512 + d];
  }
  c.p.kv = wide.view().columns(8, 512);
  run(kPrefill, c.p);
  EXPECT_EQ(c.value_at(0, 1, 0), 2.0f);
  EXPECT_EQ(c.value_at(0, 1, 1), 2.0f);
  EXPECT_EQ(c.value_at(1, 0, 2), 4.0f);
}

TEST(SparseAttnPrefill, RefusesWhatContradictsTheContract) {
  PrefillCase c({0, 1, 2, 9});
  c.length.values() = {2, 3};
  const auto refuse = [&](const SparseAttnPrefillParams& p, std::initializer_list<const char*> words) {
    expect_refused(kPrefill, p, words, c.out, c.lse, c.max_logits);
  };
  SparseAttnPrefillParams p = c.p;
  p.topk_length = c.length;
  refuse(p, {"topk_length[1]", "[0, 3)", "is 3"});
  p = c.p;
  p.kv.shape[1] = 576;
  refuse(p, {"kv", "[any, 512]", "bf16[6, 576]"});
  p = c.p;
  p.q.shape[1] = 200;
  refuse(p, {"1 to 128 heads", "has 200"});
  p = c.p;
  p.q.shape[2] = 64;
  refuse(p, {"512 or 576", "has 64"});
  p = c.p;
  p.softmax_scale = kNaN;
  refuse(p, {"softmax_scale", "finite", "is nan"});
  p = c.p;
  p.indices.shape[0] = 1;
  refuse(p, {"indices", "[2, any]", "i32[1, 2]"});
  p = c.p;
  p.out.shape[2] = 0;
  refuse(p, {"out", "1 to 512", "has 0"});
  p = c.p;
  p.out.stride[0] = 512;
  refuse(p, {"out", "rows do not overlap"});
  p = c.p;
  p.lse.shape[1] = 3;
  refuse(p, {"lse", "[2, 2]", "f32[2, 3]"});
}

}  // namespace
}  // namespace strata::test
