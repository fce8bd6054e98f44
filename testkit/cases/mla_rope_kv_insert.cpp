#include <fmt/format.h>

#include "testkit/harness/paging.h"
#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

// fp8_tensor: 175/16 / 7 is halfway between two e4m3 values, and fp32 has more than 1/7 for 1/7.
constexpr float kTieScale = 7.0f, kTie = 10.9375f;

struct InsertShape {
  int64_t tokens = 1;
  int64_t heads = 8;
  KvFormat format = KvFormat::bf16;
  int32_t page_size = 64;
  int64_t extra_stride = 0;
  int64_t latent = 512;
  int64_t nope = 128;
  int64_t rotary = 64;
  int64_t absorbed = -1;  // rows of q_pe_out; -1: absent
  int64_t unmapped = 0;   // tokens at the end without an entry in slot_mapping
  double skipped = 0.2;   // share of slots that are negative
  bool cache = true;
  bool rotate = true;
  bool llama = false;
  bool ue8m0 = false;
  Padding padding{};   // of q; c and k_pe are columns of one matrix whenever it is not zero, as in the layer
  double scale = 1.0;  // of c
  bool ties = false;   // c divided by the cache's scale is a tie of two e4m3 values; c times the reciprocal is not
  const char* suffix = "";
};

Built<MlaRopeKvInsertParams> build(Inputs& in, const InsertShape& s) {
  const int64_t tokens = in.share(s.tokens), mapped = tokens - std::min(s.unmapped, tokens);
  constexpr int64_t kPositions = 257;
  MlaRopeKvInsertParams p;
  p.q = in.bf16({tokens, s.heads, s.nope + s.rotary}, 2.0, s.padding);
  if (s.padding.inner > 0) {
    const TensorView kv = in.bf16({tokens, s.latent + s.rotary}, s.scale, {.inner = s.padding.inner});
    p.c = kv.columns(0, s.latent);
    p.k_pe = kv.columns(s.latent, s.rotary);
  } else {
    p.c = in.bf16({tokens, s.latent}, s.scale);
    p.k_pe = in.bf16({tokens, s.rotary}, s.scale);
  }
  if (s.ties) p.c = in.bf16_values({tokens, s.latent}, std::vector<float>(static_cast<size_t>(tokens * s.latent), kTie));
  if (s.rotate) {
    std::vector<int64_t> positions(static_cast<size_t>(tokens));
    for (int64_t& position : positions) position = in.rng().in(0, kPositions);
    p.positions = in.i64(positions);
    p.cos_sin = in.rope_table(kPositions, s.rotary);
  }
  if (s.llama) {
    std::vector<float> scaling(static_cast<size_t>(tokens));
    for (float& v : scaling) v = 1.0f + 0.1f * static_cast<float>(in.rng().uniform());
    p.llama_4_scaling = in.values(DType::f32, {tokens}, scaling);
  }
  std::vector<Output> outputs;
  // A value that rounds differently when rotated may do so once more when scaled.
  Tolerance rotated = bf16_rounding(0.02);
  if (s.llama) rotated.rel *= 2;
  if (s.absorbed >= 0) {
    const TensorView whole = in.output(DType::bf16, {std::min(s.absorbed, tokens), s.heads, s.latent + s.rotary}, s.padding);
    p.q_pe_out = whole.columns(s.latent, s.rotary);
    outputs.push_back(view_output("q_pe_out", p.q_pe_out, rotated));
  }
  outputs.push_back(view_output("q", p.q, rotated));
  outputs.push_back(view_output("k_pe", p.k_pe, bf16_rounding(0.02)));
  if (s.cache) {
    const int64_t num_pages = tokens / s.page_size + 2;
    const std::vector<int64_t> written = map_slots(in, mapped, num_pages * s.page_size, s.skipped, p.slot_mapping);
    p.cache = in.cache({.format = s.format,
                        .row_dim = static_cast<int32_t>(s.latent + s.rotary),
                        .page_size = s.page_size,
                        .num_pages = num_pages,
                        .extra_stride = s.extra_stride,
                        .scale = s.ties ? kTieScale : 0.07f},
                       {});
    p.ue8m0 = s.ue8m0;
    // Latent dimensions depend on nothing that may round differently; rotary dimensions are 1/9 of a row.
    Tolerance rows = code_step(0.01);
    rows.abs_rms = 2e-6;
    rows.beyond = 0;
    outputs.push_back(cache_output("cache", p.cache, written, rows));
  }
  const double t = static_cast<double>(tokens), h = static_cast<double>(s.heads), r = static_cast<double>(s.rotary);
  const double row = static_cast<double>(s.cache ? row_bytes(s.format, s.latent + s.rotary) : 0);
  const double absorbed = s.absorbed >= 0 ? static_cast<double>(std::min(s.absorbed, tokens)) * h * 2 * r : 0;
  const double query = s.llama ? static_cast<double>(s.nope) + r : r;
  return {.params = p,
          .outputs = std::move(outputs),
          .bytes = t * (4 * h * query + 2 * static_cast<double>(s.latent) + 8 * r + row + 16) + absorbed,
          .flops = t * (h + 1) * 3 * r};
}

