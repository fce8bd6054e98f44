#include <fmt/format.h>

#include <limits>

#include "testkit/cases/indices_case.h"
#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

struct GlobalShape {
  StepShape step;
  int64_t k = 64;
  double skipped = 0.2;  // share of entries that are -1, anywhere in the row
  double beyond = 0.0;   // share of entries whose block is past the table
  bool in_place = false;
  int64_t padding = 0;
};

Built<ComputeGlobalTopkParams> build(Inputs& in, const GlobalShape& s) {
  constexpr int64_t kRatio = 4;
  const Step step = make_step(in, s.step, kRatio);
  const int64_t tokens = step.tokens.size();
  const int64_t table_rows = step.paging.max_blocks * s.step.page_size;
  std::vector<int32_t> local(static_cast<size_t>(tokens * s.k));
  for (int64_t t = 0; t < tokens; ++t) {
    const bool valid = step.tokens.valid[static_cast<size_t>(t)] != 0 || !s.step.with_validity;
    const int64_t entries = step.paging.rows[static_cast<size_t>(step.tokens.token_to_req[static_cast<size_t>(t)])];
    for (int64_t i = 0; i < s.k; ++i) {
      int32_t& entry = local[static_cast<size_t>(t * s.k + i)];
      entry = entries == 0 || in.rng().chance(s.skipped) ? -1 : static_cast<int32_t>(in.rng().in(0, entries));
      if (in.rng().chance(s.beyond)) {
        const int32_t far[] = {std::numeric_limits<int32_t>::max(), static_cast<int32_t>(table_rows), static_cast<int32_t>(table_rows + 1)};
        entry = far[in.rng().next() % 3];
      }
      if (!valid) entry = in.rng().chance(0.5) ? std::numeric_limits<int32_t>::max() - 1 : 3;  // stale
    }
  }
  ComputeGlobalTopkParams p;
  p.topk_indices = in.values(DType::i32, {tokens, s.k}, local, {.inner = s.padding});
  p.token_to_req = step.token_to_req;
  p.is_valid_token = step.is_valid_token;
  p.block_table = step.block_table;
  p.page_size = s.step.page_size;
  p.global_indices = s.in_place ? p.topk_indices : in.output(DType::i32, {tokens, s.k}, {.inner = 2 * s.padding});
  p.lens = in.output(DType::i32, {tokens});
  return {.params = p,
          .outputs = {view_output("global_indices", p.global_indices, exact()), view_output("lens", p.lens, exact())},
          .bytes = static_cast<double>(tokens) * (8.0 * static_cast<double>(s.k) + 9),
          .flops = 0};
}

std::string name_of(const GlobalShape& s) {
  return fmt::format("k{}-{}{}{}{}{}", s.k, name_of(s.step), s.skipped == 1.0 ? "-all_skipped" : "", s.beyond > 0 ? "-beyond" : "",
                     s.in_place ? "-in_place" : "", s.padding > 0 ? "-rows_strided" : "");
}

}  // namespace

void add_compute_global_topk(CaseList& list) {
  CaseAdder<ComputeGlobalTopkParams> cases(list, "compute_global_topk", &OpSet::compute_global_topk);
  const auto test = [&](const GlobalShape& s) { cases.test(name_of(s), [s](Inputs& in) { return build(in, s); }); };
  for (const StepShape& step : step_tests()) test({.step = step});
  const StepShape mixed = step_tests()[4], partly_invalid = step_tests()[8];
  for (const int64_t k : {1, 7, 512, 2048, 2500}) test({.step = mixed, .k = k});
  test({.step = mixed, .skipped = 1.0});
  test({.step = mixed, .beyond = 0.3});
  test({.step = partly_invalid, .beyond = 0.3, .in_place = true});
  test({.step = partly_invalid, .k = 33, .padding = 3});
  test({.step = mixed, .k = 33, .in_place = true, .padding = 5});
  // Several runs of columns a thread on a GPU.
  for (const bool in_place : {false, true}) {
    for (const int64_t k : {36, 2500, 2501}) {
      cases.test(fmt::format("T300-k{}{}", k, in_place ? "-in_place" : ""),
                 [in_place, k](Inputs& in) { return build(in, {.step = step_bench(in, 300), .k = k, .in_place = in_place}); });
    }
  }
  for (const int64_t tokens : {1, 64, 4096}) {
    for (const int64_t k : {512, 2048}) {
      cases.bench(fmt::format("T{}-k{}", tokens, k),
                  [tokens, k](Inputs& in) { return build(in, {.step = step_bench(in, tokens), .k = k, .skipped = 0}); });
    }
  }
}

void add_random_compute_global_topk(CaseList& list, Draw& draw) {
  GlobalShape s{.step = random_step(draw)};
  s.k = draw.size(1, 2100);
  s.skipped = draw.of({0.2, 0.0, 1.0});
  s.beyond = draw.of({0.0, 0.2});
  s.in_place = draw.chance(0.3);
  s.padding = draw.padding().inner;
  CaseAdder<ComputeGlobalTopkParams>(list, "compute_global_topk", &OpSet::compute_global_topk)
      .drawn(draw.name(name_of(s)), [=](Inputs& in) { return build(in, s); });
}

}  // namespace strata::testkit
