#include <fmt/format.h>

#include <limits>

#include "testkit/cases/attention_case.h"
#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

struct MergeShape {
  int64_t parts = 2;
  int64_t tokens = 1;
  int64_t heads = 8;
  int64_t dim = 512;
  DType in = DType::f32;
  DType out = DType::bf16;
  Sinks sinks = Sinks::mixed;
  double empty = 0.2;  // share of (split, token, head) without rows
  double lse_scale = 3.0;
  bool negative_empty = false;
  bool lse = true;
  Padding padding{};
  bool in_place = false;  // out and lse_out are the memory of the last split
};

Built<MergeAttnStatesParams> build(Inputs& in, const MergeShape& s) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const int64_t tokens = in.share(s.tokens), rows = s.parts * tokens * s.heads;
  std::vector<float> o(static_cast<size_t>(rows * s.dim)), lse(static_cast<size_t>(rows));
  in.rng().normal(o.data(), static_cast<int64_t>(o.size()), 1.0f);
  for (int64_t row = 0; row < rows; ++row) {
    float& l = lse[static_cast<size_t>(row)];
    l = static_cast<float>(s.lse_scale) * in.rng().normal();
    if (!in.rng().chance(s.empty)) continue;
    l = in.rng().chance(0.5) ? kInf : -kInf;
    // The values of an empty split must not be read.
    for (int64_t d = 0; d < s.dim; ++d) o[static_cast<size_t>(row * s.dim + d)] = std::numeric_limits<float>::quiet_NaN();
  }
  MergeAttnStatesParams p;
  const Shape shape{s.parts, tokens, s.heads, s.dim};
  p.o = s.in == DType::f32 ? in.values(DType::f32, shape, o, s.padding) : in.bf16_values(shape, o, s.padding);
  p.lse = in.values(DType::f32, {s.parts, tokens, s.heads}, lse, {.inner = s.padding.inner});
  p.attn_sink = make_sinks(in, s.sinks, s.heads);
  p.empty_lse = s.negative_empty ? -kInf : kInf;
  const auto last_part = [&](const TensorView& v) {
    TensorView part = v;
    part.rank = v.rank - 1;
    part.data = v.ptr<std::byte>() + (s.parts - 1) * v.stride[0] * static_cast<int64_t>(size_of(v.dtype));
    for (int i = 0; i < part.rank; ++i) {
      part.shape[i] = v.shape[i + 1];
      part.stride[i] = v.stride[i + 1];
    }
    return part;
  };
  p.out = s.in_place ? last_part(p.o) : in.output(s.out, {tokens, s.heads, s.dim}, s.padding);
  std::vector<Output> outputs{view_output("out", p.out, s.out == DType::bf16 ? bf16_rounding() : close(1e-5, 1e-5))};
  if (s.lse) {
    p.lse_out = s.in_place ? last_part(p.lse) : in.output(DType::f32, {tokens, s.heads}, {.inner = s.padding.inner});
    outputs.push_back(view_output("lse_out", p.lse_out, close(1e-5, 1e-5)));
  }
  const double n = static_cast<double>(tokens * s.heads), d = static_cast<double>(s.dim), parts = static_cast<double>(s.parts);
  return {.params = p,
          .outputs = std::move(outputs),
          .bytes = n * (parts * (d * static_cast<double>(size_of(s.in)) + 4) + d * static_cast<double>(size_of(s.out)) + 4),
          .flops = n * parts * 2 * d};
}

std::string name_of(const MergeShape& s) {
  return fmt::format("n{}-T{}-H{}-D{}-{}-to_{}-sink_{}{}{}{}{}{}{}", s.parts, s.tokens, s.heads, s.dim, to_string(s.in), to_string(s.out),
                     name_of(s.sinks), s.empty != 0.2 ? fmt::format("-empty{:g}", s.empty) : "",
                     s.lse_scale != 3.0 ? fmt::format("-lse{:g}", s.lse_scale) : "", s.negative_empty ? "-empty_neg" : "",
                     s.lse ? "" : "-no_lse", s.padding.inner > 0 ? fmt::format("-strided{}", s.padding.inner) : "",
                     s.in_place ? "-in_place" : "");
}

}  // namespace

