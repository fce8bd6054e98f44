#include <fmt/format.h>

#include "testkit/harness/paging.h"
#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

struct KeyShape {
  int64_t tokens = 1;
  KvFormat format = KvFormat::indexer_fp8;
  int64_t dim = 128;
  int64_t rotary = 64;  // 0: no rotation
  RopePairing pairing = RopePairing::half_split;
  RopeSlice rope_slice = RopeSlice::first;
  bool hadamard = false;
  int32_t page_size = 64;
  int64_t extra_stride = 0;
  int64_t unmapped = 0;
  double skipped = 0.2;
  double scale = 1.0;
  int64_t padding = 0;
  const char* suffix = "";
};

Built<IndexerKeyInsertParams> build(Inputs& in, const KeyShape& s) {
  const int64_t tokens = in.share(s.tokens), mapped = tokens - std::min(s.unmapped, tokens);
  constexpr int64_t kPositions = 257;
  IndexerKeyInsertParams p;
  p.k = in.bf16({tokens, s.dim}, s.scale, {.inner = s.padding});
  std::vector<float> weight(static_cast<size_t>(s.dim)), bias(static_cast<size_t>(s.dim));
  for (float& v : weight) v = 1.0f + 0.1f * in.rng().normal();
  for (float& v : bias) v = 0.1f * in.rng().normal();
  p.weight = in.values(DType::f32, {s.dim}, weight);
  p.bias = in.values(DType::f32, {s.dim}, bias);
  if (s.rotary > 0) {
    std::vector<int64_t> positions(static_cast<size_t>(tokens));
    for (int64_t& position : positions) position = in.rng().in(0, kPositions);
    p.positions = in.i64(positions);
    p.cos_sin = in.rope_table(kPositions, s.rotary);
  }
  p.pairing = s.pairing;
  p.rope_slice = s.rope_slice;
  p.hadamard = s.hadamard;
  const int64_t num_pages = tokens / s.page_size + 2;
  const std::vector<int64_t> written = map_slots(in, mapped, num_pages * s.page_size, s.skipped, p.slot_mapping);
  p.cache = in.cache({.format = s.format,
                      .row_dim = static_cast<int32_t>(s.dim),
                      .page_size = s.page_size,
                      .num_pages = num_pages,
                      .extra_stride = s.extra_stride},
                     {});
  // Every dimension depends on the norm: any of them may round the other way before it is quantised; with Hadamard one that does moves all
  // 128 by a little.
  Tolerance rows = code_step(s.hadamard ? 0.2 : 0.02);
  rows.abs_rms = 2e-5;
  const double t = static_cast<double>(tokens), d = static_cast<double>(s.dim);
  return {.params = p,
          .outputs = {cache_output("cache", p.cache, written, rows)},
          .bytes = t * (2 * d + static_cast<double>(row_bytes(s.format, s.dim)) + 4.0 * static_cast<double>(s.rotary) + 16),
          .flops = t * d * (s.hadamard ? 15 : 8)};
}

std::string name_of(const KeyShape& s) {
  std::string name = fmt::format("T{}-{}-D{}-R{}-B{}", s.tokens, to_string(s.format), s.dim, s.rotary, s.page_size);
  if (s.pairing == RopePairing::interleaved) name += "-interleaved";
  if (s.rope_slice == RopeSlice::last) name += "-last";
  if (s.hadamard) name += "-hadamard";
  if (s.extra_stride > 0) name += fmt::format("-stride+{}", s.extra_stride);
  if (s.unmapped > 0) name += fmt::format("-unmapped{}", s.unmapped);
  if (s.padding > 0) name += fmt::format("-strided{}", s.padding);
  return name + s.suffix;
}

}  // namespace

void add_indexer_key_insert(CaseList& list) {
  CaseAdder<IndexerKeyInsertParams> cases(list, "indexer_key_insert", &OpSet::indexer_key_insert);
  const auto test = [&](const KeyShape& s) { cases.test(name_of(s), [s](Inputs& in) { return build(in, s); }); };
  for (const int64_t tokens : {0, 1, 3, 17, 64, 300}) test({.tokens = tokens});
  for (const auto format : {KvFormat::indexer_fp8, KvFormat::bf16}) {
    for (const auto pairing : {RopePairing::half_split, RopePairing::interleaved}) {
      for (const auto rope_slice : {RopeSlice::first, RopeSlice::last}) {
        for (const bool hadamard : {false, true}) {
          test({.tokens = 9, .format = format, .pairing = pairing, .rope_slice = rope_slice, .hadamard = hadamard, .page_size = 16});
        }
      }
    }
    for (const int32_t page_size : {1, 2, 53, 256}) test({.tokens = 33, .format = format, .page_size = page_size, .extra_stride = 5});
    test({.tokens = 33, .format = format, .rotary = 0});
    test({.tokens = 33, .format = format, .rotary = 128});
    test({.tokens = 33, .format = format, .unmapped = 9, .padding = 64});
    test({.tokens = 33, .format = format, .skipped = 1.0, .suffix = "-all_skipped"});
    test({.tokens = 33, .format = format, .scale = 0.0, .suffix = "-constant_k"});
    test({.tokens = 33, .format = format, .scale = 1e4, .padding = 3, .suffix = "-huge_k"});
  }
  test({.tokens = 9, .format = KvFormat::bf16, .dim = 100, .rotary = 34});
  test({.tokens = 9, .format = KvFormat::bf16, .dim = 512, .rotary = 64, .hadamard = true});
  for (const int64_t tokens : {1, 64, 4096}) {
    const KeyShape s{.tokens = tokens, .skipped = 0};
    cases.bench(name_of(s), [s](Inputs& in) { return build(in, s); });
  }
}

void add_random_indexer_key_insert(CaseList& list, Draw& draw) {
  KeyShape s;
  s.format = draw.of({KvFormat::indexer_fp8, KvFormat::indexer_fp8, KvFormat::bf16});
  if (s.format == KvFormat::bf16 && draw.chance(0.4)) s.dim = draw.size(2, 512);
  s.tokens = draw.tokens(3000);
  s.rotary = draw.chance(0.1) ? 0 : s.dim >= 64 && draw.chance(0.6) ? 64 : 2 * draw.size(1, s.dim / 2);
  s.pairing = draw.of({RopePairing::interleaved, RopePairing::half_split});
  s.rope_slice = draw.of({RopeSlice::first, RopeSlice::last});
  s.hadamard = (s.dim & (s.dim - 1)) == 0 && draw.chance(0.5);
  s.page_size = draw.page_size();
  s.extra_stride = draw.page_gap();
  if (draw.chance(0.2)) s.unmapped = draw.size(1, s.tokens + 1);
  s.skipped = draw.of({0.2, 0.0, 1.0});
  s.scale = draw.of({1.0, 1.0, 0.0, 1e4});
  s.padding = draw.padding().inner;
  CaseAdder<IndexerKeyInsertParams>(list, "indexer_key_insert", &OpSet::indexer_key_insert).drawn(draw.name(name_of(s)), [=](Inputs& in) {
    return build(in, s);
  });
}

}  // namespace strata::testkit
