#include "testkit/cases/indices_case.h"

#include <fmt/format.h>

#include <limits>

namespace strata::testkit {

Step make_step(Inputs& in, const StepShape& s, int64_t ratio) {
  Step step;
  step.tokens = make_tokens(s.requests, s.padding_tokens);
  // Without validity there is no padding: every token counts.
  for (uint8_t& valid : step.tokens.valid) {
    if (in.rng().chance(s.invalid)) valid = 0;
  }
  std::vector<int64_t> rows;
  for (const RequestShape& r : s.requests) rows.push_back(r.seq_len / ratio);
  if (rows.empty()) rows.push_back(0);
  step.paging = make_paging(in.rng(), s.page_size, std::move(rows));
  for (int32_t& page : step.paging.blocks) {
    if (page != std::numeric_limits<int32_t>::max()) page += s.first_page;
  }
  step.positions = in.i64(step.tokens.positions);
  step.token_to_req = in.i32(step.tokens.token_to_req);
  if (s.with_validity) step.is_valid_token = in.u8(step.tokens.valid);
  step.block_table = step.paging.table(in, {.inner = s.table_padding});
  return step;
}

std::string name_of(const StepShape& s) {
  std::string name = fmt::format("B{}", s.page_size);
  name += name_of(s.requests);
  if (s.padding_tokens > 0) name += fmt::format("-pad{}", s.padding_tokens);
  if (s.invalid > 0) name += "-invalid";
  if (!s.with_validity) name += "-all_valid";
  if (s.table_padding > 0) name += "-strided";
  if (s.first_page > 0) name += fmt::format("-page+{}", s.first_page);
  return name + s.suffix;
}

std::vector<StepShape> step_tests() {
  const std::vector<RequestShape> mixed{{1, 1}, {3, 1}, {4, 2}, {128, 1}, {129, 3}, {301, 8}, {5, 0}, {700, 64}};
  std::vector<StepShape> tests;
  for (const int32_t page_size : {1, 2, 53, 61, 64, 69, 256, 576}) tests.push_back({.requests = mixed, .page_size = page_size});
  tests.push_back({.requests = mixed, .padding_tokens = 5, .invalid = 0.2, .table_padding = 3});
  tests.push_back({.requests = {{4, 4}, {17, 1}}, .padding_tokens = 9, .invalid = 1.0});
  tests.push_back({.requests = mixed, .with_validity = false});
  tests.push_back({.requests = {{300, 300}}});
  tests.push_back({.requests = {{1, 1}}});
  tests.push_back({.requests = {}});
  tests.push_back({.requests = {}, .padding_tokens = 3});
  return tests;
}

StepShape step_bench(Inputs& in, int64_t tokens) {
  constexpr int64_t kContext = 4096;
  if (tokens == 4096) return {.requests = {{kContext, in.share(tokens)}}};
  return {.requests = std::vector<RequestShape>(static_cast<size_t>(in.share(tokens)), {kContext, 1})};
}

StepShape random_step(Draw& draw) {
  StepShape s;
  s.requests = draw.requests({.tokens = 1000, .positions = 100'000, .visible = 1e9});
  s.with_validity = draw.chance(0.8);
  if (s.with_validity && draw.chance(0.3)) s.padding_tokens = draw.size(1, 40);
  if (s.with_validity) s.invalid = draw.of({0.0, 0.0, 0.2, 1.0});
  s.page_size = draw.page_size();
  s.table_padding = draw.padding().inner;
  return s;
}

}  // namespace strata::testkit
