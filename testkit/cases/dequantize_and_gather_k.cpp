#include <fmt/format.h>

#include <algorithm>

#include "testkit/harness/paging.h"
#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

struct GatherShape {
  std::vector<int64_t> seq_lens;
  std::vector<int64_t> gather_lens;  // empty: none given, all rows
  KvFormat format = KvFormat::fp8_ds_mla_v4;
  int32_t dim = 512;
  int32_t page_size = 64;
  int64_t extra_stride = 0;
  int64_t offset = 0;
  Padding padding{};
  float cache_scale = 0.125f;
  std::string suffix{};
};

std::vector<int32_t> narrow(const std::vector<int64_t>& v) { return {v.begin(), v.end()}; }

Built<DequantizeAndGatherKParams> build(Inputs& in, const GatherShape& s) {
  const Paging paging = make_paging(in.rng(), s.page_size, s.seq_lens);
  std::vector<int64_t> read;  // rows that nothing may look at hold NaN
  int64_t longest = 0;
  double rows = 0;
  for (size_t r = 0; r < s.seq_lens.size(); ++r) {
    const int64_t count = s.gather_lens.empty() ? s.seq_lens[r] : s.gather_lens[r];
    longest = std::max(longest, count);
    rows += static_cast<double>(count);
    for (int64_t row = s.seq_lens[r] - count; row < s.seq_lens[r]; ++row) read.push_back(paging.slot(static_cast<int64_t>(r), row));
  }
  DequantizeAndGatherKParams p;
  p.cache = in.cache({.format = s.format,
                      .row_dim = s.dim,
                      .page_size = s.page_size,
                      .num_pages = paging.num_pages,
                      .extra_stride = s.extra_stride,
                      .scale = s.cache_scale},
                     read);
  p.seq_lens = in.i32(narrow(s.seq_lens));
  if (!s.gather_lens.empty()) p.gather_lens = in.i32(narrow(s.gather_lens));
  p.block_table = paging.table(in);
  p.offset = s.offset;
  p.out = in.output(DType::bf16, {static_cast<int64_t>(s.seq_lens.size()), s.offset + longest + 2, s.dim}, s.padding);
  return {.params = p,
          .outputs = {view_output("out", p.out, exact())},
          .bytes = rows * static_cast<double>(row_bytes(s.format, s.dim) + 2 * s.dim),
          .flops = rows * s.dim};
}

std::string name_of(const GatherShape& s) {
  const auto lengths = [](const std::vector<int64_t>& v) {
    return v.size() > 12 ? fmt::format("_of_{}", v.size()) : fmt::format("{}", fmt::join(v, "+"));
  };
  std::string name = fmt::format("{}-D{}-B{}-rows{}", to_string(s.format), s.dim, s.page_size, lengths(s.seq_lens));
  if (!s.gather_lens.empty()) name += "-last" + lengths(s.gather_lens);
  if (s.offset > 0) name += fmt::format("-at{}", s.offset);
  if (s.extra_stride > 0) name += fmt::format("-stride+{}", s.extra_stride);
  if (s.padding.inner + s.padding.outer > 0) name += "-strided";
  return name + s.suffix;
}

}  // namespace

