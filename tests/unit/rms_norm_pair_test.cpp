#include <cmath>

#include "formats/quantize.h"
#include "op_test.h"
#include "ops/factories.h"
#include "unit/cache_pages.h"

namespace strata {
namespace {

using test::Array;
using test::bf16_values;
using test::expect_refused;
using test::run;

struct Case {
  Array<Bf16> q{{2, 2}, bf16_values({3, 4, 0, 0})};
  Array<float> q_weight{{2}, {2, -1}};
  Array<Bf16> q_out{{2, 2}};
  Array<Bf16> kv{{2, 4}, bf16_values({1, 1, 1, 1, 2, -2, 2, -2})};
  Array<float> kv_weight{{4}, {1, 2, 3, 4}};
  Array<Bf16> kv_out{{2, 4}};
  RmsNormPairParams params{.q = q, .q_weight = q_weight, .q_out = q_out, .kv = kv, .kv_weight = kv_weight, .kv_out = kv_out, .eps = 0.0f};
};

TEST(RmsNormPair, ByHand) {
  Case c;
  c.params.eps = 1e-6f;
  run(ops::make_rms_norm_pair(), c.params);
  EXPECT_EQ(c.q_out[0].bits, to_bf16(static_cast<float>(2 * 3 / std::sqrt(12.5 + 1e-6))).bits);
  EXPECT_EQ(c.q_out[1].bits, to_bf16(static_cast<float>(-4 / std::sqrt(12.5 + 1e-6))).bits);
  EXPECT_EQ(to_float(c.q_out[2]), 0.0f) << "a row of zeros stays zero";
  const float expected[] = {1, 2, 3, 4, 1, -2, 3, -4};
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(to_float(c.kv_out[i]), expected[i]);
}

TEST(RmsNormPair, KvAloneInPlaceAndRowsWithGaps) {
  Case c;
  Array<Bf16> wide({2, 6}, bf16_values({9, 1, 1, 1, 1, 9, 9, 2, -2, 2, -2, 9}));
  c.params.q = c.params.q_weight = c.params.q_out = {};
  c.params.kv = c.params.kv_out = wide.view().columns(1, 4);
  run(ops::make_rms_norm_pair(), c.params);
  const float expected[] = {9, 1, 2, 3, 4, 9, 9, 1, -2, 3, -4, 9};
  for (int64_t i = 0; i < 12; ++i) EXPECT_EQ(to_float(wide[i]), expected[i]);
}

// The quantised values are those of the bf16 result, quantised as a linear layer does it.
TEST(RmsNormPair, CodesOfTheQuery) {
  constexpr int64_t kTokens = 2, kN = 200;
  Array<Bf16> q({kTokens, kN}, test::random_bf16(kTokens * kN, 3.0f, 7)), q_out({kTokens, kN}), kv({kTokens, 1}), kv_out({kTokens, 1});
  Array<float> q_weight({kN}), kv_weight({1}), scale({kTokens, 2});
  for (int64_t i = 0; i < kN; ++i) q_weight[i] = 1.0f + 0.01f * static_cast<float>(i);
  Array<E4m3> codes({kTokens, kN});
  for (const ActivationFormat format : {ActivationFormat::fp8_ue8m0, ActivationFormat::fp8_f32}) {
    RmsNormPairParams p{.q = q, .q_weight = q_weight, .q_out = q_out, .kv = kv, .kv_weight = kv_weight, .kv_out = kv_out};
    run(ops::make_rms_norm_pair(), p);
    p.q_out = codes;
    p.q_scale = scale;
    p.q_format = format;
    run(ops::make_rms_norm_pair(), p);
    for (int64_t block = 0; block < kTokens * 2; ++block) {
      const int64_t first = block / 2 * kN + block % 2 * 128, count = block % 2 == 0 ? 128 : kN - 128;
      E4m3 expected[128];
      EXPECT_EQ(scale[block], quantize_activation(&q_out[first], count, format == ActivationFormat::fp8_ue8m0, expected));
      for (int64_t i = 0; i < count; ++i) EXPECT_EQ(codes[first + i].bits, expected[i].bits) << block << " " << i;
    }
  }
}

// As by qnorm_rope_kv_insert after the op.
TEST(RmsNormPair, EpilogueIsTheInsertionOfTheKey) {
  constexpr int64_t kTokens = 5, kDim = 512, kPositions = 7;
  Array<Bf16> kv({kTokens, kDim}, test::random_bf16(kTokens * kDim, 3.0f, 3)), kv_out({kTokens, kDim}), q({kTokens, 1, kDim});
  Array<float> weight({kDim});
  for (int64_t i = 0; i < kDim; ++i) weight[i] = 1.0f + 0.01f * static_cast<float>(i % 7);
  Array<int64_t> positions({kTokens}, {6, 0, 3, 5, 1}), slots({4}, {2, -1, 7, 0});
  const Tensor table = build_rope_table({}, kPositions, open_device({}));
  test::CachePages apart(KvFormat::fp8_ds_mla_v4, kDim, 4, 2), inserted(KvFormat::fp8_ds_mla_v4, kDim, 4, 2);
  RmsNormPairParams p{.kv = kv, .kv_weight = weight, .kv_out = kv_out};
  run(ops::make_rms_norm_pair(), p);
  run(ops::make_qnorm_rope_kv_insert(),
      QNormRopeKvInsertParams{
          .q = q, .kv = kv_out, .positions = positions, .cos_sin = table.view(), .slot_mapping = slots, .cache = apart, .q_out = q});
  p.kv_out = {};
  p.insert_epilogue = {.slot_mapping = slots, .positions = positions, .cos_sin = table.view(), .cache = inserted};
  run(ops::make_rms_norm_pair(), p);
  for (const int64_t slot : {0, 2, 7}) EXPECT_EQ(inserted.load(slot), apart.load(slot)) << slot;
}

TEST(RmsNormPair, RefusesWhatContradictsTheContract) {
  const auto op = ops::make_rms_norm_pair();
  const auto refused = [&](auto change, std::initializer_list<const char*> words) {
    Case c;
    change(c);
    expect_refused(op, c.params, words, c.q_out, c.kv_out);
  };
  refused([](Case& c) { c.params.eps = -1.0f; }, {"eps", "negative", "-1"});
  refused([](Case& c) { c.params.eps = INFINITY; }, {"eps", "finite", "inf"});
  refused([](Case& c) { c.params.kv = {}; }, {"kv", "required", "absent"});
  refused([](Case& c) { c.params.kv.shape[0] = 1; }, {"kv", "[2, any]", "bf16[1, 4]"});
  refused([](Case& c) { c.params.q_weight.shape[0] = 1; }, {"q_weight", "[2]", "f32[1]"});
  refused([](Case& c) { c.params.kv_weight.dtype = DType::bf16; }, {"kv_weight", "f32", "bf16"});
  refused([](Case& c) { c.params.q_out = {}; }, {"q_out", "required", "absent"});
  refused([](Case& c) { c.params.q_format = ActivationFormat::fp8_f32; }, {"q_out", "e4m3", "bf16"});
  refused([](Case& c) { c.params.q_scale = c.q_weight; }, {"q_scale", "absent", "f32[2]"});
  Array<E4m3> codes({2, 2});
  Array<float> scale({2, 1}), short_scale({1, 1});
  const auto as_codes = [&](Case& c) { c.params.q_out = codes, c.params.q_scale = scale, c.params.q_format = ActivationFormat::fp8_f32; };
  refused([&](Case& c) { c.params.q_out = codes; }, {"q_out", "bf16", "e4m3"});
  refused([&](Case& c) { as_codes(c), c.params.q_scale = {}; }, {"q_scale", "required", "absent"});
  refused([&](Case& c) { as_codes(c), c.params.q_scale = short_scale; }, {"q_scale", "[2, 1]", "f32[1, 1]"});
  refused([&](Case& c) { as_codes(c), c.params.q_scale.dtype = DType::bf16; }, {"q_scale", "f32", "bf16"});
  refused([&](Case& c) { as_codes(c), c.params.q_scale.stride[0] = 0; }, {"q_scale"});
  refused([&](Case& c) { as_codes(c), c.params.q_out.data = c.params.q.data; }, {"q_out", "not be the input"});
  refused([&](Case& c) { as_codes(c), c.params.q = {}; }, {"q_scale", "q, which is absent"});
  Array<int64_t> positions({2}, {0, 4}), slots({2}, {0, 1});
  Array<float> table({4, 2});
  test::CachePages cache(KvFormat::bf16, 4, 4, 1);
  const auto insert = [&](auto change) {
    return [&, change](Case& c) {
      c.params.kv_out = {};
      c.params.insert_epilogue = {.slot_mapping = slots, .positions = positions, .cos_sin = table, .cache = cache};
      change(c.params, *c.params.insert_epilogue);
    };
  };
  using P = RmsNormPairParams;
  refused(insert([](P&, KeyInsert&) {}), {"insert_epilogue: positions[1]", "[0, 4)", "is 4"});
  refused(insert([](P&, KeyInsert& i) { i.positions = {}; }), {"insert_epilogue: positions", "required", "absent"});
  refused(insert([](P&, KeyInsert& i) { i.cos_sin = {}; }), {"insert_epilogue: cos_sin", "required", "absent"});
  refused(insert([](P&, KeyInsert& i) { i.cache = {}; }), {"insert_epilogue: cache", "required"});
  refused(insert([](P&, KeyInsert& i) { i.cache.page_stride = 8; }), {"insert_epilogue: cache", "page_stride", "has 8"});
  refused(insert([](P&, KeyInsert& i) { i.slot_mapping = {}; }), {"insert_epilogue: slot_mapping", "required", "absent"});
  refused(insert([&](P& p, KeyInsert&) { p.kv_out = p.kv; }), {"kv_out", "absent with insert_epilogue", "bf16[2, 4]"});
  refused([](Case& c) { c.params.kv_out.shape[1] = 3; }, {"kv_out", "[2, 4]", "bf16[2, 3]"});
}

}  // namespace
}  // namespace strata
