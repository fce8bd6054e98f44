#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

// How the logits of a row are.
enum class Values : uint8_t {
  normal,
  few,       // a handful of values: ties everywhere, at the threshold too
  equal,     // one value
  specials,  // infinities, NaN and both zeros among them
  ascending,
  descending,
  offset,     // differ in their last bits only
  clustered,  // the largest side by side
  periodic,   // the largest 8 of every 256
};

struct SelectShape {
  int64_t tokens = 1;
  int64_t columns = 512;
  int64_t k = 64;
  Values values = Values::normal;
  bool full = false;  // every length is `columns`
  int64_t padding = 0;
};

float value(Rng& rng, Values kind, int64_t i) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  switch (kind) {
    case Values::normal: return rng.normal();
    case Values::few: return static_cast<float>(rng.in(-2, 3));
    case Values::equal: return -0.75f;
    case Values::specials: {
      const float specials[] = {kInf, -kInf, std::numeric_limits<float>::quiet_NaN(), 0.0f, -0.0f, 1e-42f, -1e-42f, rng.normal()};
      return specials[rng.next() % 8];
    }
    case Values::ascending: return static_cast<float>(i);
    case Values::descending: return static_cast<float>(-i);
    case Values::offset: return 1000.0f + 0.001f * rng.normal();
    case Values::clustered: return i < 600 ? 1000.0f + rng.normal() : -1.0f;
    case Values::periodic: return rng.normal() + (i % 256 < 8 ? 100.0f : 0.0f);
  }
  return 0;
}

Built<TopkSelectParams> build(Inputs& in, const SelectShape& s) {
  const int64_t tokens = in.share(s.tokens);
  std::vector<float> logits(static_cast<size_t>(tokens * s.columns), std::numeric_limits<float>::quiet_NaN());
  std::vector<int32_t> lengths(static_cast<size_t>(tokens));
  double read = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    // Lengths around k and both ends come up often.
    const int64_t choices[] = {0, 1, s.k - 1, s.k, s.k + 1, s.columns, in.rng().in(0, s.columns + 1), in.rng().in(0, s.columns + 1)};
    const int64_t length = s.full ? s.columns : std::min(s.columns, choices[in.rng().next() % 8]);
    lengths[static_cast<size_t>(t)] = static_cast<int32_t>(length);
    read += static_cast<double>(length);
    float* row = logits.data() + t * s.columns;
    for (int64_t i = 0; i < length; ++i) row[i] = value(in.rng(), s.values, i);
    // Entries after the length would win.
    for (int64_t i = length; i < s.columns; ++i) row[i] = i % 2 == 0 ? std::numeric_limits<float>::infinity() : row[i];
  }
  TopkSelectParams p;
  p.logits = in.values(DType::f32, {tokens, s.columns}, logits, {.inner = s.padding});
  p.lengths = in.i32(lengths);
  p.topk_indices = in.output(DType::i32, {tokens, s.k}, {.inner = s.padding});
  return {.params = p,
          .outputs = {view_output("topk_indices", p.topk_indices, exact())},
          .bytes = 4 * read + 4.0 * static_cast<double>(tokens * s.k),
          .flops = 0};
}

std::string name_of(const SelectShape& s) {
  const char* kinds[] = {"", "-few_values", "-equal", "-specials", "-ascending", "-descending", "-offset", "-clustered", "-periodic"};
  return fmt::format("T{}-C{}-k{}{}{}{}", s.tokens, s.columns, s.k, kinds[static_cast<int>(s.values)], s.full ? "-full" : "",
                     s.padding > 0 ? "-strided" : "");
}

}  // namespace

void add_topk_select(CaseList& list) {
  CaseAdder<TopkSelectParams> cases(list, "topk_select", &OpSet::topk_select);
  const auto test = [&](const SelectShape& s) { cases.test(name_of(s), [s](Inputs& in) { return build(in, s); }); };
  for (const int64_t tokens : {0, 1, 3, 17, 64, 300}) test({tokens, 300, 64});
  for (const auto values : {Values::normal, Values::few, Values::equal, Values::specials, Values::ascending, Values::descending}) {
    test({17, 200, 64, values});
    test({17, 200, 64, values, true});
    test({9, 33, 1, values});
    test({9, 1030, 512, values, true});
    test({5, 3000, 1024, values});
  }
  test({9, 64, 64, Values::few});
  test({9, 5, 64});
  test({3, 1, 1});
  test({3, 0, 8});
  test({17, 200, 65, Values::few, false, 3});
  test({2, 40000, 512, Values::normal, true});
  test({2, 40000, 2048, Values::few, true});
  // Rows for which an implementation that samples a range first is misled.
  for (const auto values : {Values::normal, Values::few, Values::equal, Values::specials, Values::ascending, Values::descending,
                            Values::offset, Values::clustered, Values::periodic}) {
    test({3, 20000, 512, values, true});
    test({3, 8192, 512, values, true});
    test({3, 16384, 512, values, true});
  }
  test({40, 12000, 1024});
  test({40, 8000, 1024});
  test({5, 8192, 2048, Values::normal, true});
  for (const int64_t columns : {8193, 16381, 16384, 16385}) test({5, columns, 2048, Values::normal, true});
  test({2, 32768, 2048, Values::periodic, true});
  test({150, 4200, 512, Values::normal, true, 3});
  // Many rows that are long.
  for (const auto values : {Values::normal, Values::few, Values::clustered, Values::periodic}) test({270, 9000, 512, values, true});
  test({270, 40000, 512, Values::normal, true});
  test({2, 70000, 512, Values::normal, true, 1});
  test({2, 70000, 5000, Values::normal, true});
  cases.heavy("T1-C1048579-k512-full", [](Inputs& in) { return build(in, {1, 1048579, 512, Values::normal, true}); });
  cases.heavy("T1-C1048579-k2048-few_values-full", [](Inputs& in) { return build(in, {1, 1048579, 2048, Values::few, true}); });
  for (const auto& [tokens, columns] : {std::pair<int64_t, int64_t>{1, 32768}, {16, 32768}, {64, 32768}, {32, 8192}}) {
    for (const int64_t k : {512, 1024}) {
      const SelectShape s{tokens, columns, k, Values::normal, true};
      cases.bench(name_of(s), [s](Inputs& in) { return build(in, s); });
    }
  }
}

void add_random_topk_select(CaseList& list, Draw& draw) {
  SelectShape s;
  s.tokens = draw.tokens(400);
  s.columns = draw.size(0, std::min<int64_t>(draw.chance(0.1) ? 1'000'000 : 40'000, 2'000'000 / std::max<int64_t>(s.tokens, 1)));
  s.k = draw.chance(0.5) ? draw.of<int64_t>({16, 64, 512, 1024, 2048}) : draw.size(1, 5000);
  s.values = draw.of({Values::normal, Values::few, Values::equal, Values::specials, Values::ascending, Values::descending, Values::offset,
                      Values::clustered, Values::periodic});
  s.full = draw.chance(0.4);
  s.padding = draw.padding().inner;
  CaseAdder<TopkSelectParams>(list, "topk_select", &OpSet::topk_select).drawn(draw.name(name_of(s)), [=](Inputs& in) {
    return build(in, s);
  });
}

}  // namespace strata::testkit
