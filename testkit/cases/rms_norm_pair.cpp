#include <fmt/format.h>

#include "testkit/cases/activation_scales.h"
#include "testkit/harness/paging.h"
#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

struct NormShape {
  int64_t tokens = 1;
  int64_t q = 0;  // 0: only kv
  int64_t kv = 512;
  Padding padding{};
  bool in_place = false;
  double scale = 1.0;
  ActivationFormat q_format = ActivationFormat::bf16;
  // Of the cache that keys are inserted in; page_size 0: none. Tokens at the end without an entry in slot_mapping.
  KvFormat format = KvFormat::fp8_ds_mla_v4;
  int32_t page_size = 0;
  int64_t unmapped = 0;
  int64_t rotary = 64;
};

void add_insertion(Inputs& in, const NormShape& s, int64_t tokens, RmsNormPairParams& p, std::vector<Output>& outputs) {
  constexpr int64_t kPositions = 257;
  std::vector<int64_t> positions(static_cast<size_t>(tokens));
  for (int64_t& position : positions) position = in.rng().in(0, kPositions);
  KeyInsert insert{.positions = in.i64(positions), .cos_sin = in.rope_table(kPositions, s.rotary)};
  const int64_t mapped = tokens - std::min(s.unmapped, tokens), num_pages = tokens / s.page_size + 2;
  const std::vector<int64_t> written = map_slots(in, mapped, num_pages * s.page_size, 0.2, insert.slot_mapping);
  insert.cache = in.cache({.format = s.format,
                           .row_dim = static_cast<int32_t>(s.kv),
                           .page_size = s.page_size,
                           .num_pages = num_pages,
                           .extra_stride = 64,
                           .scale = 0.0625f},
                          {});
  p.insert_epilogue = insert;
  // If a key's norm rounds differently, some quantised values differ by a step. If such a value is its block's largest, the scale differs.
  Tolerance rows = code_step(0.02);
  rows.abs_rms = 1e-3;
  outputs.push_back(cache_output("cache", insert.cache, written, rows));
}

Built<RmsNormPairParams> build(Inputs& in, const NormShape& s) {
  const int64_t tokens = in.share(s.tokens);
  RmsNormPairParams p;
  std::vector<Output> outputs;
  const auto input = [&](int64_t n, TensorView& x, TensorView& weight) {
    x = in.bf16({tokens, n}, s.scale, s.padding);
    weight = in.f32({n});
  };
  const auto output = [&](const char* name, const TensorView& x, TensorView& out) {
    out = s.in_place ? x : in.output(DType::bf16, {tokens, x.shape[1]}, s.padding);
    outputs.push_back(view_output(name, out, bf16_rounding()));
  };
  if (s.q > 0) input(s.q, p.q, p.q_weight);
  input(s.kv, p.kv, p.kv_weight);
  if (s.q_format != ActivationFormat::bf16) {
    p.q_format = s.q_format;
    p.q_out = in.output(DType::e4m3, {tokens, s.q}, s.padding);
    p.q_scale = in.output(DType::f32, {tokens, (s.q + 127) / 128}, s.padding);
    outputs.push_back(view_output("q_out", p.q_out, code_step()));
    outputs.push_back(view_output("q_scale", p.q_scale, scale_step(s.q_format, in.drawn())));
  } else if (s.q > 0) {
    output("q_out", p.q, p.q_out);
  }
  if (s.page_size == 0) {
    output("kv_out", p.kv, p.kv_out);
  } else {
    add_insertion(in, s, tokens, p, outputs);
  }
  const double q = static_cast<double>(s.q), kv = static_cast<double>(s.kv), t = static_cast<double>(tokens);
  const double q_bytes = s.q_format == ActivationFormat::bf16 ? 4 : 3 + 4.0 / 128;
  return {.params = p, .outputs = std::move(outputs), .bytes = q * (q_bytes * t + 4) + kv * (4 * t + 4), .flops = 4 * (q + kv) * t};
}

std::string name_of(const NormShape& s) {
  const char* const formats[] = {"", "-q_fp8", "-q_fp8_f32"};
  std::string name =
      fmt::format("T{}-q{}-kv{}{}{}{}{}", s.tokens, s.q, s.kv, formats[static_cast<int>(s.q_format)], s.padding.inner > 0 ? "-strided" : "",
                  s.in_place ? "-in_place" : "", s.scale == 1.0 ? "" : fmt::format("-scale{:g}", s.scale));
  if (s.page_size > 0) name += fmt::format("-into_{}-B{}", to_string(s.format), s.page_size);
  if (s.unmapped > 0) name += fmt::format("-unmapped{}", s.unmapped);
  if (s.page_size > 0 && s.rotary != 64) name += fmt::format("-R{}", s.rotary);
  return name;
}

}  // namespace

