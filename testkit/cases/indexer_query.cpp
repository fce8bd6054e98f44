#include <fmt/format.h>

#include <cmath>

#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

struct QueryShape {
  int64_t tokens = 1;
  int64_t heads = 64;
  int64_t dim = 128;
  DType out = DType::e4m3;
  bool hadamard = false;
  int64_t rotary = 64;  // 0: none
  RopePairing pairing = RopePairing::interleaved;
  RopeSlice rope_slice = RopeSlice::last;
  DType weights = DType::bf16;
  double scale = 1.0;
  Padding padding{};
};

Built<IndexerQueryParams> build(Inputs& in, const QueryShape& s) {
  const int64_t tokens = in.share(s.tokens);
  constexpr int64_t kPositions = 129;
  IndexerQueryParams p;
  p.q = in.bf16({tokens, s.heads, s.dim}, s.scale, s.padding);
  p.weights = s.weights == DType::bf16 ? in.bf16({tokens, s.heads}, 0.5, {.inner = s.padding.inner})
                                       : in.f32({tokens, s.heads}, 0.5, {.inner = s.padding.inner});
  if (s.rotary > 0) {
    std::vector<int64_t> positions(static_cast<size_t>(tokens));
    for (int64_t& position : positions) position = in.rng().in(0, kPositions);
    p.positions = in.i64(positions);
    p.cos_sin = in.rope_table(kPositions, s.rotary);
  }
  p.pairing = s.pairing;
  p.rope_slice = s.rope_slice;
  p.hadamard = s.hadamard;
  p.softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.dim)));
  p.head_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.heads)));
  const bool mxfp4 = s.out == DType::u8;
  p.q_out = in.output(s.out, {tokens, s.heads, mxfp4 ? s.dim / 2 : s.dim});
  if (mxfp4) p.q_scale_out = in.output(DType::e8m0, {tokens, s.heads, s.dim / 32});
  p.weights_out = in.output(DType::f32, {tokens, s.heads});

  Tolerance values = s.out == DType::bf16 ? bf16_rounding() : code_step();
  // Rounding one rotated value the other way before Hadamard moves all values by a share of it: 8 sizes, 2^-8, D^-0.5.
  if (s.out == DType::bf16 && s.hadamard) values.abs_rms = 2e-3, values.inexact = 0.1;
  std::vector<Output> outputs{view_output("q_out", p.q_out, values)};
  if (mxfp4) outputs.push_back(view_output("q_scale_out", p.q_scale_out, code_step(0.002)));
  // A q scale that flips to the next power of two takes its weight with it.
  Tolerance weights = close(0, 1e-6);
  weights.beyond = s.out == DType::e4m3 ? 5e-4 : 0;
  outputs.push_back(view_output("weights_out", p.weights_out, weights));
  const double n = static_cast<double>(tokens * s.heads), d = static_cast<double>(s.dim);
  const double out_bytes = s.out == DType::bf16 ? 2 * d : mxfp4 ? d / 2 + d / 32 : d;
  return {.params = p,
          .outputs = std::move(outputs),
          .bytes = n * (2 * d + out_bytes + static_cast<double>(size_of(s.weights)) + 4) + static_cast<double>(tokens) * 264,
          .flops = n * (3 * d + 3 * static_cast<double>(s.rotary) + (s.hadamard ? d * std::log2(d) : 0))};
}

std::string name_of(const QueryShape& s) {
  std::string name = fmt::format("T{}-H{}-D{}-{}", s.tokens, s.heads, s.dim, s.out == DType::u8 ? "mxfp4" : std::string(to_string(s.out)));
  if (s.hadamard) name += "-hadamard";
  if (s.rotary != 64) name += fmt::format("-R{}", s.rotary);
  if (s.pairing == RopePairing::half_split) name += "-half_split";
  if (s.rope_slice == RopeSlice::first) name += "-first";
  if (s.weights == DType::f32) name += "-w_f32";
  if (s.scale != 1.0) name += fmt::format("-scale{:g}", s.scale);
  if (s.padding.inner + s.padding.outer > 0) name += "-strided";
  return name;
}

}  // namespace

