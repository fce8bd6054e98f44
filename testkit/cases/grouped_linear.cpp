#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "testkit/cases/activation_scales.h"
#include "formats/quantize.h"
#include "testkit/cases/linear_case.h"
#include "testkit/cases/registry.h"

namespace strata::testkit {
namespace {

struct GroupedShape {
  int64_t tokens = 1;
  WeightShape weight;
  enum class X : uint8_t { bf16, e4m3_ue8m0, e4m3_f32 } x = X::bf16;
  Padding x_padding{};
  Padding y_padding{};
  ActivationFormat y = ActivationFormat::bf16;
};

Built<GroupedLinearParams> build(Inputs& in, const GroupedShape& s) {
  const int64_t tokens = in.share(s.tokens);
  const WeightShape& w = s.weight;
  GroupedLinearParams p;
  const Shape x_shape{tokens, w.groups, w.k};
  if (s.x == GroupedShape::X::bf16) {
    p.x = in.bf16(x_shape, 1.0, s.x_padding);
  } else {
    p.x = in.e4m3(x_shape, 100.0, s.x_padding);
    p.x_scale = activation_scales(in, {tokens, w.groups, w.k / 128}, s.x == GroupedShape::X::e4m3_ue8m0);
  }
  p.weight = make_weight(in, w);
  const bool y_codes = s.y != ActivationFormat::bf16;
  p.y = in.output(y_codes ? DType::e4m3 : DType::bf16, {tokens, w.groups, w.n}, s.y_padding);
  if (y_codes) p.y_scale = in.output(DType::f32, {tokens, w.groups, w.n / 128}), p.y_format = s.y;
  const bool exact_operands = s.x != GroupedShape::X::e4m3_f32 && w.format != WeightFormat::e4m3_f32;
  const double t = static_cast<double>(tokens), g = static_cast<double>(w.groups), n = static_cast<double>(w.n),
               k = static_cast<double>(w.k);
  const double x_bytes = s.x == GroupedShape::X::bf16 ? 2 * k : k * (1.0 + 4.0 / 128);
  const bool codes = s.x != GroupedShape::X::bf16 && w.format != WeightFormat::bf16;
  std::vector<Output> outputs;
  if (y_codes) {
    Tolerance of_codes = code_step(codes ? 0.05 : 0.02), of_scales = scale_step(s.y, in.drawn());
    if (!exact_operands && in.drawn()) {
      // Sums of operands rounded to bf16: off by 2^-8 of a value, more where terms cancel; quantisation steps are 2^-4 to 2^-3 of a value.
      of_codes.inexact = 0.2, of_codes.beyond = 5e-2, of_scales.beyond = 2e-2;
      if (s.y == ActivationFormat::fp8_f32) of_scales.rel = 0x1.02p-6;
    } else if (codes) {
      // The sums have 13 bits (fp8_product_tolerance): more of them are rounded the other way, more block maxima are next to a power
      // of two. That the quantised values match y is tested bit for bit (tests/cuda/grouped_codes_test.cpp).
      of_codes.beyond = 1e-2, of_scales.beyond = 5e-3;
      if (s.y == ActivationFormat::fp8_f32) of_scales.rel = 0x1.02p-7;
    }
    if (in.drawn()) {  // the maximum of one quantisation block is next to a power of two, however few there are
      const double one = 1.01 * kActivationBlock / std::max(t * g * n, 1.0);
      of_codes.beyond = std::max(of_codes.beyond, one), of_scales.beyond = std::max(of_scales.beyond, one);
    }
    outputs.push_back(view_output("y", p.y, of_codes));
    outputs.push_back(view_output("y_scale", p.y_scale, of_scales));
  } else {
    outputs.push_back(view_output("y", p.y,
                                  codes ? fp8_product_tolerance(exact_operands, DType::bf16, p.y.numel(), in)
                                        : product_tolerance(exact_operands, DType::bf16, p.y.numel(), in)));
  }
  return {.params = p,
          .outputs = std::move(outputs),
          .bytes = weight_bytes(w) + t * g * (x_bytes + (y_codes ? 1 + 4.0 / 128 : 2) * n),
          .flops = 2 * t * g * n * k};
}

std::string name_of(const GroupedShape& s) {
  const char* weights[] = {"bf16", "e4m3", "e4m3_f32"};
  const char* inputs[] = {"", "-x_e4m3", "-x_e4m3_f32"};
  const char* results[] = {"", "-y_fp8", "-y_fp8_f32"};
  return fmt::format("T{}-G{}-N{}-K{}-{}{}{}", s.tokens, s.weight.groups, s.weight.n, s.weight.k,
                     weights[static_cast<int>(s.weight.format)], inputs[static_cast<int>(s.x)], results[static_cast<int>(s.y)]);
}

class Adder {
 public:
  explicit Adder(CaseList& list) : cases_(list, "grouped_linear", &OpSet::grouped_linear) {}

