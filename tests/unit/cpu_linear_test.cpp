// The CPU's linear layers against the scalar reference: every implementation forced by name, every instruction-set cap, row-major and
// packed weights, strided rows.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "formats/quantize.h"
#include "ops/factories.h"

namespace strata {
namespace {

constexpr CpuIsa kCaps[] = {CpuIsa::portable, CpuIsa::avx2, CpuIsa::avx512, CpuIsa::best};

std::shared_ptr<Device> capped(CpuIsa isa, const std::string& implementation = {}) {
  Config config;
  config.cpu_isa = isa;
  config.cpu_threads = 2;
  if (!implementation.empty()) config.force["*"] = implementation;
  return open_device({}, config);
}

struct Shape {
  int64_t t, g, n, k;
};

enum class Kind { bf16, fp8_pow2, fp8_f32 };

// Weights, activations and outputs of one case. Rows of x and y are `gap` elements longer than they need to be.
struct Case {
  Case(const Shape& s, Kind kind, int64_t gap, DType y_type) : shape(s), kind_(kind), gap_(gap) {
    std::mt19937 random(static_cast<unsigned>(s.t * 31 + s.n * 7 + s.k));
    std::normal_distribution<float> normal;
    const int64_t rows = s.g * s.n, blocks_n = (rows + 127) / 128, blocks_k = (s.k + 127) / 128;
    x.resize(static_cast<size_t>(std::max<int64_t>(s.t, 1) * (s.g * s.k + gap)));
    for (auto& v : x) v = to_bf16(normal(random) * (random() % 50 == 0 ? 30.0f : 1.0f));
    codes.resize(static_cast<size_t>(rows * s.k));
    bf16.resize(codes.size());
    scales.resize(static_cast<size_t>(blocks_n * blocks_k));
    for (auto& v : scales) v = kind == Kind::fp8_f32 ? 0.001f + 0.0003f * std::abs(normal(random)) : pow2(-9 - static_cast<int>(random() % 3));
    for (size_t i = 0; i < codes.size(); ++i) {
      codes[i] = to_e4m3(normal(random) * 60.0f);
      bf16[i] = to_bf16(normal(random) * 0.1f);
    }
    w.n = s.n;
    w.k = s.k;
    w.groups = s.g;
    if (kind == Kind::bf16) {
      w.weight = TensorView::contiguous(bf16.data(), DType::bf16, {}, {rows, s.k});
    } else {
      w.weight = TensorView::contiguous(codes.data(), DType::e4m3, {}, {rows, s.k});
      w.scale = TensorView::contiguous(scales.data(), DType::f32, {}, {blocks_n, blocks_k});
    }
    y.assign(static_cast<size_t>(std::max<int64_t>(s.t, 1) * (s.g * s.n + gap)) * size_of(y_type), 0xAB);
    y_type_ = y_type;
  }

  TensorView view(void* data, DType type, int64_t inner) const {
    TensorView v = TensorView::contiguous(data, type, {}, {shape.t, shape.g, inner});
    v.stride[0] = shape.g * inner + gap_;
    return v;
  }
  static TensorView flat(TensorView v) {
    v.rank = 2;
    v.shape[1] = v.shape[2];
    v.stride[1] = 1;
    return v;
  }

  float value(const std::vector<uint8_t>& out, int64_t t, int64_t column) const {
    const auto i = static_cast<size_t>(t * (shape.g * shape.n + gap_) + column);
    if (y_type_ == DType::f32) {
      float v;
      std::memcpy(&v, out.data() + 4 * i, 4);
      return v;
    }
    uint16_t bits;
    std::memcpy(&bits, out.data() + 2 * i, 2);
    return to_float(Bf16{bits});
  }

  // Runs with `implementation`; packed: through that packing. Returns y, gaps included, or nothing when refused.
  std::vector<uint8_t> run(const std::shared_ptr<Device>& device, ActivationFormat format, const std::string& packing) {
    LinearWeight weight = w;
    std::vector<uint8_t> packed;
    if (!packing.empty()) {
      for (const WeightPacking& p : ops::make_weight_packings()) {
        if (p.name != packing) continue;
        packed.resize(p.packed_bytes(w, *device) + 64);
        if (packed.size() == 64) return {};
        uint8_t* aligned = packed.data() + (64 - reinterpret_cast<uintptr_t>(packed.data()) % 64) % 64;
        p.pack(w, *device, aligned);
        weight.weight = weight.scale = {};
        weight.packed = TensorView::contiguous(aligned, DType::u8, {}, {static_cast<int64_t>(packed.size()) - 64});
        weight.packing = packing;
      }
      if (packed.empty()) return {};
    }
    std::vector<uint8_t> out = y;
    if (shape.g == 1) {
      static const auto op = ops::make_linear();
      return execute(op, LinearParams{flat(view(x.data(), DType::bf16, shape.k)), &weight, flat(view(out.data(), y_type_, shape.n)), format}, out, device);
    }
    static const auto op = ops::make_grouped_linear();
    return execute(op, GroupedLinearParams{view(x.data(), DType::bf16, shape.k), {}, &weight, view(out.data(), y_type_, shape.n)}, out, device);
  }