void add_indexer_query(CaseList& list) {
  CaseAdder<IndexerQueryParams> cases(list, "indexer_query", &OpSet::indexer_query);
  const auto test = [&](const QueryShape& s) { cases.test(name_of(s), [s](Inputs& in) { return build(in, s); }); };
  for (const auto out : {DType::e4m3, DType::u8, DType::bf16}) {
    for (const int64_t tokens : {0, 1, 3, 17, 64}) test({.tokens = tokens, .heads = 64, .out = out});
    test({.tokens = 300, .heads = 8, .out = out});
    for (const int64_t heads : {1, 3, 24, 63, 128}) test({.tokens = 3, .heads = heads, .out = out});
    for (const bool hadamard : {false, true}) {
      test({.tokens = 17, .heads = 8, .out = out, .hadamard = hadamard, .weights = DType::f32});
      test(
          {.tokens = 17, .heads = 8, .out = out, .hadamard = hadamard, .pairing = RopePairing::half_split, .rope_slice = RopeSlice::first});
      test({.tokens = 9, .heads = 8, .out = out, .hadamard = hadamard, .rotary = 0});
      test({.tokens = 9, .heads = 8, .out = out, .hadamard = hadamard, .rotary = 128, .pairing = RopePairing::half_split});
      test({.tokens = 9, .heads = 8, .dim = 64, .out = out, .hadamard = hadamard, .rotary = 32});
      for (const double scale : {0.0, 1e-5, 1e4}) test({.tokens = 9, .heads = 8, .out = out, .hadamard = hadamard, .scale = scale});
    }
    test({.tokens = 17, .heads = 8, .out = out, .padding = {.inner = 8, .outer = 5}});
    test({.tokens = 17, .heads = 5, .dim = 256, .out = out, .rope_slice = RopeSlice::first});
  }
  for (const auto out : {DType::e4m3, DType::u8}) {
    for (const int64_t rotary : {10, 16, 48}) {  // pairs that are and are not within eight neighbouring dimensions
      test({.tokens = 5, .heads = 9, .out = out, .rotary = rotary, .pairing = RopePairing::half_split});
      test({.tokens = 5, .heads = 9, .out = out, .rotary = rotary, .rope_slice = RopeSlice::first});
    }
  }
  test({.tokens = 3, .heads = 4, .dim = 34, .out = DType::bf16, .rotary = 2});
  for (const auto out : {DType::e4m3, DType::u8}) {
    for (const int64_t tokens : {1, 64, 4096}) {
      const QueryShape s{.tokens = tokens, .out = out};
      cases.bench(name_of(s), [s](Inputs& in) { return build(in, s); });
    }
  }
}

void add_random_indexer_query(CaseList& list, Draw& draw) {
  QueryShape s;
  s.heads = draw.heads();
  s.out = draw.of({DType::e4m3, DType::u8, DType::bf16});
  if (draw.chance(0.3)) s.dim = draw.of<int64_t>({32, 64, 256, 512});
  if (s.out == DType::bf16 && draw.chance(0.2)) s.dim = draw.size(2, 512);
  s.hadamard = (s.dim & (s.dim - 1)) == 0 && draw.chance(0.5);
  s.rotary = draw.chance(0.1) ? 0 : s.dim >= 64 && draw.chance(0.6) ? 64 : 2 * draw.size(1, s.dim / 2);
  s.pairing = draw.of({RopePairing::interleaved, RopePairing::half_split});
  s.rope_slice = draw.of({RopeSlice::first, RopeSlice::last});
  s.weights = draw.of({DType::bf16, DType::f32});
  s.scale = draw.of({1.0, 1.0, 0.0, 1e-5, 1e4});
  s.padding = draw.padding();
  s.tokens = draw.tokens(std::clamp<int64_t>(1'000'000 / (s.heads * s.dim), 1, 1000));
  CaseAdder<IndexerQueryParams>(list, "indexer_query", &OpSet::indexer_query).drawn(draw.name(name_of(s)), [=](Inputs& in) {
    return build(in, s);
  });
}

}  // namespace strata::testkit
