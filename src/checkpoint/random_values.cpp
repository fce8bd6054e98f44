#include "checkpoint/random_values.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/fnv1a.h"
#include "core/thread_team.h"
#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "formats/ue8m0.h"

namespace strata {
namespace {

constexpr size_t kQuantiles = 65536;
constexpr int64_t kChunksWorthThreads = 64;  // about a millisecond of work

// Quantiles (i + 0.5) / 65536 of the normal distribution: a draw is then 16 random bits and one look-up.
const std::vector<double>& normal_quantiles() {
  static const std::vector<double> table = [] {
    std::vector<double> z(kQuantiles);
    double guess = 0.0;
    for (size_t i = kQuantiles / 2; i < kQuantiles; ++i) {
      // Newton's method on the upper tail, from the neighbour towards the middle.
      const double tail = 1.0 - (static_cast<double>(i) + 0.5) / kQuantiles;
      for (double step = 1.0; std::abs(step) > 1e-12;) {
        const double density = std::exp(-0.5 * guess * guess) / std::sqrt(2.0 * std::numbers::pi);
        step = (0.5 * std::erfc(guess / std::numbers::sqrt2) - tail) / density;
        guess += step;
      }
      z[i] = guess;
      z[kQuantiles - 1 - i] = -guess;
    }
    return z;
  }();
  return table;
}

// SplitMix64: a bijection of the counter, so that any chunk can be made without those before it.
uint64_t mix(uint64_t v) {
  v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9u;
  v = (v ^ (v >> 27)) * 0x94D049BB133111EBu;
  return v ^ (v >> 31);
}
constexpr uint64_t kCounterStep = 0x9E3779B97F4A7C15u;

// Blocks of 0.5, 1 or 2 times the common size, so that a scale that is read from the wrong place shows. The mean square is 1.
double block_gain(uint64_t random) {
  const uint64_t tenth = random % 10;
  return tenth < 4 ? 0.5 : tenth < 9 ? 1.0 : 2.0;
}

// Four draws from one 64-bit number; `begin` is a multiple of four.
template <class T, class Quantile>
void draw(const Quantile& quantile, uint64_t key, int64_t begin, int64_t count, T* out) {
  uint64_t counter = key + static_cast<uint64_t>(begin / 4) * kCounterStep;
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    uint64_t bits = mix(counter += kCounterStep);
    for (int64_t j = 0; j < 4; ++j, bits >>= 16) out[i + j] = quantile(bits & 0xFFFFu);
  }
  uint64_t bits = mix(counter += kCounterStep);
  for (; i < count; ++i, bits >>= 16) out[i] = quantile(bits & 0xFFFFu);
}

template <class T>
T convert(float v);
template <>
float convert(float v) {
  return v;
}
template <>
Bf16 convert(float v) {
  return to_bf16(v);
}
template <>
E4m3 convert(float v) {
  return to_e4m3(v);
}

// Calls f with an object of the tensor's element type.
template <class F>
void with_element(StoredDType dtype, F&& f) {
  if (dtype == DType::f32) return f(float{});
  if (dtype == DType::bf16) return f(Bf16{});
  f(E4m3{});
}

}  // namespace

RandomTensor::RandomTensor(const PlannedTensor& plan, bool power_of_two_scales, uint64_t seed)
    : plan_(plan), power_of_two_scales_(power_of_two_scales), key_(mix(fnv1a(plan.stored.name) + mix(seed))) {
  if (plan.content != PlannedTensor::Content::normal) {
    // The largest value there can be becomes the largest code.
    base_scale_ = normal_quantiles().back() * plan.stddev / kE4m3Max;
    if (power_of_two_scales_) base_scale_ = pow2(ceil_log2(static_cast<float>(base_scale_)));
  }
  if (plan.content == PlannedTensor::Content::scales || plan.stored.numel() < static_cast<int64_t>(kQuantiles)) return;
  with_element(plan.stored.dtype, [&](auto element) { fill_table<decltype(element)>(); });
}

float RandomTensor::value(size_t quantile) const {
  return static_cast<float>((plan_.mean + plan_.stddev * normal_quantiles()[quantile]) / base_scale_);
}

template <class T>
void RandomTensor::fill_table() {
  table_.resize(kQuantiles * sizeof(T));
  for (size_t i = 0; i < kQuantiles; ++i) reinterpret_cast<T*>(table_.data())[i] = convert<T>(value(i));
}

void RandomTensor::generate(int64_t begin, int64_t count, void* out) const {
  if (plan_.content == PlannedTensor::Content::scales) return fill_scales(begin, count, out);
  with_element(plan_.stored.dtype, [&](auto element) { fill_values(begin, count, static_cast<decltype(element)*>(out)); });
}

template <class T>
void RandomTensor::fill_values(int64_t begin, int64_t count, T* out) const {
  const T* table = reinterpret_cast<const T*>(table_.data());
  const int64_t chunks = (count + kChunk - 1) / kChunk;
  for_each_of(chunks, chunks > kChunksWorthThreads ? available_cores() : 1, [&](int64_t chunk) {
    const int64_t first = chunk * kChunk;
    const int64_t here = std::min(kChunk, count - first);
    if (table_.empty()) {
      draw([this](size_t i) { return convert<T>(value(i)); }, key_, begin + first, here, out + first);
    } else {
      draw([table](size_t i) { return table[i]; }, key_, begin + first, here, out + first);
    }
  });
}

void RandomTensor::fill_scales(int64_t begin, int64_t count, void* out) const {
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t random = mix(key_ + static_cast<uint64_t>(begin + i) * kCounterStep);
    double scale = base_scale_ * block_gain(random);
    // Real scales that are not powers of two have all mantissas.
    if (!power_of_two_scales_) scale *= 0.875 + 0.25 * static_cast<double>(random >> 40) * 0x1p-24;
    if (plan_.stored.dtype == DType::e8m0) {
      static_cast<E8m0*>(out)[i] = to_e8m0(ceil_log2(static_cast<float>(scale)));
    } else {
      static_cast<float*>(out)[i] = static_cast<float>(scale);
    }
  }
}

}  // namespace strata
