// The k largest of one row as ascending entry numbers: V4 specification 10.4.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace strata::reference {

// Orders like the logits do as an unsigned number. Both zeros are one value, and NaN is -inf.
inline uint32_t order_key(float logit) {
  constexpr uint32_t kMinusInfinity = 0xFF800000u;
  uint32_t bits = logit != logit ? kMinusInfinity : std::bit_cast<uint32_t>(logit);
  if (logit == 0.0f) bits = 0;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Every entry of a row that has no more than k, without a look at its logits.
inline void select_all(int64_t length, int64_t k, int32_t* out) {
  for (int64_t i = 0; i < k; ++i) out[i] = i < length ? static_cast<int32_t>(i) : -1;
}

// The k-th largest key is found bit by bit: the largest number that at least k keys reach. What is above it is in, and of those equal
// to it the first ones. Needs no memory and gives ascending entries with the smaller entry first among ties.
inline void select_topk(const float* logits, int64_t length, int64_t k, int32_t* out) {
  if (length <= k) return select_all(length, k, out);
  const auto count_if = [&](auto&& predicate) {
    return std::count_if(logits, logits + length, [&](float v) { return predicate(order_key(v)); });
  };
  uint32_t threshold = 0;
  for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
    if (count_if([&](uint32_t key) { return key >= (threshold | bit); }) >= k) threshold |= bit;
  }
  int64_t ties_left = k - count_if([&](uint32_t key) { return key > threshold; });
  for (int64_t j = 0; j < length; ++j) {
    const uint32_t key = order_key(logits[j]);
    if (key < threshold || (key == threshold && ties_left-- <= 0)) continue;
    *out++ = static_cast<int32_t>(j);
  }
}

}  // namespace strata::reference
