// inverse_rope and inverse_rope_quant on the reference.

#include "formats/quantize.h"
#include "formats/rope.h"
#include "op_test.h"
#include "ops/factories.h"

namespace strata {
namespace {

using test::Array;
using test::bf16_values;
using test::expect_refused;
using test::random_bf16;
using test::run;

// Three positions, two rotary dimensions: rotations by 0, 90 and 180 degrees.
Array<float> quarter_turns() { return {{3, 2}, {1, 0, 0, 1, -1, 0}}; }

struct RopeCase {
  Array<Bf16> o{{2, 2, 4}, bf16_values({1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8})};
  Array<int64_t> positions{{2}, {1, 2}};
  Array<float> cos_sin = quarter_turns();
  Array<Bf16> out{{2, 2, 4}};
  InverseRopeParams params{.o = o, .positions = positions, .cos_sin = cos_sin, .out = out};
};

TEST(InverseRope, TurnsTheLastLanesBack) {
  RopeCase c;
  run(ops::make_inverse_rope(), c.params);
  const float expected[] = {1, 2, 4, -3, 5, 6, 8, -7, 1, 2, -3, -4, 5, 6, -7, -8};
  for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(to_float(c.out[i]), expected[i]) << i;
}

TEST(InverseRope, InPlaceAndStridesWithGaps) {
  RopeCase c, reference;
  run(ops::make_inverse_rope(), reference.params);
  c.params.out = c.o;
  run(ops::make_inverse_rope(), c.params);
  EXPECT_EQ(c.o.bytes(), reference.out.bytes());

  Array<Bf16> padded({2, 3, 6});
  TensorView window = padded.view().columns(1, 4);
  window.shape[1] = 2;
  reference.params.out = window;
  run(ops::make_inverse_rope(), reference.params);
  for (int64_t t = 0; t < 2; ++t) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(padded[(t * 3 + h) * 6 + 1 + i].bits, reference.out[(t * 2 + h) * 4 + i].bits);
      EXPECT_EQ(padded[(t * 3 + h) * 6].bits, 0xA5A5);
      EXPECT_EQ(padded[(t * 3 + h) * 6 + 5].bits, 0xA5A5);
    }
  }
}

TEST(InverseRope, TakesTheForwardRotationBack) {
  const auto device = open_device({});
  const Tensor table = build_rope_table({}, 100, device);
  Array<Bf16> o({1, 1, 512}, random_bf16(512, 1.0f, 1)), rotated({1, 1, 512}), out({1, 1, 512});
  float row[512];
  for (int i = 0; i < 512; ++i) row[i] = to_float(o[i]);
  rotate(row + 448, table.view().row<float>(77), 64, RopePairing::interleaved);
  for (int i = 0; i < 512; ++i) rotated[i] = to_bf16(row[i]);
  Array<int64_t> positions({1}, {77});
  run(ops::make_inverse_rope(), {.o = rotated, .positions = positions, .cos_sin = table, .out = out});
  for (int i = 0; i < 448; ++i) EXPECT_EQ(out[i].bits, o[i].bits);
  for (int i = 448; i < 512; ++i) EXPECT_NEAR(to_float(out[i]), to_float(o[i]), 0.03);
}

TEST(InverseRope, RefusesWhatContradictsTheContract) {
  const auto op = ops::make_inverse_rope();
  const auto refused = [&](auto change, std::initializer_list<const char*> words) {
    RopeCase c;
    change(c);
    expect_refused(op, c.params, words, c.out, c.o);
  };
  refused([](RopeCase& c) { c.params.o.dtype = DType::f32; }, {"o must be bf16", "f32"});
  refused([](RopeCase& c) { c.params.positions.shape[0] = 1; }, {"positions", "[2]", "i64[1]"});
  refused([](RopeCase& c) { c.params.cos_sin.shape[1] = 3; }, {"cos_sin", "even", "3"});
  refused([](RopeCase& c) { c.params.cos_sin.shape[1] = 6; }, {"cos_sin", "[2, 4]", "6"});
  refused([](RopeCase& c) { c.params.out.shape[1] = 1; }, {"out", "[2, 2, 4]", "bf16[2, 1, 4]"});
  refused([](RopeCase& c) { c.params.out.stride[1] = 0; }, {"out", "overlap", "strides [8, 0, 1]"});
  refused([](RopeCase& c) { c.positions[1] = 3; }, {"positions[1]", "[0, 3)", "3"});
  refused([](RopeCase& c) { c.positions[0] = -1; }, {"positions[0]", "[0, 3)", "-1"});
}

struct QuantCase {
  Array<Bf16> o{{2, 4, 256}, random_bf16(2 * 4 * 256, 1.0f, 2)};
  Array<int64_t> positions{{2}, {5, 31}};
  Array<E4m3> out{{2, 2, 512}};
  Array<float> scale{{2, 2, 4}};
  Tensor table = build_rope_table({}, 32, open_device({}));
  InverseRopeQuantParams params{.o = o, .positions = positions, .cos_sin = table, .out = out, .scale = scale};
};

TEST(InverseRopeQuant, QuantisesTheUnroundedRotation) {
  QuantCase c;
  run(ops::make_inverse_rope_quant(), c.params);
  for (int64_t t = 0; t < 2; ++t) {
    for (int64_t h = 0; h < 4; ++h) {
      double head[256];
      for (int64_t i = 0; i < 256; ++i) head[i] = to_float(c.o[(t * 4 + h) * 256 + i]);
      rotate(head + 192, c.table.view().row<float>(c.positions[t]), 64, RopePairing::interleaved, true);
      float block[256];
      for (int64_t i = 0; i < 256; ++i) block[i] = static_cast<float>(head[i]);
      for (int64_t b = 0; b < 2; ++b) {
        E4m3 codes[128];
        const int64_t index = (t * 4 + h) * 2 + b;  // group h / 2 holds heads 2g and 2g + 1 one after the other
        EXPECT_EQ(c.scale[index], quantize_activation(block + b * 128, 128, true, codes));
        for (int64_t i = 0; i < 128; ++i) ASSERT_EQ(c.out[index * 128 + i].bits, codes[i].bits) << index << " " << i;
      }
    }
  }
}

TEST(InverseRopeQuant, RefusesWhatContradictsTheContract) {
  const auto op = ops::make_inverse_rope_quant();
  const auto refused = [&](auto change, std::initializer_list<const char*> words) {
    QuantCase c;
    change(c);
    expect_refused(op, c.params, words, c.out, c.scale);
  };
  refused([](QuantCase& c) { c.params.o.shape[2] = 200; }, {"o", "multiple of 128", "200"});
  refused([](QuantCase& c) { c.params.out.shape[2] = 256; }, {"out", "[2, G, H / G * 256]", "e4m3[2, 2, 256]"});
  refused([](QuantCase& c) { c.params.out.shape[1] = 3; }, {"out", "4 heads", "e4m3[2, 3, 512]"});
  refused([](QuantCase& c) { c.params.out.stride[0] = 2048; }, {"out", "contiguous", "strides"});
  refused([](QuantCase& c) { c.params.scale.shape[2] = 3; }, {"scale", "[2, 2, 4]", "f32[2, 2, 3]"});
  refused([](QuantCase& c) { c.params.scale.stride[1] = 5; }, {"scale", "contiguous"});
  refused([](QuantCase& c) { c.positions[0] = 32; }, {"positions[0]", "[0, 32)", "32"});
}

}  // namespace
}  // namespace strata
