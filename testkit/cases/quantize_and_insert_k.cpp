#include <fmt/format.h>

#include "testkit/harness/paging.h"
#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

struct QuantizeShape {
  int64_t tokens = 1;
  KvFormat format = KvFormat::fp8_ds_mla_v4;
  int32_t dim = 512;
  int32_t page_size = 64;
  int64_t extra_stride = 0;
  int64_t unmapped = 0;
  bool ue8m0 = false;
  float cache_scale = 0.125f;
  double scale = 1.0;
  int64_t padding = 0;
  double skipped = 0.2;
  float value = 0;  // of every element; 0: random ones
};

Built<QuantizeAndInsertKParams> build(Inputs& in, const QuantizeShape& s) {
  const int64_t tokens = in.share(s.tokens), mapped = tokens - std::min(s.unmapped, tokens);
  QuantizeAndInsertKParams p;
  p.k = in.bf16({tokens, s.dim}, s.scale, {.inner = s.padding});
  if (s.value != 0) p.k = in.bf16_values({tokens, s.dim}, std::vector<float>(static_cast<size_t>(tokens * s.dim), s.value));
  const int64_t num_pages = tokens / s.page_size + 2;
  std::vector<int64_t> slots = distinct_slots(in.rng(), mapped, num_pages * s.page_size);
  for (int64_t& slot : slots) {
    if (in.rng().chance(s.skipped)) slot = in.rng().chance(0.5) ? -1 : INT64_MIN;
  }
  p.slot_mapping = in.i64(slots);
  p.cache = in.cache({.format = s.format,
                      .row_dim = s.dim,
                      .page_size = s.page_size,
                      .num_pages = num_pages,
                      .extra_stride = s.extra_stride,
                      .scale = s.cache_scale},
                     {});
  p.ue8m0 = s.ue8m0;
  const double t = static_cast<double>(tokens);
  return {.params = p,
          .outputs = {cache_output("cache", p.cache, {}, exact())},
          .bytes = t * static_cast<double>(2 * s.dim + 8 + row_bytes(s.format, s.dim)),
          .flops = 3 * t * s.dim};
}

std::string name_of(const QuantizeShape& s) {
  std::string name = fmt::format("T{}-{}-D{}-B{}", s.tokens, to_string(s.format), s.dim, s.page_size);
  if (s.extra_stride > 0) name += fmt::format("-stride+{}", s.extra_stride);
  if (s.unmapped > 0) name += fmt::format("-unmapped{}", s.unmapped);
  if (s.ue8m0) name += "-ue8m0";
  if (s.padding > 0) name += "-strided";
  if (s.scale != 1.0) name += fmt::format("-scale{:g}", s.scale);
  if (s.format == KvFormat::fp8_tensor) name += fmt::format("-by{:g}", s.cache_scale);
  return name;
}

}  // namespace

void add_quantize_and_insert_k(CaseList& list) {
  CaseAdder<QuantizeAndInsertKParams> cases(list, "quantize_and_insert_k", &OpSet::quantize_and_insert_k);
  const auto test = [&](const QuantizeShape& s) { cases.test(name_of(s), [s](Inputs& in) { return build(in, s); }); };
  const std::pair<KvFormat, int32_t> formats[] = {{KvFormat::fp8_ds_mla_v4, 512}, {KvFormat::bf16, 512},      {KvFormat::bf16, 128},
                                                  {KvFormat::bf16, 37},           {KvFormat::bf16, 576},      {KvFormat::fp8_tensor, 512},
                                                  {KvFormat::fp8_tensor, 576},    {KvFormat::fp8_tensor, 90}, {KvFormat::indexer_fp8, 128},
                                                  {KvFormat::indexer_mxfp4, 128}, {KvFormat::fp8_ds_mla, 576}};
  for (const auto& [format, dim] : formats) {
    for (const int64_t tokens : {0, 1, 17}) test({.tokens = tokens, .format = format, .dim = dim});
    test({.tokens = 300, .format = format, .dim = dim, .page_size = 61, .extra_stride = 13});
    for (const int32_t page_size : {1, 2, 53, 69, 256, 576}) test({.tokens = 33, .format = format, .dim = dim, .page_size = page_size});
    test({.tokens = 33, .format = format, .dim = dim, .page_size = 2, .extra_stride = 576});
    test({.tokens = 17, .format = format, .dim = dim, .padding = 3});
    test({.tokens = 17, .format = format, .dim = dim, .unmapped = 6});
    for (const double scale : {0.0, 1e-5, 1e-3, 100.0, 1e5, 1e36}) test({.tokens = 17, .format = format, .dim = dim, .scale = scale});
  }
  for (const double scale : {0.0, 1e-6, 1.0, 1e4})
    test({.tokens = 33, .format = KvFormat::fp8_ds_mla, .dim = 576, .ue8m0 = true, .scale = scale});
  test({.tokens = 33, .format = KvFormat::fp8_tensor, .cache_scale = 1.0f});
  // 175/16 times 1/7 in fp32 is above what 175/16 / 7 is, halfway between two e4m3 values: rows of 576 values are divided.
  for (const int32_t dim : {512, 33, 576}) {
    test({.tokens = 33, .format = KvFormat::fp8_tensor, .dim = dim, .cache_scale = 7.0f, .value = 10.9375f});
  }
  for (const int64_t tokens : {1, 64, 4096}) {
    for (const auto& [format, dim] :
         {std::pair{KvFormat::fp8_ds_mla_v4, 512}, std::pair{KvFormat::indexer_fp8, 128}, std::pair{KvFormat::fp8_ds_mla, 576}}) {
      const QuantizeShape s{.tokens = tokens, .format = format, .dim = dim, .skipped = 0};
      cases.bench(name_of(s), [s](Inputs& in) { return build(in, s); });
    }
  }
}

void add_random_quantize_and_insert_k(CaseList& list, Draw& draw) {
  QuantizeShape s;
  s.format = draw.of({KvFormat::fp8_ds_mla_v4, KvFormat::fp8_ds_mla, KvFormat::bf16, KvFormat::fp8_tensor, KvFormat::indexer_fp8,
                      KvFormat::indexer_mxfp4});
  const int32_t any = static_cast<int32_t>(draw.size(1, 600));
  s.dim = s.format == KvFormat::fp8_ds_mla_v4 ? 512 : s.format == KvFormat::fp8_ds_mla ? 576 : 128;
  if (s.format == KvFormat::bf16 || s.format == KvFormat::fp8_tensor) s.dim = any;
  s.tokens = draw.tokens(std::min<int64_t>(1'000'000 / s.dim, 3000));
  s.page_size = draw.page_size();
  s.extra_stride = draw.page_gap();
  if (draw.chance(0.2)) s.unmapped = draw.size(1, s.tokens + 1);
  s.ue8m0 = s.format == KvFormat::fp8_ds_mla && draw.chance(0.5);
  s.cache_scale = draw.of({0.125f, 1.0f, 7.0f});
  s.scale = draw.of({1.0, 1.0, 0.0, 1e-5, 1e5, 1e36});
  s.padding = draw.padding().inner;
  s.skipped = draw.of({0.2, 0.0, 1.0});
  CaseAdder<QuantizeAndInsertKParams>(list, "quantize_and_insert_k", &OpSet::quantize_and_insert_k)
      .drawn(draw.name(name_of(s)), [=](Inputs& in) { return build(in, s); });
}

}  // namespace strata::testkit