std::string name_of(const InsertShape& s) {
  std::string name = fmt::format("T{}-H{}", s.tokens, s.heads);
  if (s.latent != 512 || s.nope != 128 || s.rotary != 64) name += fmt::format("-L{}-P{}-R{}", s.latent, s.nope, s.rotary);
  name += s.cache ? fmt::format("-{}-B{}", to_string(s.format), s.page_size) : "-no_cache";
  if (s.ue8m0) name += "-ue8m0";
  if (s.extra_stride > 0) name += fmt::format("-stride+{}", s.extra_stride);
  if (s.absorbed >= 0) name += fmt::format("-absorbed{}", s.absorbed);
  if (s.unmapped > 0) name += fmt::format("-unmapped{}", s.unmapped);
  if (!s.rotate) name += "-no_rope";
  if (s.llama) name += "-llama4";
  if (s.padding.inner + s.padding.outer > 0) name += fmt::format("-strided{}", s.padding.inner);
  return name + s.suffix;
}

}  // namespace

void add_mla_rope_kv_insert(CaseList& list) {
  CaseAdder<MlaRopeKvInsertParams> cases(list, "mla_rope_kv_insert", &OpSet::mla_rope_kv_insert);
  const auto test = [&](const InsertShape& s) { cases.test(name_of(s), [s](Inputs& in) { return build(in, s); }); };
  for (const int64_t tokens : {0, 1, 3, 17, 64, 300}) test({.tokens = tokens, .heads = 4, .absorbed = tokens});
  for (const int64_t heads : {1, 3, 16, 63, 126, 128}) test({.tokens = 5, .heads = heads, .absorbed = 5});
  for (const auto format : {KvFormat::bf16, KvFormat::fp8_tensor, KvFormat::fp8_ds_mla}) {
    for (const int32_t page_size : {1, 2, 53, 256}) test({.tokens = 33, .heads = 2, .format = format, .page_size = page_size});
    test({.tokens = 33, .heads = 1, .format = format, .page_size = 4, .extra_stride = 577});
    test({.tokens = 17, .heads = 3, .format = format, .absorbed = 5, .padding = {.inner = 1536}});
    test({.tokens = 17, .heads = 3, .format = format, .scale = 0.0, .suffix = "-zero_c"});
    test({.tokens = 17, .heads = 3, .format = format, .scale = 3e4, .suffix = "-huge_c"});
  }
  test({.tokens = 33, .heads = 2, .format = KvFormat::fp8_ds_mla, .ue8m0 = true});
  test({.tokens = 33, .heads = 2, .format = KvFormat::fp8_ds_mla, .ue8m0 = true, .scale = 1e-5, .suffix = "-tiny_c"});
  test({.tokens = 17, .heads = 3, .format = KvFormat::fp8_tensor, .ties = true, .suffix = "-ties"});
  test({.tokens = 17, .heads = 3, .format = KvFormat::fp8_tensor, .latent = 7, .rotary = 2, .ties = true, .suffix = "-ties"});
  test({.tokens = 17, .absorbed = 0});
  test({.tokens = 17, .absorbed = 9, .unmapped = 5});
  test({.tokens = 17, .unmapped = 17});
  test({.tokens = 17, .absorbed = 17, .cache = false});
  test({.tokens = 17, .absorbed = 17, .rotate = false});
  test({.tokens = 17, .cache = false, .rotate = false, .suffix = "-nothing"});
  test({.tokens = 17, .absorbed = 17, .llama = true});
  test({.tokens = 17, .absorbed = 3, .rotate = false, .llama = true, .padding = {.inner = 3, .outer = 5}});
  test({.tokens = 17, .absorbed = 3, .padding = {.inner = 3, .outer = 5}});
  test({.tokens = 17, .skipped = 1.0, .suffix = "-all_skipped"});
  test({.tokens = 9, .heads = 3, .latent = 96, .nope = 20, .rotary = 34, .absorbed = 9});
  test({.tokens = 9, .heads = 3, .format = KvFormat::fp8_tensor, .latent = 7, .nope = 1, .rotary = 2, .absorbed = 9});
  test({.tokens = 33, .heads = 5, .format = KvFormat::fp8_ds_mla, .absorbed = 20, .llama = true, .padding = {.inner = 8, .outer = 16}});
  test({.tokens = 9, .heads = 3, .nope = 5, .rotary = 64, .absorbed = 9, .llama = true});
  test({.tokens = 150, .heads = 128, .absorbed = 70});  // several runs a thread on a GPU
  cases.heavy(name_of({.tokens = 1031, .heads = 16, .absorbed = 500}),
              [](Inputs& in) { return build(in, {.tokens = 1031, .heads = 16, .absorbed = 500}); });
  for (const int64_t tokens : {1, 64, 4096}) {
    for (const int64_t heads : {16, 128}) {
      for (const auto format : {KvFormat::bf16, KvFormat::fp8_ds_mla}) {
        const InsertShape s{.tokens = tokens, .heads = heads, .format = format, .absorbed = tokens < 4096 ? tokens : -1, .skipped = 0};
        cases.bench(name_of(s), [s](Inputs& in) { return build(in, s); });
      }
    }
  }
}

