#include <fmt/format.h>

#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

struct TableShape {
  int64_t rows = 1;
  int64_t width = 1;
  int64_t segments_per_row = 1;
  int64_t longest = 1;  // entries of a segment: 0 to `longest`
  int64_t table_padding = 0;
};

Built<ScatterBlockTablesParams> build(Inputs& in, const TableShape& s) {
  // Each segment has a range of its row's columns to itself, and lies somewhere in it.
  const int64_t part = s.segments_per_row > 0 ? s.width / s.segments_per_row : 0;
  std::vector<int32_t> segments, entries;
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t i = 0; i < s.segments_per_row; ++i) {
      const int64_t count = in.rng().in(0, std::min(s.longest, part) + 1);
      const int64_t column = i * part + in.rng().in(0, part - count + 1);
      for (const int64_t value : {row, column, std::ssize(entries), count}) segments.push_back(static_cast<int32_t>(value));
      for (int64_t k = 0; k < count; ++k) entries.push_back(static_cast<int32_t>(in.rng().in(0, 1 << 30)));
    }
  }
  ScatterBlockTablesParams p;
  p.entries = in.i32(entries);
  p.segments = in.values(DType::i32, {std::ssize(segments) / 4, 4}, segments);
  p.block_table = in.output(DType::i32, {s.rows, s.width}, {.inner = s.table_padding});
  return {.params = p,
          .outputs = {view_output("block_table", p.block_table, exact())},
          .bytes = 8.0 * static_cast<double>(entries.size()) + 4.0 * static_cast<double>(segments.size()),
          .flops = 0};
}

std::string name_of(const TableShape& s) {
  return fmt::format("R{}-width{}-S{}-longest{}", s.rows, s.width, s.segments_per_row, s.longest);
}

}  // namespace

void add_scatter_block_tables(CaseList& list) {
  CaseAdder<ScatterBlockTablesParams> cases(list, "scatter_block_tables", &OpSet::scatter_block_tables);
  for (const TableShape& s : {TableShape{1, 1, 1, 1}, TableShape{3, 40, 0, 0}, TableShape{5, 33, 1, 33}, TableShape{7, 200, 3, 50, 5},
                              TableShape{64, 900, 7, 128}, TableShape{2, 20000, 2, 9000, 3}, TableShape{300, 12, 4, 0}}) {
    cases.test(name_of(s), [s](Inputs& in) { return build(in, s); });
  }
  // Decode requests of 8192, 131072 and 1048576 positions: what the compressed groups of V4 need.
  for (const int64_t longest : {32, 512, 4096}) {
    const TableShape s{64, 7 * longest, 7, longest};
    cases.bench(name_of(s), [s](Inputs& in) { return build(in, s); });
  }
}

void add_random_scatter_block_tables(CaseList& list, Draw& draw) {
  TableShape s;
  s.rows = draw.size(1, 400);
  s.width = draw.size(1, std::min<int64_t>(1'000'000 / s.rows, 40'000));
  s.segments_per_row = draw.size(0, std::min<int64_t>(s.width, 12));
  s.longest = draw.size(0, s.width);
  s.table_padding = draw.padding().inner;
  CaseAdder<ScatterBlockTablesParams>(list, "scatter_block_tables", &OpSet::scatter_block_tables)
      .drawn(draw.name(name_of(s)), [=](Inputs& in) { return build(in, s); });
}

}  // namespace strata::testkit
