#include <fmt/format.h>

#include "testkit/harness/paging.h"
#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

struct SaveShape {
  int64_t tokens = 1;
  int64_t width = 2048;  // 2 * coff * d
  int64_t ratio = 4;
  int32_t page_size = 4;
  int64_t extra_stride = 0;
  int64_t padding = 0;
  double skipped = 0.2;
};

Built<SavePartialStatesParams> build(Inputs& in, const SaveShape& s) {
  const int64_t tokens = in.share(s.tokens);
  SavePartialStatesParams p;
  p.kv_score = in.f32({tokens, s.width}, 1.0, {.inner = s.padding});
  p.ape = in.f32({s.ratio, s.width / 2});
  std::vector<int64_t> positions(static_cast<size_t>(tokens));
  for (int64_t& position : positions) position = in.rng().in(0, 1 << 20);
  p.positions = in.i64(positions);
  const int64_t num_pages = tokens / s.page_size + 2;
  std::vector<int64_t> slots = distinct_slots(in.rng(), tokens, num_pages * s.page_size);
  for (int64_t& slot : slots) {
    if (in.rng().chance(s.skipped)) slot = -1;
  }
  p.state_slots = in.i64(slots);
  p.state = in.cache({.format = KvFormat::state_f32,
                      .row_dim = static_cast<int32_t>(s.width),
                      .page_size = s.page_size,
                      .num_pages = num_pages,
                      .extra_stride = s.extra_stride},
                     {});
  const double t = static_cast<double>(tokens), w = static_cast<double>(s.width);
  return {.params = p,
          .outputs = {cache_output("state", p.state, {}, exact())},
          .bytes = t * (8 * w + 16) + 2 * static_cast<double>(s.ratio) * w,
          .flops = t * w / 2};
}

std::string name_of(const SaveShape& s) {
  return fmt::format("T{}-W{}-r{}-B{}{}{}", s.tokens, s.width, s.ratio, s.page_size,
                     s.extra_stride > 0 ? fmt::format("-stride+{}", s.extra_stride) : "", s.padding > 0 ? "-strided" : "");
}

}  // namespace

void add_save_partial_states(CaseList& list) {
  CaseAdder<SavePartialStatesParams> cases(list, "save_partial_states", &OpSet::save_partial_states);
  const auto test = [&](const SaveShape& s) { cases.test(name_of(s), [s](Inputs& in) { return build(in, s); }); };
  for (const auto& [width, ratio, page_size] : {std::tuple{2048, 4, 4}, std::tuple{512, 4, 4}, std::tuple{1024, 128, 8}}) {
    for (const int64_t tokens : {0, 1, 3, 17, 64}) test({tokens, width, ratio, page_size});
    test({17, width, ratio, page_size, 256});
    test({17, width, ratio, page_size, 3});  // rows that are not aligned to a float
    test({17, width, ratio, page_size, 0, 64});
    for (const int32_t other : {1, 2, 53, 256}) test({17, width, ratio, other});
  }
  test({300, 512, 4, 4});
  test({9, 10, 3, 5});
  test({9, 1992, 4, 4, 0, 1});  // rows of any alignment
  test({9, 2, 1, 2});
  for (const int64_t tokens : {1, 64, 4096}) {
    for (const auto& [width, ratio, page_size] : {std::tuple{2048, 4, 4}, std::tuple{1024, 128, 8}}) {
      const SaveShape s{.tokens = tokens, .width = width, .ratio = ratio, .page_size = page_size, .skipped = 0};
      cases.bench(name_of(s), [s](Inputs& in) { return build(in, s); });
    }
  }
}

void add_random_save_partial_states(CaseList& list, Draw& draw) {
  SaveShape s;
  s.width = 2 * draw.size(1, 1024);
  s.ratio = draw.chance(0.7) ? draw.of<int64_t>({4, 128}) : draw.size(1, 200);
  s.tokens = draw.tokens(std::min<int64_t>(1'000'000 / s.width, 2000));
  s.page_size = draw.page_size();
  s.extra_stride = draw.page_gap();
  s.padding = draw.padding().inner;
  s.skipped = draw.of({0.2, 0.0, 1.0});
  CaseAdder<SavePartialStatesParams>(list, "save_partial_states", &OpSet::save_partial_states)
      .drawn(draw.name(name_of(s)), [=](Inputs& in) { return build(in, s); });
}

}  // namespace strata::testkit
