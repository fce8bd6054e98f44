#include <fmt/format.h>

#include "testkit/harness/paging.h"
#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

struct InsertShape {
  int64_t tokens = 1;
  int64_t heads = 8;
  KvFormat format = KvFormat::fp8_ds_mla_v4;
  int32_t page_size = 64;
  int64_t extra_stride = 0;
  int64_t padded_heads = 0;  // 0: as many as heads
  int64_t unmapped = 0;      // tokens at the end without an entry in slot_mapping
  double skipped = 0.2;      // share of slots that are -1
  bool cache = true;
  bool e4m3_q = false;
  bool in_place = false;
  Padding padding{};
  double scale = 1.0;  // of kv
  int32_t dim = 512;
  int64_t rotary = 64;
  const char* suffix = "";
};

Built<QNormRopeKvInsertParams> build(Inputs& in, const InsertShape& s) {
  const int64_t tokens = in.share(s.tokens), mapped = tokens - std::min(s.unmapped, tokens);
  constexpr int64_t kPositions = 257;
  QNormRopeKvInsertParams p;
  p.q = in.bf16({tokens, s.heads, s.dim}, 2.0, s.padding);
  p.kv = in.bf16({tokens, s.dim}, s.scale, {.inner = s.padding.inner});
  std::vector<int64_t> positions(static_cast<size_t>(tokens));
  for (int64_t& position : positions) position = in.rng().in(0, kPositions);
  p.positions = in.i64(positions);
  p.cos_sin = in.rope_table(kPositions, s.rotary);
  const bool is_lossy = s.format == KvFormat::fp8_tensor;
  std::vector<int64_t> written;
  if (s.cache) {
    const int64_t num_pages = tokens / s.page_size + 2;
    written = map_slots(in, mapped, num_pages * s.page_size, s.skipped, p.slot_mapping);
    p.cache = in.cache({.format = s.format,
                        .row_dim = s.dim,
                        .page_size = s.page_size,
                        .num_pages = num_pages,
                        .extra_stride = s.extra_stride,
                        .scale = 0.0625f},
                       {});
  }
  const int64_t padded_heads = std::max(s.padded_heads, s.heads);
  p.q_out = s.in_place ? p.q : in.output(s.e4m3_q ? DType::e4m3 : DType::bf16, {tokens, padded_heads, s.dim}, s.padding);
  p.q_scale_inv = s.e4m3_q ? 37.0f : 1.0f;
  std::vector<Output> outputs{view_output("q_out", p.q_out, s.e4m3_q ? code_step() : bf16_rounding())};
  // Quantised dimensions that are not rotated depend on nothing that may round differently; rotated dimensions are 1/8 of a row.
  Tolerance rows = code_step(is_lossy ? 0.01 : 0.005);
  rows.abs_rms = 2e-6;
  rows.beyond = 0;
  if (s.cache) outputs.push_back(cache_output("cache", p.cache, written, rows));
  const double t = static_cast<double>(tokens), h = static_cast<double>(s.heads);
  const double dim = static_cast<double>(s.dim), rotary = static_cast<double>(s.rotary);
  const double row = static_cast<double>(s.cache ? row_bytes(s.format, s.dim) : 0);
  return {.params = p,
          .outputs = std::move(outputs),
          .bytes = t * (dim * h * (2 + (s.e4m3_q ? 1 : 2)) + 2 * dim + 4 * rotary + row + 16),
          .flops = t * h * (4 * dim + 6 * rotary)};
}

std::string name_of(const InsertShape& s) {
  std::string name = fmt::format("T{}-H{}", s.tokens, s.heads);
  if (s.padded_heads > 0) name += fmt::format("of{}", s.padded_heads);
  if (s.dim != 512 || s.rotary != 64) name += fmt::format("-D{}-R{}", s.dim, s.rotary);
  name += s.cache ? fmt::format("-{}-B{}", to_string(s.format), s.page_size) : "-no_cache";
  if (s.extra_stride > 0) name += fmt::format("-stride+{}", s.extra_stride);
  if (s.unmapped > 0) name += fmt::format("-unmapped{}", s.unmapped);
  if (s.e4m3_q) name += "-q_e4m3";
  if (s.in_place) name += "-in_place";
  if (s.padding.inner > 0 || s.padding.outer > 0) name += fmt::format("-strided{}", s.padding.inner);
  return name + s.suffix;
}

}  // namespace

