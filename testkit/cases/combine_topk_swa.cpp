#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "testkit/harness/paging.h"
#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

struct CombineShape {
  std::vector<RequestShape> requests;
  int32_t ratio = 4;
  int32_t top_k = 64;
  int32_t window = 128;
  int64_t extra_columns = 0;  // of the output, beyond top_k + window
  int64_t extra_gather = 0;   // older rows that were gathered too
  int64_t padding = 0;
};

Built<CombineTopkSwaParams> build(Inputs& in, const CombineShape& s) {
  const StepTokens tokens = make_tokens(s.requests);
  constexpr int32_t kFirstToken = 1000;  // query_start_loc counts the tokens of the whole step
  std::vector<int32_t> starts{kFirstToken}, seq_lens, gather_lens, selection;
  int64_t n = 0, longest = 0;
  for (const RequestShape& r : s.requests) {
    starts.push_back(starts.back() + static_cast<int32_t>(r.query_len));
    seq_lens.push_back(static_cast<int32_t>(r.seq_len));
    const int64_t gather = std::min(r.seq_len, r.query_len + s.window - 1 + s.extra_gather);
    gather_lens.push_back(static_cast<int32_t>(gather));
    longest = std::max(longest, gather);
    n = std::max(n, r.seq_len / s.ratio);
  }
  for (int64_t t = 0; t < tokens.size(); ++t) {
    const int64_t visible = (tokens.positions[static_cast<size_t>(t)] + 1) / s.ratio, count = std::min<int64_t>(visible, s.top_k);
    for (int64_t i = 0; i < s.top_k; ++i) {
      // After the entries that the position allows, the buffer may hold any number.
      selection.push_back(i < count ? static_cast<int32_t>(in.rng().in(0, visible)) : in.rng().chance(0.5) ? -1 : 1 << 30);
    }
  }
  CombineTopkSwaParams p;
  if (s.top_k > 0) p.topk_indices = in.values(DType::i32, {tokens.size(), s.top_k}, selection, {.inner = s.padding});
  p.query_start_loc = in.i32(starts);
  p.seq_lens = in.i32(seq_lens);
  p.gather_lens = in.i32(gather_lens);
  p.window = s.window;
  p.ratio = s.ratio;
  p.top_k = s.top_k;
  p.n = s.top_k > 0 ? n : 0;
  p.m = p.n + longest + 3;
  const int64_t width = int64_t{s.top_k} + s.window + s.extra_columns;
  p.combined_indices = in.output(DType::i32, {tokens.size(), width}, {.inner = s.padding});
  p.combined_lens = in.output(DType::i32, {tokens.size()});
  return {.params = p,
          .outputs = {view_output("combined_indices", p.combined_indices, exact()), view_output("combined_lens", p.combined_lens, exact())},
          .bytes = static_cast<double>(tokens.size()) * (4.0 * static_cast<double>(width + s.top_k) + 4),
          .flops = 0};
}

std::string name_of(const CombineShape& s) {
  std::string name = fmt::format("r{}-k{}-W{}", s.ratio, s.top_k, s.window);
  if (s.requests.size() > 10) {
    name += fmt::format("-{}requests", s.requests.size());
  } else {
    for (const RequestShape& r : s.requests) name += fmt::format("-{}of{}", r.query_len, r.seq_len);
  }
  if (s.extra_columns > 0) name += fmt::format("-columns+{}", s.extra_columns);
  if (s.extra_gather > 0) name += fmt::format("-gather+{}", s.extra_gather);
  return name + (s.padding > 0 ? "-strided" : "");
}

}  // namespace

void add_combine_topk_swa(CaseList& list) {
  CaseAdder<CombineTopkSwaParams> cases(list, "combine_topk_swa", &OpSet::combine_topk_swa);
  const auto test = [&](const CombineShape& s) { cases.test(name_of(s), [s](Inputs& in) { return build(in, s); }); };
  const std::vector<RequestShape> requests{{300, 100}, {17, 17}, {128, 1}, {40, 0}, {700, 64}, {1, 1}};
  for (const auto& [ratio, top_k] : {std::pair{1, 0}, std::pair{4, 64}, std::pair{4, 512}, std::pair{128, 8}, std::pair{128, 128}}) {
    test({requests, ratio, top_k});
    test({.requests = requests, .ratio = ratio, .top_k = top_k, .extra_columns = 61, .extra_gather = 20});
    test({.requests = requests, .ratio = ratio, .top_k = top_k, .window = 5});
    test({.requests = requests, .ratio = ratio, .top_k = top_k, .extra_columns = 3, .padding = 7});
    test({{{1, 1}}, ratio, top_k});
    test({{{3, 3}, {4, 4}, {5, 5}}, ratio, top_k});
    test({{}, ratio, top_k});
  }
  // More requests than a warp has lanes, several in a row without tokens.
  std::vector<RequestShape> many;
  for (int64_t r = 0; r < 100; ++r) many.push_back({200 + r, r % 7 < 4 ? r % 7 : 0});
  test({many, 4, 64});
  test({many, 1, 0});
  test({.requests = {{9000, 40}}, .top_k = 2048});   // rows wider than a block has threads
  test({.requests = {{9000, 300}}, .top_k = 2048});  // several runs of columns a thread on a GPU
  test({.requests = {{9000, 300}}, .top_k = 64, .padding = 7});
  for (const int64_t tokens : {1, 64, 4096}) {
    for (const int32_t top_k : {512, 2048}) {
      cases.bench(fmt::format("T{}-k{}", tokens, top_k), [tokens, top_k](Inputs& in) {
        const int64_t n = in.share(tokens);
        return build(in, {.requests = {{16384, n}}, .top_k = top_k});
      });
    }
  }
}

void add_random_combine_topk_swa(CaseList& list, Draw& draw) {
  CombineShape s{.requests = draw.requests({.tokens = 1000, .positions = 100'000, .visible = 1e9})};
  s.ratio = draw.of({1, 4, 128});
  s.top_k = s.ratio == 1 ? 0 : static_cast<int32_t>(draw.size(0, 2100));
  s.window = static_cast<int32_t>(draw.chance(0.5) ? 128 : draw.size(1, 700));
  if (draw.chance(0.5)) s.extra_columns = draw.size(1, 100);
  if (draw.chance(0.3)) s.extra_gather = draw.size(1, 100);
  s.padding = draw.padding().inner;
  CaseAdder<CombineTopkSwaParams>(list, "combine_topk_swa", &OpSet::combine_topk_swa).drawn(draw.name(name_of(s)), [=](Inputs& in) {
    return build(in, s);
  });
}

}  // namespace strata::testkit