void add_random_mla_rope_kv_insert(CaseList& list, Draw& draw) {
  InsertShape s;
  s.heads = draw.heads();
  s.format = draw.of({KvFormat::bf16, KvFormat::fp8_tensor, KvFormat::fp8_ds_mla});
  if (s.format != KvFormat::fp8_ds_mla && draw.chance(0.3)) {
    s.latent = draw.size(1, 500);
    s.rotary = 2 * draw.size(1, 38);
  }
  if (draw.chance(0.3)) s.nope = draw.size(1, 200);
  s.tokens = draw.tokens(std::clamp<int64_t>(1'000'000 / (s.heads * (s.nope + s.rotary) + s.latent), 1, 1500));
  s.page_size = draw.page_size();
  s.extra_stride = draw.page_gap();
  if (draw.chance(0.6)) s.absorbed = draw.size(0, s.tokens);
  if (draw.chance(0.2)) s.unmapped = draw.size(1, s.tokens + 1);
  s.skipped = draw.of({0.2, 0.0, 1.0});
  s.cache = draw.chance(0.9);
  s.rotate = draw.chance(0.9);
  s.llama = draw.chance(0.2);
  s.ue8m0 = s.cache && s.format == KvFormat::fp8_ds_mla && draw.chance(0.5);
  s.padding = draw.padding();
  s.scale = draw.of({1.0, 1.0, 0.0, 1e-5, 3e4});
  CaseAdder<MlaRopeKvInsertParams>(list, "mla_rope_kv_insert", &OpSet::mla_rope_kv_insert).drawn(draw.name(name_of(s)), [=](Inputs& in) {
    return build(in, s);
  });
}

}  // namespace strata::testkit
