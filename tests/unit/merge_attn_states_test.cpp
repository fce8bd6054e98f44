#include <cmath>

#include "ops/factories.h"
#include "unit/op_test.h"

namespace strata::test {
namespace {

const Op<MergeAttnStatesParams> kOp = ops::make_merge_attn_states();

// One token and head, two dimensions: splits are (o0, o1, lse).
struct Merge {
  Array<float> o, lse, sink{{1}}, out{{1, 1, 2}}, lse_out{{1, 1}};
  MergeAttnStatesParams p;
  explicit Merge(const std::vector<std::array<float, 3>>& parts)
      : o({static_cast<int64_t>(parts.size()), 1, 1, 2}), lse({static_cast<int64_t>(parts.size()), 1, 1}) {
    for (size_t k = 0; k < parts.size(); ++k) {
      const auto i = static_cast<int64_t>(k);
      o[2 * i] = parts[k][0];
      o[2 * i + 1] = parts[k][1];
      lse[i] = parts[k][2];
    }
    p = {.o = o, .lse = lse, .attn_sink = {}, .empty_lse = kInf, .out = out, .lse_out = lse_out};
  }
  void use_sink(float value) {
    sink[0] = value;
    p.attn_sink = sink;
  }
};

TEST(MergeAttnStates, WeightsAreShares) {
  Merge m({{4, 0, std::log(3.0f)}, {0, 8, 0.0f}});
  run(kOp, m.p);
  EXPECT_FLOAT_EQ(m.out[0], 3.0f);
  EXPECT_FLOAT_EQ(m.out[1], 2.0f);
  EXPECT_FLOAT_EQ(m.lse_out[0], std::log(4.0f));
}

TEST(MergeAttnStates, EmptyPartsAreNotRead) {
  for (float mark : {kInf, -kInf}) {
    Merge m({{kNaN, kNaN, mark}, {5, 6, -2.0f}, {kInf, kNaN, mark}});
    run(kOp, m.p);
    EXPECT_FLOAT_EQ(m.out[0], 5.0f);
    EXPECT_FLOAT_EQ(m.out[1], 6.0f);
    EXPECT_FLOAT_EQ(m.lse_out[0], -2.0f);
  }
}

TEST(MergeAttnStates, AllEmpty) {
  for (float empty : {kInf, -kInf}) {
    for (float sink : {0.0f, kInf, -kInf}) {
      Merge m({{kNaN, 1, -kInf}, {2, kNaN, kInf}});
      m.use_sink(sink);
      m.p.empty_lse = empty;
      run(kOp, m.p);
      EXPECT_EQ(m.out[0], 0.0f);
      EXPECT_EQ(m.out[1], 0.0f);
      EXPECT_EQ(m.lse_out[0], empty);
    }
  }
}

TEST(MergeAttnStates, Sink) {
  Merge m({{4, 0, 0.0f}, {0, 8, 0.0f}});
  m.use_sink(std::log(2.0f));
  run(kOp, m.p);
  EXPECT_FLOAT_EQ(m.out[0], 1.0f);  // 4 / (1 + 1 + 2)
  EXPECT_FLOAT_EQ(m.out[1], 2.0f);
  EXPECT_FLOAT_EQ(m.lse_out[0], std::log(2.0f));  // without the sink
  m.use_sink(-kInf);
  run(kOp, m.p);
  EXPECT_FLOAT_EQ(m.out[0], 2.0f);
  m.use_sink(kInf);
  run(kOp, m.p);
  EXPECT_EQ(m.out[0], 0.0f);
  m.use_sink(1e38f);
  run(kOp, m.p);
  EXPECT_EQ(m.out[1], 0.0f);
}

TEST(MergeAttnStates, FarApartLogits) {
  Merge m({{1, 1, 1e5f}, {2, 2, -1e5f}, {3, 3, 1e5f}});
  run(kOp, m.p);
  EXPECT_FLOAT_EQ(m.out[0], 2.0f);
  EXPECT_FLOAT_EQ(m.lse_out[0], 1e5f + std::log(2.0f));
}

// A softmax over 60 rows, cut anywhere and merged, is the softmax over all of them; with the sink in either.
TEST(MergeAttnStates, SplitsAreTheWhole) {
  const auto attention = ops::make_sparse_attn_prefill();
  constexpr int64_t kTokens = 3, kHeads = 5, kDim = 512, kRows = 60;
  Array<Bf16> q({kTokens, kHeads, kDim}, random_bf16(kTokens * kHeads * kDim, 0.5f, 1));
  Array<Bf16> kv({kRows, kDim}, random_bf16(kRows * kDim, 1.0f, 2));
  Array<float> sink({kHeads}, {0, 1, -1, -kInf, kInf});
  Array<int32_t> indices({kTokens, kRows});
  for (int64_t i = 0; i < kTokens * kRows; ++i) indices[i] = static_cast<int32_t>(i % kRows);
  Array<Bf16> whole({kTokens, kHeads, kDim});
  Array<float> whole_lse({kTokens, kHeads});
  SparseAttnPrefillParams p{.q = q,
                            .kv = kv,
                            .indices = indices,
                            .topk_length = {},
                            .attn_sink = sink,
                            .softmax_scale = 0.2f,
                            .out = whole,
                            .lse = whole_lse,
                            .max_logits = {}};
  run(attention, p);
  const std::vector<int64_t> cuts{0, 1, 20, 20, 59, 60};  // one split is empty
  const auto parts = static_cast<int64_t>(cuts.size()) - 1;
  Array<Bf16> o({parts, kTokens, kHeads, kDim});
  Array<float> lse({parts, kTokens, kHeads});
  for (int64_t k = 0; k < parts; ++k) {
    SparseAttnPrefillParams part = p;
    part.attn_sink = {};
    part.indices = indices.view().columns(cuts[k], cuts[k + 1] - cuts[k]);
    part.out = TensorView::contiguous(&o[k * kTokens * kHeads * kDim], DType::bf16, {}, {kTokens, kHeads, kDim});
    part.lse = TensorView::contiguous(&lse[k * kTokens * kHeads], DType::f32, {}, {kTokens, kHeads});
    run(attention, part);
  }
  Array<float> out({kTokens, kHeads, kDim}), lse_out({kTokens, kHeads});
  run(kOp, {.o = o, .lse = lse, .attn_sink = sink, .empty_lse = kInf, .out = out, .lse_out = lse_out});
  for (int64_t i = 0; i < kTokens * kHeads; ++i) EXPECT_NEAR(lse_out[i], whole_lse[i], 1e-6 * std::fabs(whole_lse[i]) + 1e-6);
  for (int64_t i = 0; i < kTokens * kHeads * kDim; ++i) ASSERT_NEAR(out[i], to_float(whole[i]), 0.015) << i;  // the splits are bf16
}

TEST(MergeAttnStates, Bf16OutputAndStrides) {
  // [n, T, H, Dv] as a permuted view of [T, n, H, Dv + 1] memory; Dv past one slice of the reference.
  constexpr int64_t kParts = 2, kTokens = 2, kHeads = 2, kDim = 70;
  Array<float> memory({kTokens, kParts, kHeads, kDim + 1});
  Array<float> lse({kParts, kTokens, kHeads}, std::vector<float>(8, 0.0f));
  for (int64_t i = 0; i < kTokens * kParts * kHeads * (kDim + 1); ++i) memory[i] = static_cast<float>(i % 97);
  TensorView o = memory.view().columns(0, kDim);
  std::swap(o.shape[0], o.shape[1]);
  std::swap(o.stride[0], o.stride[1]);
  Array<Bf16> out({kTokens, kHeads, kDim});
  run(kOp, {.o = o, .lse = lse, .attn_sink = {}, .empty_lse = 0, .out = out, .lse_out = {}});
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t d = 0; d < kDim; ++d) {
        const float expected =
            (memory[((t * kParts) * kHeads + h) * (kDim + 1) + d] + memory[((t * kParts + 1) * kHeads + h) * (kDim + 1) + d]) / 2;
        EXPECT_EQ(to_float(out[(t * kHeads + h) * kDim + d]), to_float(to_bf16(expected)));
      }
    }
  }
}

