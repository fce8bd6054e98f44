#include <fmt/format.h>

#include "testkit/cases/indices_case.h"
#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

struct EntryShape {
  StepShape step;
  int32_t ratio = 128;
  int64_t width = 128;
  bool local = false;  // entry numbers instead of slots
  int64_t padding = 0;
};

Built<CompressedIndicesParams> build(Inputs& in, const EntryShape& s) {
  const Step step = make_step(in, s.step, s.ratio);
  CompressedIndicesParams p;
  p.positions = step.positions;
  p.is_valid_token = step.is_valid_token;
  if (!s.local) {
    p.token_to_req = step.token_to_req;
    p.block_table = step.block_table;
    p.page_size = s.step.page_size;
  }
  p.ratio = s.ratio;
  p.indices = in.output(DType::i32, {step.tokens.size(), s.width}, {.inner = s.padding});
  p.lens = in.output(DType::i32, {step.tokens.size()});
  return {.params = p,
          .outputs = {view_output("indices", p.indices, exact()), view_output("lens", p.lens, exact())},
          .bytes = static_cast<double>(step.tokens.size()) * (4.0 * static_cast<double>(s.width) + 17),
          .flops = 0};
}

std::string name_of(const EntryShape& s) {
  return fmt::format("r{}-width{}-{}-{}{}", s.ratio, s.width, s.local ? "local" : "slots", name_of(s.step),
                     s.padding > 0 ? "-rows_strided" : "");
}

}  // namespace

void add_compressed_indices(CaseList& list) {
  CaseAdder<CompressedIndicesParams> cases(list, "compressed_indices", &OpSet::compressed_indices);
  const auto test = [&](const EntryShape& s) { cases.test(name_of(s), [s](Inputs& in) { return build(in, s); }); };
  for (const StepShape& step : step_tests()) {
    for (const int32_t ratio : {4, 128}) {
      for (const bool local : {false, true}) test({step, ratio, 128, local});
    }
  }
  const StepShape mixed = step_tests()[1];
  test({mixed, 1, 700});
  test({mixed, 4, 20});  // fewer columns than entries
  test({mixed, 4, 1, true});
  test({mixed, 128, 0});
  test({mixed, 4, 200, false, 5});
  test({mixed, 1, 3000});  // rows wider than a block has threads
  for (const int64_t tokens : {1, 64, 4096}) {
    cases.bench(fmt::format("T{}-r128-width128", tokens), [tokens](Inputs& in) {
      StepShape step = step_bench(in, tokens);
      step.page_size = 2;
      return build(in, {step});
    });
  }
}

void add_random_compressed_indices(CaseList& list, Draw& draw) {
  EntryShape s{.step = random_step(draw)};
  s.ratio = draw.of({1, 4, 128});
  s.width = draw.size(0, 1500);
  s.local = draw.chance(0.5);
  s.padding = draw.padding().inner;
  CaseAdder<CompressedIndicesParams>(list, "compressed_indices", &OpSet::compressed_indices).drawn(draw.name(name_of(s)), [=](Inputs& in) {
    return build(in, s);
  });
}

}  // namespace strata::testkit
