#include <fmt/format.h>

#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

struct InverseShape {
  int64_t tokens = 1;
  int64_t heads = 8;
  int64_t dim = 512;
  int64_t rotary = 64;
  bool in_place = false;
  Padding padding{};
  double scale = 1.0;
};

Built<InverseRopeParams> build(Inputs& in, const InverseShape& s) {
  const int64_t tokens = in.share(s.tokens);
  constexpr int64_t kPositions = 129;
  InverseRopeParams p;
  p.o = in.bf16({tokens, s.heads, s.dim}, s.scale, s.padding);
  std::vector<int64_t> positions(static_cast<size_t>(tokens));
  for (int64_t& position : positions) position = in.rng().in(0, kPositions);
  p.positions = in.i64(positions);
  p.cos_sin = in.rope_table(kPositions, s.rotary);
  p.out = s.in_place ? p.o : in.output(DType::bf16, {tokens, s.heads, s.dim}, {.inner = s.padding.outer, .outer = s.padding.inner});
  const double n = static_cast<double>(tokens * s.heads);
  return {.params = p,
          .outputs = {view_output("out", p.out, bf16_rounding(0.005))},
          .bytes = n * static_cast<double>(4 * (s.in_place ? s.rotary : s.dim)) + static_cast<double>(tokens) * 264,
          .flops = n * 3 * static_cast<double>(s.rotary)};
}

std::string name_of(const InverseShape& s) {
  return fmt::format("T{}-H{}-D{}-R{}{}{}{}", s.tokens, s.heads, s.dim, s.rotary, s.in_place ? "-in_place" : "",
                     s.padding.inner > 0 ? fmt::format("-strided{}", s.padding.inner) : "",
                     s.scale == 1.0 ? "" : fmt::format("-scale{:g}", s.scale));
}

}  // namespace

void add_inverse_rope(CaseList& list) {
  CaseAdder<InverseRopeParams> cases(list, "inverse_rope", &OpSet::inverse_rope);
  const auto test = [&](const InverseShape& s) { cases.test(name_of(s), [s](Inputs& in) { return build(in, s); }); };
  for (const int64_t tokens : {0, 1, 3, 17, 64, 300}) test({tokens, 4});
  for (const int64_t heads : {1, 3, 16, 24, 32, 63, 64, 96, 126, 128}) test({3, heads});
  for (const bool in_place : {false, true}) {
    test({17, 8, 512, 64, in_place, {.inner = 3, .outer = 5}});
    test({17, 8, 512, 64, in_place, {.inner = 64, .outer = 512}});
    test({17, 8, 512, 64, in_place});
    test({5, 3, 64, 64, in_place});
    test({5, 3, 34, 2, in_place});
    test({5, 3, 576, 64, in_place});
    test({5, 3, 192, 128, in_place});
  }
  test({.tokens = 5, .scale = 0.0});
  test({.tokens = 5, .scale = 1e30});
  for (const bool in_place : {false, true}) {
    test({5, 3, 101, 34, in_place});
    test({5, 3, 35, 34, in_place, {.inner = 8, .outer = 16}});
    cases.heavy(name_of({1031, 16, 512, 64, in_place}), [in_place](Inputs& in) { return build(in, {1031, 16, 512, 64, in_place}); });
    for (const int64_t tokens : {1, 64, 4096}) {
      for (const int64_t heads : {8, 64, 128}) {
        const InverseShape s{.tokens = tokens, .heads = heads, .in_place = in_place};
        cases.bench(name_of(s), [s](Inputs& in) { return build(in, s); });
      }
    }
  }
}

void add_random_inverse_rope(CaseList& list, Draw& draw) {
  InverseShape s;
  s.heads = draw.heads();
  s.dim = draw.chance(0.5) ? 512 : draw.size(2, 600);
  s.rotary = s.dim >= 64 && draw.chance(0.6) ? 64 : 2 * draw.size(1, s.dim / 2);
  s.tokens = draw.tokens(std::clamp<int64_t>(1'000'000 / (s.heads * s.dim), 1, 1500));
  s.in_place = draw.chance(0.5);
  s.padding = draw.padding();
  s.scale = draw.of({1.0, 1.0, 0.0, 1e30});
  CaseAdder<InverseRopeParams>(list, "inverse_rope", &OpSet::inverse_rope).drawn(draw.name(name_of(s)), [=](Inputs& in) {
    return build(in, s);
  });
}

}  // namespace strata::testkit