  void test_row_major(const GroupedShape& s, const std::string& suffix = "", bool heavy = false) {
    add(s, suffix, Packing::never, {.test = true, .heavy = heavy});
  }
  void test(const GroupedShape& s, const std::string& suffix = "", bool heavy = false) {
    test_row_major(s, suffix, heavy);
    add(s, suffix + "-packed", Packing::required, {.test = true, .heavy = heavy});
  }
  void test_random(const std::string& name, const GroupedShape& s, Packing packing) {
    cases_.add({name + suffix_of(s.weight, packing, s.x_padding, s.y_padding), [s](Inputs& in) { return build(in, s); },
                packer<GroupedLinearParams>(packing)},
               {.test = true, .drawn = true});
  }
  void bench(const GroupedShape& s, const std::string& label) { add(s, "-" + label, Packing::preferred, {.bench = true}); }

 private:
  void add(const GroupedShape& s, const std::string& suffix, Packing packing, Tags tags) {
    cases_.add({name_of(s) + suffix, [s](Inputs& in) { return build(in, s); }, packer<GroupedLinearParams>(packing)}, tags);
  }
  CaseAdder<GroupedLinearParams> cases_;
};

}  // namespace

void add_grouped_linear(CaseList& list) {
  using X = GroupedShape::X;
  Adder add(list);
  for (const int64_t tokens : {0, 1, 3, 17, 64}) add.test({tokens, {.n = 128, .k = 256, .groups = 2}});
  add.test({3, {.n = 64, .k = 512, .groups = 1}});
  add.test({17, {.n = 33, .k = 65, .groups = 3}});
  add.test({5, {.n = 64, .k = 128, .groups = 16}});
  add.test({17, {.n = 128, .k = 256, .groups = 2}, X::bf16, {.inner = 5, .outer = 11}, {.inner = 3, .outer = 7}}, "-strided");
  for (const auto format : {WeightFormat::e4m3_ue8m0, WeightFormat::e4m3_f32}) {
    add.test({17, {.n = 256, .k = 256, .groups = 2, .format = format}});
    add.test({17, {.n = 256, .k = 256, .groups = 2, .format = format}, X::e4m3_ue8m0});
    // Groups begin inside a block of rows.
    add.test({3, {.n = 96, .k = 256, .groups = 3, .format = format}}, "-partial");
    add.test({3, {.n = 96, .k = 256, .groups = 3, .format = format}, X::e4m3_ue8m0}, "-partial");
  }
  add.test({17, {.n = 128, .k = 384, .groups = 2}, X::e4m3_ue8m0});
  add.test({17, {.n = 128, .k = 384, .groups = 2}, X::e4m3_f32});
  add.test({17, {.n = 128, .k = 384, .groups = 2, .format = WeightFormat::e4m3_ue8m0}, X::e4m3_ue8m0, {.outer = 128}, {.outer = 64}},
           "-strided");
  // On Hopper: tiles of 112 features, the last of a group partly filled; by two blocks; tokens and groups apart in memory.
  add.test_row_major(
      {20, {.n = 320, .k = 256, .groups = 40, .format = WeightFormat::e4m3_ue8m0}, X::e4m3_ue8m0, {.outer = 128}, {.outer = 64}},
      "-strided");
  add.test_row_major(
      {9, {.n = 960, .k = 2048, .groups = 8, .format = WeightFormat::e4m3_f32, .block_n = 64}, X::e4m3_f32, {.outer = 256}, {.inner = 8}},
      "-strided", true);
  // On Hopper: few channels, several tiles a block; the last block has fewer, the last tile of a group is partly filled.
  for (const int64_t tokens : {1, 9, 32}) {
    add.test_row_major({tokens, {.n = 512, .k = 128, .groups = 70}, X::bf16, {.inner = 64}, {.inner = 64}}, "-tiles");
    add.test_row_major({tokens, {.n = 200, .k = 72, .groups = 101}, X::bf16, {.outer = 8}}, "-tiles");
    add.test_row_major({tokens, {.n = 256, .k = 40, .groups = 80}, X::bf16, {}, {}, ActivationFormat::fp8_f32}, "-tiles");
  }
  // On a GPU: tiles of 64 features, tokens in eights up to 64 and in fours beyond.
  for (const int64_t tokens : {1, 7, 32, 33, 65, 257}) {
    add.test({tokens, {.n = 192, .k = 512, .groups = 3, .format = WeightFormat::e4m3_ue8m0}, X::e4m3_ue8m0}, "-edge");
    add.test({tokens, {.n = 256, .k = 512, .groups = 3, .format = WeightFormat::e4m3_ue8m0}, X::e4m3_ue8m0, {.outer = 256}, {.inner = 8}},
             "-edge");
    add.test({tokens, {.n = 72, .k = 264, .groups = 3}}, "-edge");
  }
  add.test({7,
            {.n = 256, .k = 512, .groups = 3, .format = WeightFormat::e4m3_ue8m0},
            X::e4m3_ue8m0,
            {.inner = 5, .outer = 3},
            {.inner = 1, .outer = 9}},
           "-strided");
  // Blocks whose tiles are of two groups: e4m3, and bf16 for few tokens.
  for (const int64_t tokens : {2, 20}) {
    add.test({tokens, {.n = 320, .k = 640, .groups = 40, .format = WeightFormat::e4m3_ue8m0}, X::e4m3_ue8m0}, "-edge", true);
  }
  add.test({2, {.n = 1004, .k = 1032, .groups = 3}}, "-edge", true);
  // bf16 on Hopper: groups that end inside a tile, apart in memory.
  add.test({20, {.n = 700, .k = 264, .groups = 4}, X::bf16, {.inner = 8, .outer = 16}, {.inner = 3, .outer = 7}}, "-strided");
  add.test({20, {.n = 1000, .k = 264, .groups = 4}, X::bf16, {.inner = 8, .outer = 16}, {.inner = 3, .outer = 7}}, "-strided");
  add.test({20, {.n = 1000, .k = 136, .groups = 10}, X::bf16, {.inner = 8, .outer = 16}, {.inner = 3, .outer = 7}}, "-strided", true);
  add.test({2, {.n = 1000, .k = 1032, .groups = 10}}, "-edge", true);
  for (const int64_t tokens : {50, 100, 128}) {
    add.test_row_major({tokens, {.n = 512, .k = 640, .groups = 8, .format = WeightFormat::e4m3_ue8m0}, X::e4m3_ue8m0}, "-edge", true);
  }
  add.test({1026, {.n = 128, .k = 512, .groups = 2, .format = WeightFormat::e4m3_ue8m0}, X::e4m3_ue8m0}, "", true);
  add.test({64, {.n = 256, .k = 4096, .groups = 2, .format = WeightFormat::e4m3_ue8m0}, X::e4m3_ue8m0}, "", true);

  // Quantised results: from tiles of 64 features in pairs, from tiles of 128, and from products that a quantiser follows.
  for (const ActivationFormat format : {ActivationFormat::fp8_ue8m0, ActivationFormat::fp8_f32}) {
    for (const int64_t tokens : {0, 1, 8, 17, 32, 33}) {
      add.test({.tokens = tokens, .weight = {.n = 512, .k = 264, .groups = 8}, .y = format});
      add.test({.tokens = tokens, .weight = {.n = 1024, .k = 136, .groups = 10}, .y = format});
    }
    add.test(
        {.tokens = 17, .weight = {.n = 256, .k = 256, .groups = 2, .format = WeightFormat::e4m3_ue8m0}, .x = X::e4m3_ue8m0, .y = format});
    // e4m3: tiles of 128 features by one block and by two.
    for (const auto& [tokens, groups, k] :
         {std::array<int64_t, 3>{1, 16, 256}, {17, 16, 384}, {32, 16, 256}, {8, 8, 1024}, {30, 8, 1152}, {50, 8, 384}, {100, 16, 256}}) {
      const WeightShape weight{.n = 1024, .k = k, .groups = groups, .format = WeightFormat::e4m3_ue8m0};
      add.test_row_major({.tokens = tokens, .weight = weight, .x = X::e4m3_ue8m0, .y = format}, "", groups == 8);
    }
  }

  // bf16 activations, e4m3 weights: pairs with half of k each, tiles of 64 features and of 128, more of them than SMs, a ring that comes
  // around, tokens that shared memory has no room for; rows apart in memory, aligned and not; scale blocks of several tiles; many tokens.
  const auto mixed = [](int64_t n, int64_t k, int64_t groups) {
    return WeightShape{.n = n, .k = k, .groups = groups, .format = WeightFormat::e4m3_ue8m0};
  };
  for (const int64_t tokens : {0, 1, 9, 17, 33, 64, 65, 130, 256}) add.test({tokens, mixed(256, 384, 3)}, "-edge");
  add.test({4, mixed(128, 65536, 1)}, "-edge", true);
  for (const int64_t tokens : {2, 4, 5, 20, 40}) {
    add.test({tokens, mixed(128, 8192, 2)}, "-edge", true);
    add.test({tokens, mixed(1024, 128, 40)}, "-edge", true);
    add.test({tokens, mixed(1024, 256, 16)}, "-edge", true);
    add.test({tokens, mixed(256, 256, 2), X::bf16, {.inner = 8, .outer = 24}, {.inner = 8, .outer = 16}}, "-strided");
    add.test({tokens, mixed(256, 256, 2), X::bf16, {.inner = 5, .outer = 3}, {.inner = 3, .outer = 7}}, "-unaligned");
  }
  add.test({11, {.n = 256, .k = 512, .groups = 4, .format = WeightFormat::e4m3_ue8m0, .block_n = 64, .block_k = 256}}, "-blocks");
  add.test({11, {.n = 256, .k = 512, .groups = 4, .format = WeightFormat::e4m3_f32, .block_n = 256}}, "-blocks");
  add.test({300, mixed(256, 640, 3)}, "-many", true);
  add.test({300, mixed(256, 256, 3), X::bf16, {.inner = 5, .outer = 3}, {.inner = 3, .outer = 7}}, "-unaligned", true);
  add.test({2523, mixed(256, 256, 1)}, "-many", true);  // twenty tiles of tokens
  // By tiles of 256 by 256: features of a group's last tile that one block of a cluster has alone; more tiles than clusters, and a block of
  // channels each; rows apart in memory, aligned and not.
  add.test({500, mixed(384, 256, 14)}, "-many", true);
  add.test({770, mixed(256, 128, 30)}, "-many", true);
  // A few tokens more than whole tiles, for which these would go round once more.
  add.test({520, mixed(256, 128, 30)}, "-beside", true);
  add.test({544, mixed(1024, 256, 8), X::bf16, {.inner = 8, .outer = 24}, {.inner = 8, .outer = 16}}, "-beside-strided", true);
  add.test({544, mixed(1024, 256, 8), X::bf16, {.inner = 5, .outer = 3}, {.inner = 8, .outer = 16}}, "-beside-unaligned_x", true);
  add.test({300, mixed(256, 640, 30)}, "-many", true);
  add.test({300, mixed(256, 256, 30), X::bf16, {.inner = 8, .outer = 24}, {.inner = 8, .outer = 16}}, "-strided", true);
  add.test({300, mixed(256, 256, 30), X::bf16, {.inner = 5, .outer = 3}, {.inner = 8, .outer = 16}}, "-unaligned_x", true);
  add.test({300, mixed(256, 256, 30), X::bf16, {}, {.inner = 3, .outer = 7}}, "-unaligned_y", true);
  for (const ActivationFormat format : {ActivationFormat::fp8_ue8m0, ActivationFormat::fp8_f32}) {
    for (const int64_t tokens : {1, 20, 64, 70, 140, 260}) add.test({.tokens = tokens, .weight = mixed(256, 384, 3), .y = format});
    add.test({.tokens = 300, .weight = mixed(256, 384, 30), .y = format}, "", true);
  }

  // Many tokens: tiles of 256 by 256, partly filled, groups that begin inside of one; more of them than fit at once; scale blocks of
  // several tiles.
  add.test({530, {.n = 384, .k = 256, .groups = 16, .format = WeightFormat::e4m3_ue8m0}, X::e4m3_ue8m0, {.outer = 128}, {.outer = 64}},
           "-many", true);
  // Not packed: of 3.9 million sums of operands rounded to bf16, ten on a GPU are beyond the bound of packed weights, which is made for
  // thousands.
  add.test_row_major({770, {.n = 256, .k = 384, .groups = 20, .format = WeightFormat::e4m3_f32, .block_n = 256}, X::e4m3_f32}, "-many",
                     true);
  add.test({70, {.n = 1024, .k = 128, .groups = 16, .format = WeightFormat::e4m3_ue8m0}, X::e4m3_ue8m0}, "-many", true);
  add.test({515, {.n = 5624, .k = 384, .groups = 1, .format = WeightFormat::e4m3_ue8m0}, X::e4m3_ue8m0}, "-many", true);

  const std::pair<const char*, WeightShape> layers[] = {
      {"flash.wo_a", {.n = 1024, .k = 4096, .groups = 8, .format = WeightFormat::e4m3_ue8m0}},
      {"pro.wo_a", {.n = 1024, .k = 4096, .groups = 16, .format = WeightFormat::e4m3_ue8m0}}};
  for (const auto& [label, weight] : layers) {
    for (const int64_t tokens : {256, 1024}) add.bench({tokens, weight}, label);
    for (const int64_t tokens : {1, 32, 64, 128, 512, 544, 4096}) {
      add.bench({tokens, weight}, label);
      add.bench({tokens, weight, X::e4m3_ue8m0}, label);
    }
  }
  // V3's absorbed products.
  for (const int64_t tokens : {1, 32, 64}) {
    add.bench({tokens, {.n = 512, .k = 128, .groups = 128}}, "v3.w_uk");
    add.bench({tokens, {.n = 128, .k = 512, .groups = 128}}, "v3.w_uv");
  }
  // Of one of eight tensor-parallel ranks.
  for (const int64_t groups : {1, 2}) {
    const WeightShape weight{.n = 1024, .k = 4096, .groups = groups, .format = WeightFormat::e4m3_ue8m0};
    for (const int64_t tokens : {32, 128, 512, 4096}) add.bench({tokens, weight}, "rank.wo_a");
  }
  // The products of docs/performance.md alone: x is already quantised.
  const std::pair<const char*, WeightShape> table[] = {{"table.pro.wq_b", {.n = 65536, .k = 1536, .format = WeightFormat::e4m3_ue8m0}},
                                                       {"table.pro.wqkv_a", {.n = 2048, .k = 7168, .format = WeightFormat::e4m3_ue8m0}},
                                                       {"table.pro.wo_b", {.n = 7168, .k = 16384, .format = WeightFormat::e4m3_ue8m0}}};
  for (const auto& [label, weight] : table) add.bench({4096, weight, X::e4m3_ue8m0}, label);
}

void add_random_grouped_linear(CaseList& list, Draw& draw) {
  using X = GroupedShape::X;
  GroupedShape s;
  s.tokens = draw.tokens(draw.chance(0.6) ? 70 : 1500);
  s.x = draw.of({X::bf16, X::e4m3_ue8m0, X::e4m3_ue8m0, X::e4m3_f32});
  if (draw.chance(0.3)) s.y = draw.of({ActivationFormat::fp8_ue8m0, ActivationFormat::fp8_f32});
  const double work = draw.work();
  const auto elements = static_cast<int64_t>(std::min(work / static_cast<double>(std::max<int64_t>(s.tokens, 1)), 8e6));
  const int64_t groups = draw.chance(0.5) ? draw.of<int64_t>({1, 2, 8, 16}) : draw.size(1, 40);
  // As a layer packs e4m3 weights for bf16 activations: in whole blocks.
  const bool packs = s.x == X::bf16 && draw.chance(0.3);
  s.weight = random_weight(draw, groups, std::max<int64_t>(elements, groups), packs || s.y != ActivationFormat::bf16 ? 128 : 1,
                           packs || s.x != X::bf16 ? 128 : 1);
  if (packs) s.weight.format = WeightFormat::e4m3_ue8m0;
  s.x_padding = draw.padding();
  if (s.y == ActivationFormat::bf16) s.y_padding = draw.padding();
  Adder(list).test_random(draw.name(name_of(s)), s,
                          packs ? Packing::preferred : draw.of({Packing::never, Packing::never, Packing::preferred}));
}

}  // namespace strata::testkit
