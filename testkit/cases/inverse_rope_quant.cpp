#include <fmt/format.h>

#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

struct InverseQuantShape {
  int64_t tokens = 1;
  int64_t heads = 8;
  int64_t groups = 1;
  int64_t dim = 512;
  int64_t rotary = 64;
  Padding padding{};
  double scale = 1.0;
};

Built<InverseRopeQuantParams> build(Inputs& in, const InverseQuantShape& s) {
  const int64_t tokens = in.share(s.tokens), width = s.heads / s.groups * s.dim;
  constexpr int64_t kPositions = 129;
  InverseRopeQuantParams p;
  p.o = in.bf16({tokens, s.heads, s.dim}, s.scale, s.padding);
  std::vector<int64_t> positions(static_cast<size_t>(tokens));
  for (int64_t& position : positions) position = in.rng().in(0, kPositions);
  p.positions = in.i64(positions);
  p.cos_sin = in.rope_table(kPositions, s.rotary);
  p.out = in.output(DType::e4m3, {tokens, s.groups, width});
  p.scale = in.output(DType::f32, {tokens, s.groups, width / 128});
  Tolerance scales = exact();
  scales.kind = Tolerance::Kind::close;  // powers of two: equal, or a factor of two where an absmax rounds across one
  scales.beyond = 5e-4;
  const double n = static_cast<double>(tokens * s.heads);
  return {.params = p,
          .outputs = {view_output("out", p.out, code_step(0.005)), view_output("scale", p.scale, scales)},
          .bytes = n * static_cast<double>(s.dim) * (3 + 4.0 / 128) + static_cast<double>(tokens) * 264,
          .flops = n * static_cast<double>(3 * s.dim + 3 * s.rotary)};
}

std::string name_of(const InverseQuantShape& s) {
  return fmt::format("T{}-H{}-G{}-D{}-R{}{}{}", s.tokens, s.heads, s.groups, s.dim, s.rotary,
                     s.padding.inner + s.padding.outer > 0 ? fmt::format("-strided{}", s.padding.inner) : "",
                     s.scale == 1.0 ? "" : fmt::format("-scale{:g}", s.scale));
}

}  // namespace

void add_inverse_rope_quant(CaseList& list) {
  CaseAdder<InverseRopeQuantParams> cases(list, "inverse_rope_quant", &OpSet::inverse_rope_quant);
  const auto test = [&](const InverseQuantShape& s) { cases.test(name_of(s), [s](Inputs& in) { return build(in, s); }); };
  for (const int64_t tokens : {0, 1, 3, 17, 64, 300}) test({tokens, 4});
  for (const auto& [heads, groups] : {std::pair{1, 1}, std::pair{3, 1}, std::pair{3, 3}, std::pair{16, 2}, std::pair{24, 3},
                                      std::pair{64, 8}, std::pair{126, 7}, std::pair{128, 16}}) {
    test({3, heads, groups});
  }
  test({17, 8, 2, 512, 64, {.inner = 3, .outer = 5}});
  test({5, 4, 2, 128, 64});
  test({5, 4, 2, 256, 128});
  test({5, 4, 2, 128, 2});
  for (const double scale : {0.0, 1e-12, 1e-3, 1e6}) test({.tokens = 17, .heads = 4, .groups = 2, .scale = scale});
  test({1, 1, 1, 128, 64});
  test({3, 3, 1, 384, 34});
  test({17, 8, 2, 512, 64, {.inner = 8, .outer = 16}});
  for (const int64_t tokens : {64, 96}) test({tokens, 64, 8});  // two and four runs a thread on a GPU
  cases.heavy(name_of({1031, 16, 2}), [](Inputs& in) { return build(in, {1031, 16, 2}); });
  for (const int64_t tokens : {1, 64, 4096}) {
    for (const auto& [heads, groups] : {std::pair{8, 1}, std::pair{64, 8}, std::pair{128, 16}}) {
      const InverseQuantShape s{.tokens = tokens, .heads = heads, .groups = groups};
      cases.bench(name_of(s), [s](Inputs& in) { return build(in, s); });
    }
  }
}

void add_random_inverse_rope_quant(CaseList& list, Draw& draw) {
  InverseQuantShape s;
  s.groups = draw.chance(0.6) ? draw.of<int64_t>({1, 2, 8, 16}) : draw.size(1, 20);
  s.heads = s.groups * draw.size(1, 128 / s.groups);
  s.dim = draw.chance(0.5) ? 512 : 128 * draw.in(1, 5);
  s.rotary = draw.chance(0.6) ? 64 : 2 * draw.size(1, s.dim / 2);
  s.tokens = draw.tokens(std::clamp<int64_t>(1'000'000 / (s.heads * s.dim), 1, 1500));
  s.padding = draw.padding();
  s.scale = draw.of({1.0, 1.0, 0.0, 1e-12, 1e-3, 1e6});
  CaseAdder<InverseRopeQuantParams>(list, "inverse_rope_quant", &OpSet::inverse_rope_quant).drawn(draw.name(name_of(s)), [=](Inputs& in) {
    return build(in, s);
  });
}

}  // namespace strata::testkit
