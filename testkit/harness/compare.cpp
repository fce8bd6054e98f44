#include "testkit/harness/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/fp16.h"
#include "formats/ue8m0.h"

namespace strata::testkit {
namespace {

std::string index_of(const HostArray& a, int64_t i) {
  std::string text;
  for (size_t d = a.shape.size(); d-- > 0;) {
    text.insert(0, std::to_string(i % a.shape[d]) + (text.empty() ? "" : ", "));
    i /= a.shape[d];
  }
  return "[" + text + "]";
}

bool same_bits(const HostArray& a, const HostArray& b, int64_t i) {
  const size_t size = size_of(a.dtype);
  return std::memcmp(a.data.data() + static_cast<size_t>(i) * size, b.data.data() + static_cast<size_t>(i) * size, size) == 0;
}

// Counts what differs and remembers the first case of it.
struct Differences {
  int64_t count = 0;
  int64_t first = -1;
  void add(int64_t i) {
    if (count++ == 0) first = i;
  }
};

std::string describe(const std::string& name, const HostArray& got, const HostArray& want, const Differences& wrong, const char* what) {
  return fmt::format("{}{} is {:.9g}, must be {:.9g}; {} of {} elements {}", name, index_of(want, wrong.first), got.at(wrong.first),
                     want.at(wrong.first), wrong.count, want.numel(), what);
}

// No rounding makes a NaN or an infinity of a number: one that is not the reference's own is wrong, whatever share may be further away. It
// may also be the poison of an element that was not written, or of one that must not be.
std::string describe_not_finite(const std::string& name, const HostArray& got, const HostArray& want, const Differences& wrong) {
  return describe(name, got, want, wrong, "are NaN or infinite on one side only, or differently");
}

// Isolated differences are few; two are granted to small tensors.
bool too_many(int64_t count, double share, int64_t numel) {
  return share < 1.0 && static_cast<double>(count) > share * static_cast<double>(numel) + 2.0;
}

std::string compare_exact(const std::string& name, const HostArray& got, const HostArray& want) {
  Differences wrong;
  for (int64_t i = 0; i < want.numel(); ++i) {
    if (!same_bits(got, want, i)) wrong.add(i);
  }
  return wrong.count == 0 ? "" : describe(name, got, want, wrong, "differ");
}

// From a number to the next one.
double bf16_step(double v) { return v > 0 ? std::exp2(std::ilogb(v) - 7) : 0.0; }

std::string compare_close(const std::string& name, const HostArray& got, const HostArray& want, const Tolerance& tolerance,
                          const HostArray* room) {
  double sum_want = 0, sum_got = 0, product = 0, largest = 0;
  int64_t finite = 0;
  for (int64_t i = 0; i < want.numel(); ++i) {
    const double w = want.at(i), g = got.at(i);
    if (!std::isfinite(w) || !std::isfinite(g)) continue;
    sum_want += w * w;
    sum_got += g * g;
    product += w * g;
    largest = std::max(largest, std::abs(w));
    ++finite;
  }
  const double rms = finite > 0 ? std::sqrt(sum_want / static_cast<double>(finite)) : 0.0;
  const double abs = tolerance.abs + tolerance.abs_rms * rms;
  Differences not_finite, wrong, inexact;
  for (int64_t i = 0; i < want.numel(); ++i) {
    if (same_bits(got, want, i)) continue;
    if (tolerance.any_nan && std::isnan(want.at(i)) && std::isnan(got.at(i))) continue;
    const double w = want.at(i), g = got.at(i);
    if (!std::isfinite(w) || !std::isfinite(g)) {
      not_finite.add(i);
      continue;
    }
    if (std::abs(w - g) < std::numeric_limits<float>::min()) continue;  // zeros of either sign, and what some devices make 0
    inexact.add(i);
    const double difference = std::abs(g - w);
    const double own = room == nullptr ? abs : std::max(abs, room->at(i));
    const double relative = tolerance.rel * (std::abs(w) + 1e-6);
    const double allowed = tolerance.sum ? own + relative : std::max(own, relative);
    if (difference > allowed) wrong.add(i);
  }
  if (not_finite.count > 0) return describe_not_finite(name, got, want, not_finite);
  if (static_cast<double>(wrong.count) > tolerance.beyond * static_cast<double>(want.numel())) {
    return describe(name, got, want, wrong, fmt::format("are beyond abs {:.3g} and rel {:.3g}", abs, tolerance.rel).c_str());
  }
  if (too_many(inexact.count, tolerance.inexact, want.numel())) {
    return describe(name, got, want, inexact, fmt::format("differ, of which {:.2g} may", tolerance.inexact).c_str());
  }
  if (tolerance.cos > 0 && sum_want >= 1e-12) {
    const double cos_diff = 1.0 - 2.0 * product / (sum_want + sum_got), step = want.dtype == DType::bf16 ? bf16_step(largest) : 0.0;
    const double allowed = tolerance.cos + step * step / (sum_want + sum_got);
    if (cos_diff > allowed) return fmt::format("{} has cos_diff {:.3g}, must be below {:.3g}", name, cos_diff, allowed);
  }
  return "";
}

// Quantised bits as numbers, so that neighbouring numbers are neighbouring values. -0 and +0 are the same number.
int ordinal(uint8_t code, int sign_bit) {
  const int magnitude = code & (sign_bit - 1);
  return (code & sign_bit) != 0 ? -magnitude : magnitude;
}

constexpr int kFromNan = 256;  // further than any two numbers are apart

int code_distance(DType dtype, uint8_t got, uint8_t want) {
  if (got == want) return 0;
  if (dtype == DType::e4m3) {
    const bool nan = (got & 0x7F) == 0x7F || (want & 0x7F) == 0x7F;
    return nan ? kFromNan : std::abs(ordinal(got, 0x80) - ordinal(want, 0x80));
  }
  if (dtype == DType::e8m0) return got == 0xFF || want == 0xFF ? kFromNan : std::abs(int{got} - int{want});
  const int low = std::abs(ordinal(got & 15, 8) - ordinal(want & 15, 8));  // u8: two e2m1 values
  const int high = std::abs(ordinal(got >> 4, 8) - ordinal(want >> 4, 8));
  return std::max(low, high);
}

std::string compare_codes(const std::string& name, const HostArray& got, const HostArray& want, const Tolerance& tolerance) {
  Differences not_finite, inexact, beyond;
  for (int64_t i = 0; i < want.numel(); ++i) {
    const int distance = code_distance(want.dtype, got.ptr<uint8_t>()[i], want.ptr<uint8_t>()[i]);
    if (!same_bits(got, want, i)) inexact.add(i);
    if (distance > 1) beyond.add(i);
    if (distance == kFromNan) not_finite.add(i);
  }
  if (not_finite.count > 0) return describe_not_finite(name, got, want, not_finite);
  if (static_cast<double>(beyond.count) > tolerance.beyond * static_cast<double>(want.numel())) {
    return describe(name, got, want, beyond, "are more than one code away");
  }
  if (too_many(inexact.count, tolerance.inexact, want.numel())) {
    return describe(name, got, want, inexact, fmt::format("differ, of which {:.2g} may", tolerance.inexact).c_str());
  }
  return "";
}

}  // namespace

int64_t HostArray::numel() const {
  int64_t n = 1;
  for (int64_t extent : shape) n *= extent;
  return n;
}

double HostArray::at(int64_t i) const {
  switch (dtype) {
    case DType::f64: return ptr<double>()[i];
    case DType::f32: return ptr<float>()[i];
    case DType::bf16: return to_float(ptr<Bf16>()[i]);
    case DType::f16: return to_float(ptr<Fp16>()[i]);
    case DType::e4m3: return to_float(ptr<E4m3>()[i]);
    case DType::e8m0: return to_float(ptr<E8m0>()[i]);
    case DType::i64: return static_cast<double>(ptr<int64_t>()[i]);
    case DType::i32: return ptr<int32_t>()[i];
    case DType::i16: return ptr<int16_t>()[i];
    case DType::i8: return ptr<int8_t>()[i];
    case DType::u8:
    case DType::boolean: return ptr<uint8_t>()[i];
  }
  return 0;
}

std::string compare(const std::string& name, const HostArray& got, const HostArray& want, const Tolerance& tolerance,
                    const HostArray* room) {
  if (got.dtype != want.dtype || got.shape != want.shape) return name + ": the two runs do not have the same shape";
  switch (tolerance.kind) {
    case Tolerance::Kind::exact: return compare_exact(name, got, want);
    case Tolerance::Kind::close: return compare_close(name, got, want, tolerance, room);
    case Tolerance::Kind::code_step: return compare_codes(name, got, want, tolerance);
  }
  return name + ": unknown tolerance";
}

}  // namespace strata::testkit