void add_qnorm_rope_kv_insert(CaseList& list) {
  CaseAdder<QNormRopeKvInsertParams> cases(list, "qnorm_rope_kv_insert", &OpSet::qnorm_rope_kv_insert);
  const auto test = [&](const InsertShape& s) { cases.test(name_of(s), [s](Inputs& in) { return build(in, s); }); };
  constexpr auto kV4 = KvFormat::fp8_ds_mla_v4;
  for (const int64_t tokens : {0, 1, 3, 17, 64, 300}) test({tokens, 8, kV4, 64, 64});
  for (const int64_t heads : {1, 3, 16, 24, 32, 63, 64, 96, 126, 128}) test({.tokens = 5, .heads = heads});
  for (const int32_t page_size : {2, 53, 61, 69, 256, 576}) test({.tokens = 33, .heads = 2, .page_size = page_size});
  for (const int64_t extra : {1, 64, 577, 37440}) test({.tokens = 33, .heads = 1, .format = kV4, .page_size = 4, .extra_stride = extra});
  for (const auto format : {KvFormat::bf16, KvFormat::fp8_tensor}) {
    test({.tokens = 1, .heads = 8, .format = format});
    test({.tokens = 33, .heads = 3, .format = format, .page_size = 53, .extra_stride = 5});
    test({.tokens = 33, .heads = 3, .format = format, .page_size = 2, .extra_stride = 512});
  }
  test({.tokens = 33, .heads = 8, .format = KvFormat::fp8_tensor, .e4m3_q = true});
  test({.tokens = 9, .heads = 16, .padded_heads = 64});
  test({.tokens = 9, .heads = 126, .padded_heads = 128});
  test({.tokens = 300, .heads = 15, .padded_heads = 16});
  test({.tokens = 300, .heads = 16, .format = KvFormat::fp8_tensor, .e4m3_q = true});
  test({.tokens = 17, .heads = 8, .unmapped = 5});
  test({.tokens = 17, .heads = 8, .unmapped = 17});
  test({.tokens = 17, .heads = 8, .cache = false});
  test({.tokens = 17, .heads = 8, .in_place = true});
  test({.tokens = 17, .heads = 3, .in_place = true, .padding = {.inner = 1, .outer = 3}});
  test({.tokens = 17, .heads = 5, .padded_heads = 8, .padding = {.inner = 64, .outer = 17}});
  test({.tokens = 17, .heads = 1, .skipped = 1.0, .suffix = "-all_skipped"});
  test({.tokens = 17, .heads = 1, .scale = 0.0, .suffix = "-zero_kv"});
  test({.tokens = 17, .heads = 1, .scale = 1e-5, .suffix = "-tiny_kv"});
  test({.tokens = 17, .heads = 1, .scale = 3e4, .suffix = "-huge_kv"});
  // Vectors that are not V4's.
  for (const auto format : {KvFormat::bf16, KvFormat::fp8_tensor}) {
    test({.tokens = 17, .heads = 3, .format = format, .dim = 512, .rotary = 32});
    test({.tokens = 17, .heads = 3, .format = format, .dim = 128});
    test({.tokens = 17, .heads = 3, .format = format, .page_size = 5, .padded_heads = 4, .dim = 101, .rotary = 34});
  }
  test({.tokens = 17, .heads = 3, .format = KvFormat::fp8_tensor, .e4m3_q = true, .dim = 77, .rotary = 2});
  // Strides that keep 16-byte alignment, quantised values that do not.
  test({.tokens = 33, .heads = 5, .format = KvFormat::fp8_tensor, .e4m3_q = true, .padding = {.inner = 16, .outer = 32}});
  test({.tokens = 33, .heads = 5, .format = KvFormat::fp8_tensor, .e4m3_q = true, .padding = {.inner = 8, .outer = 8}});
  cases.heavy(name_of({.tokens = 1031, .heads = 16}), [](Inputs& in) { return build(in, {.tokens = 1031, .heads = 16}); });
  const auto bench = [&](const InsertShape& s) { cases.bench(name_of(s), [s](Inputs& in) { return build(in, s); }); };
  for (const int64_t tokens : {1, 64, 4096}) {
    for (const int64_t heads : {8, 64, 128}) bench({.tokens = tokens, .heads = heads, .extra_stride = 64, .skipped = 0});
    bench({.tokens = tokens, .heads = 128, .format = KvFormat::fp8_tensor, .skipped = 0, .e4m3_q = true});
  }
}

void add_random_qnorm_rope_kv_insert(CaseList& list, Draw& draw) {
  InsertShape s;
  s.heads = draw.heads();
  s.format = draw.of({KvFormat::fp8_ds_mla_v4, KvFormat::fp8_ds_mla_v4, KvFormat::bf16, KvFormat::fp8_tensor});
  if (s.format != KvFormat::fp8_ds_mla_v4 && draw.chance(0.4)) {
    s.dim = static_cast<int32_t>(draw.size(2, 600));
    s.rotary = draw.size(1, std::min(s.dim / 2, 64)) * 2;
  }
  s.tokens = draw.tokens(std::clamp<int64_t>(1'000'000 / (s.heads * s.dim), 1, 1000));
  s.page_size = draw.page_size();
  s.extra_stride = draw.page_gap();
  s.e4m3_q = s.format == KvFormat::fp8_tensor && draw.chance(0.5);
  s.in_place = !s.e4m3_q && draw.chance(0.2);
  if (!s.e4m3_q && !s.in_place && draw.chance(0.2)) s.padded_heads = s.heads + draw.size(0, 64);
  if (draw.chance(0.2)) s.unmapped = draw.size(1, s.tokens + 1);
  s.skipped = draw.of({0.2, 0.0, 1.0});
  s.cache = draw.chance(0.9);
  s.padding = draw.padding();
  s.scale = draw.of({1.0, 1.0, 0.0, 1e-5, 3e4});
  CaseAdder<QNormRopeKvInsertParams>(list, "qnorm_rope_kv_insert", &OpSet::qnorm_rope_kv_insert)
      .drawn(draw.name(name_of(s)), [=](Inputs& in) { return build(in, s); });
}

}  // namespace strata::testkit
