// When a result is right. V4 specification 17.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "testkit/harness/inputs.h"
#include "strata/dtype.h"
#include "strata/kv_format.h"

namespace strata::testkit {

struct Tolerance {
  enum class Kind {
    exact,      // the same bytes
    close,      // every element within abs + abs_rms * rms(want) or within rel, and cos_diff of the whole
    code_step,  // quantised values at most one step apart
  };
  Kind kind = Kind::exact;
  double abs = 0;
  double abs_rms = 0;
  double rel = 0;
  double cos = 0;        // 0: not compared. In bf16 the largest element may also be off by one number: a tie is rounded to either side
  double inexact = 1.0;  // share of the elements that may differ at all: rounding differs in isolated elements only
  double beyond = 0;     // share that may be further away, of numbers: an absmax next to a power of two moves a whole block and its scale
  bool sum = false;      // close: within abs and rel together, of an error that is rounded afterwards
  bool any_nan = false;  // close: where NaN is wanted, every NaN is; else it is the poison, which must stay as it is
};

inline Tolerance exact() { return {}; }
inline Tolerance close(double abs, double rel, double cos = 0) {
  return {.kind = Tolerance::Kind::close, .abs = abs, .rel = rel, .cos = cos};
}
// fp32 arithmetic whose result is rounded to bf16 once: one bf16 step in isolated elements, and fp32 noise where terms cancel.
inline Tolerance bf16_rounding(double inexact = 0.02) {
  return {.kind = Tolerance::Kind::close, .abs_rms = 2e-5, .rel = 1.01 / 128, .inexact = inexact};
}
// fp32 sums in another order.
inline Tolerance fp32_sum() { return {.kind = Tolerance::Kind::close, .abs_rms = 1e-4, .rel = 1e-4}; }
inline Tolerance code_step(double inexact = 0.02) { return {.kind = Tolerance::Kind::code_step, .inexact = inexact, .beyond = 5e-4}; }

// A tensor on the host, row-major.
struct HostArray {
  DType dtype = DType::u8;
  Shape shape;
  std::vector<std::byte> data;

  int64_t numel() const;
  // The i-th element; e4m3 by value.
  double at(int64_t i) const;
  template <class T>
  const T* ptr() const {
    return reinterpret_cast<const T*>(data.data());
  }
};

// Each returns nothing, or one line with position, value, expected value and count, which begins with `name`. room: for Kind::close, an
// element's own allowance in addition to the tolerance's, an array like `want`; null: none.
std::string compare(const std::string& name, const HostArray& got, const HostArray& want, const Tolerance& tolerance,
                    const HostArray* room = nullptr);

// Whole caches on host memory: the rows `computed` within the tolerance by value, all other bytes (unused rows, padding) equal.
std::string compare_caches(const std::string& name, const PagedCache& got, const PagedCache& want, std::span<const int64_t> computed,
                           const Tolerance& tolerance);

// A top-k selection per row of i32 [T, k]: ascending entries below lengths[t], left-packed, min(k, length) of them, then -1. Entries that
// only one of the two selections has must have logits within 1e-5 of the smallest one in `want`, or within slack_of_max times the row's
// largest. logits: f32 [T, C].
std::string compare_selection(const std::string& name, const HostArray& got, const HostArray& want, const HostArray& logits,
                              std::span<const int32_t> lengths, double slack_of_max);

}  // namespace strata::testkit
