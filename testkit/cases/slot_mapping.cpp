#include <fmt/format.h>

#include "testkit/cases/indices_case.h"
#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

Built<SlotMappingParams> build(Inputs& in, const StepShape& s, int32_t ratio) {
  const Step step = make_step(in, s, ratio);
  SlotMappingParams p;
  p.positions = step.positions;
  p.token_to_req = step.token_to_req;
  p.is_valid_token = step.is_valid_token;
  p.block_table = step.block_table;
  p.page_size = s.page_size;
  p.ratio = ratio;
  p.slot_mapping = in.output(DType::i64, {step.tokens.size()});
  return {.params = p,
          .outputs = {view_output("slot_mapping", p.slot_mapping, exact())},
          .bytes = 25.0 * static_cast<double>(step.tokens.size()),
          .flops = 0};
}

}  // namespace

void add_slot_mapping(CaseList& list) {
  CaseAdder<SlotMappingParams> cases(list, "slot_mapping", &OpSet::slot_mapping);
  for (const int32_t ratio : {1, 4, 128}) {
    for (const StepShape& s : step_tests()) {
      cases.test(fmt::format("r{}-{}", ratio, name_of(s)), [s, ratio](Inputs& in) { return build(in, s, ratio); });
    }
    // Slots beyond 32 bits.
    const StepShape far{.requests = {{700, 5}, {128, 128}}, .page_size = 64, .first_page = 2000000000};
    cases.test(fmt::format("r{}-{}", ratio, name_of(far)), [far, ratio](Inputs& in) { return build(in, far, ratio); });
  }
  for (const int64_t tokens : {1, 64, 4096}) {
    cases.bench(fmt::format("T{}", tokens), [tokens](Inputs& in) { return build(in, step_bench(in, tokens), 1); });
  }
}

void add_random_slot_mapping(CaseList& list, Draw& draw) {
  StepShape s = random_step(draw);
  const int32_t ratio = draw.of({1, 4, 128});
  if (draw.chance(0.1)) s.first_page = 2'000'000'000;
  CaseAdder<SlotMappingParams>(list, "slot_mapping", &OpSet::slot_mapping)
      .drawn(draw.name(fmt::format("r{}-{}", ratio, name_of(s))), [=](Inputs& in) { return build(in, s, ratio); });
}

}  // namespace strata::testkit