void add_merge_attn_states(CaseList& list) {
  CaseAdder<MergeAttnStatesParams> cases(list, "merge_attn_states", &OpSet::merge_attn_states);
  const auto test = [&](const MergeShape& s) { cases.test(name_of(s), [s](Inputs& in) { return build(in, s); }); };
  for (const auto input : {DType::f32, DType::bf16}) {
    for (const auto out : {DType::bf16, DType::f32}) {
      for (const int64_t tokens : {0, 1, 3, 17, 64}) test({.tokens = tokens, .in = input, .out = out});
      for (const auto sinks : {Sinks::none, Sinks::finite, Sinks::plus_infinity, Sinks::minus_infinity}) {
        test({.parts = 3, .tokens = 5, .in = input, .out = out, .sinks = sinks});
      }
      test({.parts = 3, .tokens = 5, .heads = 3, .in = input, .out = out, .padding = {.inner = 5, .outer = 9}});
      test({.parts = 3, .tokens = 9, .in = input, .out = out, .empty = 1.0});
      test({.parts = 3, .tokens = 9, .in = input, .out = out, .empty = 1.0, .negative_empty = true});
      test({.parts = 4, .tokens = 9, .in = input, .out = out, .empty = 0.7, .negative_empty = true, .lse = false});
      for (const int64_t dim : {1, 37, 64, 100, 128, 576}) test({.parts = 2, .tokens = 3, .dim = dim, .in = input, .out = out});
    }
  }
  for (const int64_t heads : {1, 3, 16, 63, 64, 126, 128}) test({.tokens = 3, .heads = heads});
  for (const int64_t parts : {1, 7, 33}) test({.parts = parts, .tokens = 3});
  test({.parts = 4, .tokens = 9, .lse_scale = 60.0});  // exponentials that leave the range of fp32
  test({.parts = 2, .tokens = 300, .heads = 4});
  for (const auto type : {DType::f32, DType::bf16}) {
    for (const int64_t dim : {37, 128, 576}) {
      test({.parts = 2, .tokens = 9, .dim = dim, .in = type, .out = type, .in_place = true});
      test({.parts = 35,
            .tokens = 3,
            .heads = 3,
            .dim = dim,
            .in = type,
            .out = type,
            .padding = {.inner = 4, .outer = 8},
            .in_place = true});
    }
  }
  const auto bench = [&](const MergeShape& s) { cases.bench(name_of(s), [s](Inputs& in) { return build(in, s); }); };
  for (const int64_t tokens : {1, 64, 4096}) {
    bench({.parts = 4, .tokens = tokens, .heads = 64, .dim = 512, .sinks = Sinks::finite, .empty = 0.0});
    // Chunks of an MLA context.
    bench(
        {.parts = 2, .tokens = tokens, .heads = 128, .dim = 128, .in = DType::bf16, .sinks = Sinks::none, .empty = 0.0, .in_place = true});
  }
}

void add_random_merge_attn_states(CaseList& list, Draw& draw) {
  MergeShape s;
  s.parts = draw.size(1, 40);
  s.heads = draw.heads();
  s.dim = draw.chance(0.5) ? draw.of<int64_t>({64, 128, 512, 576}) : draw.size(1, 600);
  s.tokens = draw.tokens(std::clamp<int64_t>(1'000'000 / (s.parts * s.heads * s.dim), 1, 500));
  s.in = draw.of({DType::f32, DType::bf16});
  s.out = draw.of({DType::f32, DType::bf16});
  s.sinks = random_sinks(draw);
  s.empty = draw.of({0.2, 0.0, 0.7, 1.0});
  s.lse_scale = draw.of({3.0, 3.0, 60.0, 0.0});
  s.negative_empty = draw.chance(0.5);
  s.lse = draw.chance(0.8);
  s.padding = draw.padding();
  s.in_place = s.in == s.out && draw.chance(0.3);
  CaseAdder<MergeAttnStatesParams>(list, "merge_attn_states", &OpSet::merge_attn_states).drawn(draw.name(name_of(s)), [=](Inputs& in) {
    return build(in, s);
  });
}

}  // namespace strata::testkit