TEST(MergeAttnStates, RefusesWhatContradictsTheContract) {
  Merge m({{1, 2, 0}, {3, 4, 0}});
  m.use_sink(0);
  const MergeAttnStatesParams good = m.p;
  const auto refuse = [&](const MergeAttnStatesParams& p, std::initializer_list<const char*> words) {
    expect_refused(kOp, p, words, m.out, m.lse_out);
  };
  MergeAttnStatesParams p = good;
  p.empty_lse = 0;
  refuse(p, {"empty_lse", "+inf or -inf", "is 0"});
  p = good;
  p.o.shape[0] = 0;
  refuse(p, {"o must have at least 1 part", "has 0"});
  p = good;
  p.o.dtype = DType::f64;
  refuse(p, {"o must be f32 or bf16", "f64[2, 1, 1, 2]"});
  p = good;
  p.lse.shape[0] = 1;
  refuse(p, {"lse", "[2, 1, 1]", "f32[1, 1, 1]"});
  p = good;
  p.out.shape[2] = 1;
  refuse(p, {"out", "[1, 1, 2]", "f32[1, 1, 1]"});
  p = good;
  p.attn_sink.shape[0] = 2;
  refuse(p, {"attn_sink", "[1]", "f32[2]"});
  p = good;
  p.lse_out.dtype = DType::bf16;
  refuse(p, {"lse_out", "f32", "bf16[1, 1]"});
  m.sink[0] = kNaN;
  refuse(good, {"attn_sink[0]", "NaN"});
}

}  // namespace
}  // namespace strata::test
