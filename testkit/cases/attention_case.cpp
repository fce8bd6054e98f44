#include "testkit/cases/attention_case.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace strata::testkit {

const char* name_of(Sinks sinks) {
  switch (sinks) {
    case Sinks::none: return "none";
    case Sinks::finite: return "finite";
    case Sinks::plus_infinity: return "+inf";
    case Sinks::minus_infinity: return "-inf";
    case Sinks::mixed: return "mixed";
  }
  return "";
}

TensorView make_sinks(Inputs& in, Sinks sinks, int64_t heads) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  if (sinks == Sinks::none) return {};
  std::vector<float> values(static_cast<size_t>(heads));
  for (float& v : values) {
    v = 2.0f * in.rng().normal();
    if (sinks == Sinks::plus_infinity) v = kInf;
    if (sinks == Sinks::minus_infinity) v = -kInf;
    if (sinks == Sinks::mixed && in.rng().chance(0.3)) v = in.rng().chance(0.5) ? kInf : -kInf;
  }
  return in.values(DType::f32, {heads}, values);
}

MadeIndices make_indices(Rng& rng, const IndexRows& s, std::span<const int64_t> valid, std::span<const int64_t> stale,
                         std::span<const int32_t> holes) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max(), kMin = std::numeric_limits<int32_t>::min();
  MadeIndices made;
  const auto pick = [&](std::span<const int64_t> from) {
    return static_cast<int32_t>(from[static_cast<size_t>(rng.in(0, static_cast<int64_t>(from.size())))]);
  };
  int64_t length = s.width;
  for (int64_t row = 0; row < s.rows; ++row) {
    if (row % s.rows_per_length == 0 && s.lengths != Lengths::none) {
      const int64_t random[] = {0, 1, s.width, rng.in(0, s.width + 1), rng.in(0, s.width + 1), rng.in(0, s.width + 1)};
      length = s.lengths == Lengths::full ? s.width : s.lengths == Lengths::zero ? 0 : std::min(s.width, random[rng.next() % 6]);
      made.lengths.push_back(static_cast<int32_t>(length));
    }
    for (int64_t i = 0; i < s.width; ++i) {
      int32_t entry = -1;
      if (i < length) {
        if (valid.empty() || rng.chance(s.skipped)) {
          entry = holes[static_cast<size_t>(rng.next() % holes.size())];
        } else {
          entry = pick(valid);
          made.attended += 1;
        }
      } else {
        const int32_t nonsense[] = {-1, kMax, kMin, valid.empty() ? -1 : pick(valid), stale.empty() ? -5 : pick(stale)};
        entry = nonsense[rng.next() % 5];
      }
      made.indices.push_back(entry);
    }
  }
  return made;
}

Tolerance attention_out(double abs, double rel, double cos, double key_size, int64_t numel, bool drawn) {
  constexpr int64_t kFew = 4096, kVeryFew = 256;
  const double roundings = drawn && numel < kVeryFew ? 0x1p-6 : 0x1p-8;
  Tolerance tolerance = close(abs * std::max(1.0, key_size / 0.1), rel, numel < kFew ? std::max(cos, roundings * roundings / 2) : cos);
  // Two outliers that cancel leave the rounding of their probabilities: a few elements of a large output, none of a small one. Of the many
  // small ones that are drawn some has such an element (0.99 and -0.89 with weights of 0.22 and 0.16: off by 8.5e-4, 8.9e-4 are permitted).
  tolerance.beyond = drawn ? std::max(1e-4, numel < kVeryFew ? 0.0 : 1.0 / static_cast<double>(numel)) : 1e-5;
  return tolerance;
}

Tolerance attention_lse(double size, double rel, bool drawn) { return close((drawn ? 2e-6 : 1e-6) * std::max(1.0, size), rel, 1e-7); }

float tensor_scale(double key_size) {
  constexpr double kUsual = 0.1;
  return key_size > 0 ? static_cast<float>(std::exp2(std::round(std::log2(key_size / kUsual)) - 7)) : 0x1p-7f;
}

Sinks random_sinks(Draw& draw) {
  return draw.of({Sinks::none, Sinks::finite, Sinks::plus_infinity, Sinks::minus_infinity, Sinks::mixed, Sinks::mixed});
}

Lengths random_lengths(Draw& draw) {
  return draw.chance(0.6) ? Lengths::random : draw.of({Lengths::none, Lengths::full, Lengths::full, Lengths::zero});
}

}  // namespace strata::testkit