  template <class Params>
  std::vector<uint8_t> execute(const Op<Params>& op, const Params& params, std::vector<uint8_t>& out, const std::shared_ptr<Device>& device) {
    std::string name = device->config().force.at("*");
    for (const auto& c : op.candidates(params, *device)) {
      if (c.name == name && !c.support) return {};
    }
    const Tensor workspace(device, DType::u8, {static_cast<int64_t>(op.workspace_bytes(params, *device))});
    op(params, {*device, {}, {workspace.view().data, workspace.view().bytes()}});
    return out;
  }

  Shape shape;
  LinearWeight w;
  std::vector<Bf16> x, bf16;
  std::vector<E4m3> codes;
  std::vector<float> scales;
  std::vector<uint8_t> y;

 private:
  Kind kind_;
  int64_t gap_;
  DType y_type_ = DType::bf16;
};

// Relative to the largest output: products cancel. Padding of rows must be untouched.
void expect_close(const Case& c, const std::vector<uint8_t>& expected, const std::vector<uint8_t>& actual, double tolerance, const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size());
  double error = 0, size = 0;
  for (int64_t t = 0; t < c.shape.t; ++t) {
    for (int64_t o = 0; o < c.shape.g * c.shape.n; ++o) {
      const double e = c.value(expected, t, o), a = c.value(actual, t, o);
      error += (e - a) * (e - a);
      size += e * e;
      EXPECT_LE(std::abs(e - a), 0.01 * std::abs(e) + tolerance * 8 * std::sqrt(static_cast<double>(c.shape.k)) * 0.1) << what << " token " << t << " output " << o;
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_LE(std::sqrt(error), tolerance * std::sqrt(size)) << what;
}

const Shape kShapes[] = {{1, 1, 1, 1},      {3, 1, 7, 13},     {5, 1, 33, 130},   {0, 1, 64, 256},  {1, 1, 512, 1024}, {17, 1, 130, 300},
                         {300, 1, 96, 384}, {2, 1, 1536, 2048}, {4, 3, 40, 256}, {1, 8, 128, 512}, {19, 2, 256, 128}};

TEST(CpuLinear, AgreesWithTheReference) {
  const auto reference = capped(CpuIsa::best, "reference");
  for (const Shape& s : kShapes) {
    for (const Kind kind : {Kind::bf16, Kind::fp8_pow2, Kind::fp8_f32}) {
      for (const auto format : {ActivationFormat::bf16, ActivationFormat::fp8_ue8m0, ActivationFormat::fp8_f32}) {
        if (s.g > 1 && format != ActivationFormat::bf16) continue;
        for (const DType y_type : {DType::bf16, DType::f32}) {
          if (s.g > 1 && y_type == DType::f32) continue;
          const int64_t gap = (s.k + s.n) % 3;
          Case c(s, kind, gap, y_type);
          const auto expected = c.run(reference, format, "");
          // One rounding of bf16 outputs; one more of each operand that bf16 does not hold exactly.
          const bool inexact = kind == Kind::fp8_f32 || format == ActivationFormat::fp8_f32;
          for (const CpuIsa cap : kCaps) {
            for (const std::string name : {"cpu/amx", "cpu/onednn", "cpu/simd"}) {
              for (const std::string packing : {"", "cpu/amx", "cpu/onednn"}) {
                const auto actual = c.run(capped(cap, name), format, packing);
                if (actual.empty()) continue;
                const double tolerance = (y_type == DType::bf16 ? 3e-3 : 1e-5) + (inexact && name != "cpu/simd" ? 4e-3 : 0);
                expect_close(c, expected, actual, tolerance,
                             name + (packing.empty() ? " row-major " : " packed ") + to_string(cap) + " t " + std::to_string(s.t) + " g " + std::to_string(s.g) + " n " +
                                 std::to_string(s.n) + " k " + std::to_string(s.k) + " kind " + std::to_string(static_cast<int>(kind)) + " activation " +
                                 std::to_string(static_cast<int>(format)) + " gap " + std::to_string(gap));
                if (HasFailure()) return;
              }
            }
          }
        }
      }
    }
  }
}

TEST(CpuLinear, WorkspaceDoesNotShrinkWithMoreTokens) {
  const auto device = capped(CpuIsa::best);
  const auto op = ops::make_linear();
  for (const auto& impl : op.implementations()) {
    size_t before = 0;
    for (const int64_t t : {0, 1, 2, 3, 15, 16, 17, 100, 127, 129, 500, 512, 513, 1000}) {
      Case c({0, 1, 192, 256}, Kind::bf16, 0, DType::bf16);
      LinearParams p;
      p.x = TensorView::contiguous(nullptr, DType::bf16, {}, {t, 256});
      p.y = TensorView::contiguous(nullptr, DType::bf16, {}, {t, 192});
      p.weight = &c.w;
      if (!impl.supports(p, *device)) continue;
      const size_t bytes = impl.workspace_bytes(p, *device);
      EXPECT_GE(bytes, before) << impl.name << " at " << t;
      before = bytes;
    }
  }
}

}  // namespace
}  // namespace strata