void add_dequantize_and_gather_k(CaseList& list) {
  CaseAdder<DequantizeAndGatherKParams> cases(list, "dequantize_and_gather_k", &OpSet::dequantize_and_gather_k);
  const auto test = [&](const GatherShape& s) { cases.test(name_of(s), [s](Inputs& in) { return build(in, s); }); };
  const std::pair<KvFormat, int32_t> formats[] = {
      {KvFormat::fp8_ds_mla_v4, 512}, {KvFormat::bf16, 512},          {KvFormat::bf16, 37},       {KvFormat::fp8_tensor, 512},
      {KvFormat::indexer_fp8, 128},   {KvFormat::indexer_mxfp4, 128}, {KvFormat::fp8_ds_mla, 576}};
  for (const auto& [format, dim] : formats) {
    GatherShape s{.seq_lens = {1}, .gather_lens = {}, .format = format, .dim = dim};
    test(s);
    s.seq_lens = {70, 0, 3, 129};
    test(s);
    s.gather_lens = {70, 0, 1, 66};
    s.offset = 5;
    test(s);
    for (const int32_t page_size : {1, 2, 53, 61, 69, 256, 576}) {
      s.page_size = page_size;
      s.extra_stride = page_size % 2 == 0 ? 576 : 7;
      test(s);
    }
    s.padding = {.inner = 3, .outer = 100};
    test(s);
  }
  test({.seq_lens = {}, .gather_lens = {}});
  test({.seq_lens = {0, 0}, .gather_lens = {}});
  // A chunk of V4 prefill: the window rows follow the compressed rows.
  test({.seq_lens = {300, 128, 17}, .gather_lens = {227, 128, 17}, .offset = 256});
  test({.seq_lens = {75, 32, 4}, .gather_lens = {}, .page_size = 2, .extra_stride = 560});
  // More requests than lanes of a warp, and more rows than a warp of a full grid looks up at a time.
  GatherShape many{.seq_lens = {}, .gather_lens = {}, .suffix = "-many"};
  for (int64_t r = 0; r < 77; ++r) {
    many.seq_lens.push_back(r * 5 % 23);
    many.gather_lens.push_back(many.seq_lens.back() / (r % 3 + 1));
  }
  GatherShape narrow{.seq_lens = {150000, 0, 90001}, .gather_lens = {}, .format = KvFormat::bf16, .dim = 8};
  for (const GatherShape& s : {many, narrow}) {
    cases.heavy(s.suffix.empty() ? name_of(s) : fmt::format("requests{}", s.seq_lens.size()), [s](Inputs& in) { return build(in, s); });
  }
  const auto bench = [&](const GatherShape& s) {
    cases.bench(name_of(s), [s](Inputs& in) {
      GatherShape shared = s;
      for (int64_t& n : shared.seq_lens) n = in.share(n);
      return build(in, shared);
    });
  };
  for (const int64_t rows : {1, 64, 4096}) {
    const std::vector<int64_t> seq_lens(rows == 4096 ? 4 : 1, rows);
    bench({.seq_lens = seq_lens, .gather_lens = {}, .extra_stride = 64});
    bench({.seq_lens = seq_lens, .gather_lens = {}, .format = KvFormat::fp8_ds_mla, .dim = 576});
  }
}

void add_random_dequantize_and_gather_k(CaseList& list, Draw& draw) {
  GatherShape s{.seq_lens = {}, .gather_lens = {}};
  s.format = draw.of({KvFormat::fp8_ds_mla_v4, KvFormat::fp8_ds_mla, KvFormat::bf16, KvFormat::fp8_tensor, KvFormat::indexer_fp8,
                      KvFormat::indexer_mxfp4});
  const int32_t any = static_cast<int32_t>(draw.size(1, 600));
  s.dim = s.format == KvFormat::fp8_ds_mla_v4 ? 512 : s.format == KvFormat::fp8_ds_mla ? 576 : 128;
  if (s.format == KvFormat::bf16 || s.format == KvFormat::fp8_tensor) s.dim = any;
  const int64_t rows = std::min<int64_t>(4'000'000 / s.dim, 50'000);
  const bool parts = draw.chance(0.5);
  int64_t longest = 1;
  // The output has as many rows of every request as of the longest.
  for (const RequestShape& r : draw.requests({.tokens = 200, .positions = rows, .visible = 1e9})) {
    longest = std::max(longest, r.seq_len);
    if (longest * (std::ssize(s.seq_lens) + 1) > rows) break;
    s.seq_lens.push_back(r.seq_len);
    if (parts) s.gather_lens.push_back(draw.size(0, r.seq_len));
  }
  s.page_size = draw.page_size();
  s.extra_stride = draw.page_gap();
  if (draw.chance(0.4)) s.offset = draw.size(1, 300);
  s.padding = draw.padding();
  s.cache_scale = draw.of({0.125f, 1.0f, 7.0f});
  CaseAdder<DequantizeAndGatherKParams>(list, "dequantize_and_gather_k", &OpSet::dequantize_and_gather_k)
      .drawn(draw.name(name_of(s)), [=](Inputs& in) { return build(in, s); });
}

}  // namespace strata::testkit
