#include <fmt/format.h>

#include "registry.h"
#include "typed_case.h"

namespace strata::cases {
namespace {

struct NormShape {
  int64_t tokens = 1;
  int64_t q = 0;  // 0: only kv
  int64_t kv = 512;
  Padding padding{};
  bool in_place = false;
  double scale = 1.0;
};

Built<RmsNormPairParams> build(Inputs& in, const NormShape& s) {
  const int64_t tokens = in.share(s.tokens);
  RmsNormPairParams p;
  std::vector<Output> outputs;
  const auto one = [&](const char* name, int64_t n, TensorView& x, TensorView& weight, TensorView& out) {
    x = in.bf16({tokens, n}, s.scale, s.padding);
    weight = in.f32({n});
    out = s.in_place ? x : in.output(DType::bf16, {tokens, n}, s.padding);
    outputs.push_back(view_output(name, out, bf16_rounding()));
  };
  if (s.q > 0) one("q_out", s.q, p.q, p.q_weight, p.q_out);
  one("kv_out", s.kv, p.kv, p.kv_weight, p.kv_out);
  const double lanes = static_cast<double>(s.q + s.kv), t = static_cast<double>(tokens);
  return {.params = p, .outputs = std::move(outputs), .bytes = lanes * (4 * t + 4), .flops = 4 * lanes * t};
}

std::string name_of(const NormShape& s) {
  return fmt::format("T{}-q{}-kv{}{}{}{}", s.tokens, s.q, s.kv, s.padding.inner > 0 ? "-strided" : "", s.in_place ? "-in_place" : "",
                     s.scale == 1.0 ? "" : fmt::format("-scale{:g}", s.scale));
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
  for (const int64_t tokens : {1, 64, 4096}) {
    for (const int64_t q : {1024, 1536}) {
      const NormShape s{tokens, q, 512};
      cases.bench(name_of(s), [s](Inputs& in) { return build(in, s); });
    }
  }
}

}  // namespace strata::cases
