#include "testkit/cases/linear_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/ceil_div.h"
#include "contracts/packed_weight.h"

namespace strata::testkit {

const LinearWeight* make_weight(Inputs& in, const WeightShape& s) {
  LinearWeight w;
  w.n = s.n;
  w.k = s.k;
  w.groups = s.groups;
  w.shares_device = s.shares_device;
  const int64_t rows = s.groups * s.n;
  if (s.format == WeightFormat::bf16) {
    w.weight = in.bf16({rows, s.k}, 1.0 / std::sqrt(static_cast<double>(s.k)));
    return in.keep(std::move(w));
  }
  w.block_n = s.block_n;
  w.block_k = s.block_k;
  w.power_of_two_scales = s.format == WeightFormat::e4m3_ue8m0;
  w.weight = in.e4m3({rows, s.k}, 100.0);
  const Shape blocks{ceil_div(rows, s.block_n), ceil_div(s.k, s.block_k)};
  std::vector<float> scales(static_cast<size_t>(blocks[0] * blocks[1]));
  for (float& scale : scales) {
    const double size = std::exp2(static_cast<double>(in.rng().in(-14, -10)));
    scale = static_cast<float>(s.format == WeightFormat::e4m3_ue8m0 ? size : size * (1.0 + in.rng().uniform()));
  }
  w.scale = in.values(DType::f32, blocks, scales);
  return in.keep(std::move(w));
}

TensorView activation_scales(Inputs& in, const Shape& shape, bool ue8m0, Padding padding) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  std::vector<float> scales(static_cast<size_t>(count));
  for (float& scale : scales) {
    const double size = std::exp2(static_cast<double>(in.rng().in(-9, -5)));
    scale = static_cast<float>(ue8m0 ? size : size * (1.0 + in.rng().uniform()));
  }
  return in.values(DType::f32, shape, scales, padding);
}

double weight_bytes(const WeightShape& s) {
  const double elements = static_cast<double>(s.groups) * static_cast<double>(s.n) * static_cast<double>(s.k);
  return s.format == WeightFormat::bf16 ? 2 * elements : elements * (1.0 + 4.0 / static_cast<double>(s.block_n * s.block_k));
}

Tolerance product_tolerance(bool exact_operands, DType out, int64_t numel, const Inputs& in) {
  constexpr int64_t kFew = 4096;
  const double three_roundings = 3 * (in.drawn() ? 0x1p-8 : 0x1p-9);  // at worst; as they are
  const double cos = numel < kFew ? three_roundings * three_roundings / 2 : 1e-5;
  if (!exact_operands) {
    return {.kind = Tolerance::Kind::close, .abs_rms = 3e-2, .rel = 2.01 / 128, .cos = cos, .beyond = in.drawn() ? 3e-4 : 0.0};
  }
  return out == DType::f32 ? fp32_sum() : bf16_rounding(0.05);
}

Tolerance fp8_product_tolerance(bool exact_operands, DType out, int64_t numel, const Inputs& in) {
  Tolerance t = product_tolerance(exact_operands, out, numel, in);
  if (in.device()->id().kind != DeviceKind::cuda) return t;
  t.abs_rms = std::max(t.abs_rms, in.drawn() ? 8e-3 : 5e-3);  // fp32 results: of 327680 of 128 channels the worst was 5.1e-3 away
  if (in.drawn()) t.rel = std::max(t.rel, 0x1p-10);
  t.sum = exact_operands && out == DType::bf16;
  constexpr double kOneStep = 0x1p-7;  // of bf16: an output of few values may be as far away as one of them
  t.cos = std::max(t.cos, numel < 4096 ? kOneStep * kOneStep / 2 : 1e-5);
  t.inexact = 1.0;
  return t;
}

const LinearWeight* pack_weight(const LinearWeight& weight, const std::string& implementation, const OpSet& ops, Inputs& in) {
  for (const WeightPacking& packing : ops.weight_packings) {
    if (packing.name != implementation) continue;
    const size_t bytes = packing.packed_bytes(weight, *in.device());
    if (bytes == 0) return nullptr;
    return in.keep(
        strata::ops::as_packed(weight, packing.name, in.packed(bytes, [&](void* dst) { packing.pack(weight, *in.device(), dst); })));
  }
  return nullptr;
}

WeightShape random_weight(Draw& draw, int64_t groups, int64_t elements, int64_t multiple_n, int64_t multiple_k) {
  WeightShape w{.groups = groups};
  w.format = draw.of({WeightFormat::bf16, WeightFormat::bf16, WeightFormat::e4m3_ue8m0, WeightFormat::e4m3_ue8m0, WeightFormat::e4m3_ue8m0,
                      WeightFormat::e4m3_f32});
  const auto whole = [&](int64_t n, int64_t multiple) {
    const int64_t unit = draw.usual() ? draw.of<int64_t>({8, 16, 16, 128, 512}) : draw.of<int64_t>({1, 4, 8, 16});
    const int64_t step = multiple > 1 ? multiple : n >= unit ? unit : std::clamp<int64_t>(n, 1, 8);
    return std::max(n / step, int64_t{1}) * step;
  };
  const int64_t of_group = elements / groups;
  if (draw.usual() && of_group >= 20'000 && draw.chance(0.6)) {  // tiles enough for a GPU's SMs
    w.n = whole(std::min(draw.in(2048, 17'000), elements / 64) / groups, multiple_n);
    w.k = whole(draw.size(16, std::max<int64_t>(of_group / w.n, 16)), multiple_k);
  } else {
    w.k = whole(draw.tokens(std::min<int64_t>(of_group, 9000)), multiple_k);
    w.n = whole(draw.tokens(std::clamp<int64_t>(of_group / w.k, 1, 20'000)), multiple_n);
  }
  if (!draw.usual() && draw.chance(0.5)) {
    w.block_n = draw.of<int64_t>({1, 64, 128, 256, 96});
    w.block_k = draw.of<int64_t>({128, 128, 32, 64, 96, 256, 2048});
  }
  return w;
}

std::string suffix_of(const WeightShape& w, Packing packing, Padding x, Padding y) {
  std::string text;
  if (w.block_n != 128 || w.block_k != 128) text += fmt::format("-blocks{}x{}", w.block_n, w.block_k);
  if (x.inner + x.outer > 0) text += fmt::format("-x_strided{}", x.inner);
  if (y.inner + y.outer > 0) text += fmt::format("-y_strided{}", y.inner);
  return text + (packing == Packing::never ? "" : "-packed");
}

}  // namespace strata::testkit
