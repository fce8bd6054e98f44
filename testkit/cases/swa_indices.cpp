#include <fmt/format.h>

#include "testkit/cases/indices_case.h"
#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

Built<SwaIndicesParams> build(Inputs& in, const StepShape& s, int32_t window, int64_t padding) {
  const Step step = make_step(in, s, 1);
  SwaIndicesParams p;
  p.positions = step.positions;
  p.token_to_req = step.token_to_req;
  p.is_valid_token = step.is_valid_token;
  p.block_table = step.block_table;
  p.page_size = s.page_size;
  p.window = window;
  p.indices = in.output(DType::i32, {step.tokens.size(), window}, {.inner = padding});
  p.lens = in.output(DType::i32, {step.tokens.size()});
  return {.params = p,
          .outputs = {view_output("indices", p.indices, exact()), view_output("lens", p.lens, exact())},
          .bytes = static_cast<double>(step.tokens.size()) * (4.0 * window + 17),
          .flops = 0};
}

}  // namespace

void add_swa_indices(CaseList& list) {
  CaseAdder<SwaIndicesParams> cases(list, "swa_indices", &OpSet::swa_indices);
  for (const StepShape& s : step_tests()) {
    cases.test("W128-" + name_of(s), [s](Inputs& in) { return build(in, s, 128, 0); });
  }
  const StepShape mixed = step_tests()[1];
  for (const int32_t window : {1, 5, 64, 300}) {
    cases.test(fmt::format("W{}-{}-rows_strided", window, name_of(mixed)),
               [mixed, window](Inputs& in) { return build(in, mixed, window, 7); });
  }
  const StepShape far{.requests = {{300, 9}}, .page_size = 64, .first_page = 33000000};
  cases.test("W128-" + name_of(far), [far](Inputs& in) { return build(in, far, 128, 0); });
  for (const int64_t tokens : {1, 64, 4096}) {
    cases.bench(fmt::format("T{}-W128", tokens), [tokens](Inputs& in) { return build(in, step_bench(in, tokens), 128, 0); });
  }
}

void add_random_swa_indices(CaseList& list, Draw& draw) {
  const StepShape s = random_step(draw);
  const auto window = static_cast<int32_t>(draw.chance(0.5) ? 128 : draw.size(1, 700));
  const int64_t padding = draw.padding().inner;
  CaseAdder<SwaIndicesParams>(list, "swa_indices", &OpSet::swa_indices)
      .drawn(draw.name(fmt::format("W{}-{}", window, name_of(s))), [=](Inputs& in) { return build(in, s, window, padding); });
}

}  // namespace strata::testkit