void add_rms_norm_pair(CaseList& list) {
  CaseAdder<RmsNormPairParams> cases(list, "rms_norm_pair", &OpSet::rms_norm_pair);
  const auto test = [&](const NormShape& s) { cases.test(name_of(s), [s](Inputs& in) { return build(in, s); }); };
  for (const int64_t tokens : {0, 1, 3, 17, 64, 300}) test({tokens, 1024, 512});
  test({17, 1536, 512});
  test({17, 0, 512});
  test({3, 1, 1});
  test({17, 37, 65});
  test({17, 1536, 512, {.inner = 576}});
  test({17, 100, 33, {.inner = 3}});
  test({17, 1024, 512, {}, true});
  test({3, 1024, 512, {.inner = 7}, true});
  test({17, 2056, 2048});
  test({5, 1000, 8, {.inner = 8}});
  test({1031, 1536, 512, {.inner = 512}, true});
  // eps matters, or the sum of squares is large.
  test({3, 1024, 512, {}, false, 1e-4});
  test({3, 1024, 512, {}, false, 1e4});
  test({3, 1024, 512, {}, false, 0.0});
  // Quantised results: whole blocks, a last one that is not full, rows with gaps, any alignment.
  for (const ActivationFormat format : {ActivationFormat::fp8_ue8m0, ActivationFormat::fp8_f32}) {
    for (const int64_t tokens : {0, 1, 3, 64}) test({.tokens = tokens, .q = 1024, .kv = 512, .q_format = format});
    for (const int64_t q : {1, 37, 200, 1536, 2056}) test({.tokens = 17, .q = q, .kv = 65, .q_format = format});
    test({.tokens = 17, .q = 1536, .padding = {.inner = 576}, .q_format = format});
    test({.tokens = 17, .q = 200, .padding = {.inner = 24}, .q_format = format});
    test({.tokens = 5, .q = 1000, .padding = {.inner = 3}, .q_format = format});
    for (const double scale : {0.0, 1e-4, 1e4}) test({.tokens = 3, .q = 1024, .scale = scale, .q_format = format});
  }
  // Keys inserted: by the norm's own blocks, more tokens than those take, rows of any width, alignment and format.
  for (const int64_t tokens : {0, 1, 3, 32, 128, 129, 300}) {
    test({.tokens = tokens, .q = 1024, .in_place = true, .q_format = ActivationFormat::fp8_ue8m0, .page_size = 64});
  }
  for (const int64_t q : {0, 37, 1536, 3584, 3592}) test({.tokens = 17, .q = q, .page_size = 53});
  for (const auto format : {KvFormat::bf16, KvFormat::fp8_tensor}) {
    test({.tokens = 17, .q = 1024, .format = format, .page_size = 2});
    test({.tokens = 17, .q = 200, .kv = 101, .format = format, .page_size = 5, .rotary = 34});
  }
  test({.tokens = 17, .q = 1536, .padding = {.inner = 576}, .page_size = 64, .unmapped = 5});
  test({.tokens = 17, .q = 1536, .padding = {.inner = 3}, .page_size = 64, .unmapped = 17});
  for (const double scale : {1e-4, 0.0}) test({.tokens = 3, .q = 1024, .scale = scale, .page_size = 64});
  for (const int64_t tokens : {1, 32}) {
    const NormShape s{.tokens = tokens, .q = 1024, .q_format = ActivationFormat::fp8_ue8m0, .page_size = 64};
    cases.bench(name_of(s), [s](Inputs& in) { return build(in, s); });
  }
  for (const int64_t tokens : {1, 32, 64, 4096}) {
    for (const int64_t q : {1024, 1536}) {
      for (const ActivationFormat format : {ActivationFormat::bf16, ActivationFormat::fp8_ue8m0}) {
        const NormShape s{.tokens = tokens, .q = q, .kv = 512, .q_format = format};
        cases.bench(name_of(s), [s](Inputs& in) { return build(in, s); });
      }
    }
  }
}

void add_random_rms_norm_pair(CaseList& list, Draw& draw) {
  NormShape s;
  s.q = draw.chance(0.2) ? 0 : draw.size(1, 4000);
  s.kv = draw.size(1, 4000);
  s.tokens = draw.tokens(std::clamp<int64_t>(1'000'000 / (s.q + s.kv), 1, 1500));
  s.padding = draw.padding();
  s.in_place = draw.chance(0.3);
  s.scale = draw.of({1.0, 1.0, 1e-4, 1e4, 0.0});
  if (s.q > 0 && !s.in_place && draw.chance(0.5)) s.q_format = draw.of({ActivationFormat::fp8_ue8m0, ActivationFormat::fp8_f32});
  if (s.scale <= 1.0 && draw.chance(0.3)) {
    s.page_size = draw.page_size();
    s.format = draw.of({KvFormat::fp8_ds_mla_v4, KvFormat::fp8_ds_mla_v4, KvFormat::bf16, KvFormat::fp8_tensor});
    s.kv = s.format == KvFormat::fp8_ds_mla_v4 || draw.chance(0.5) ? 512 : draw.size(2, 600);
    if (s.format != KvFormat::fp8_ds_mla_v4) s.rotary = draw.size(1, std::min<int64_t>(s.kv / 2, 64)) * 2;
    if (draw.chance(0.2)) s.unmapped = draw.size(1, s.tokens + 1);
  }
  CaseAdder<RmsNormPairParams>(list, "rms_norm_pair", &OpSet::rms_norm_pair).drawn(draw.name(name_of(s)), [=](Inputs& in) {
    return build(in, s);
  });
}

}  // namespace strata::testkit
