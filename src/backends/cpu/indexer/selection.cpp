#include "backends/cpu/indexer/selection.h"

#include "backends/cpu/simd_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/indexer/selection.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace strata::cpu::indexer {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using I32 = hn::ScalableTag<int32_t>;
using VI = hn::Vec<I32>;
constexpr int64_t kLanes = hn::MaxLanes(I32());

HWY_INLINE VI order_keys(VI bits) {
  const I32 d;
  const VI magnitude = hn::And(bits, hn::Set(d, 0x7FFFFFFF));
  // +0 for -0, -inf for NaN, without fp32 arithmetic: that may flush subnormals.
  VI b = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, 0x7F800000)), hn::Set(d, static_cast<int32_t>(0xFF800000u)), bits);
  b = hn::IfThenZeroElse(hn::Eq(magnitude, hn::Zero(d)), b);
  return hn::Xor(b, hn::And(hn::ShiftRight<31>(b), hn::Set(d, 0x7FFFFFFF)));
}

// f(vector, count of valid lanes, first) over n values; lanes past the end repeat `pad`.
template <class F>
HWY_INLINE void for_vectors(const int32_t* values, int64_t n, int32_t pad, F&& f) {
  const I32 d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(hn::LoadU(d, values + i), i);
  if (i < n) {
    int32_t last[kLanes];
    for (int64_t l = 0; l < kLanes; ++l) last[l] = i + l < n ? values[i + l] : pad;
    f(hn::LoadU(d, last), i);
  }
}

struct Split {
  int64_t greater, equal;
};
HWY_INLINE Split count_around(const int32_t* values, int64_t n, int32_t pivot) {
  const I32 d;
  const VI p = hn::Set(d, pivot);
  VI greater = hn::Zero(d), equal = hn::Zero(d);  // minus the counts
  for_vectors(values, n, INT32_MIN, [&](VI v, int64_t) HWY_ATTR {
    greater = hn::Add(greater, hn::VecFromMask(d, hn::Gt(v, p)));
    equal = hn::Add(equal, hn::VecFromMask(d, hn::Eq(v, p)));
  });
  return {-int64_t{hn::GetLane(hn::SumOfLanes(d, greater))}, -int64_t{hn::GetLane(hn::SumOfLanes(d, equal))}};
}

// Copies the values above (or below) the pivot to `out`, which may be `values`. Returns how many.
template <bool kAbove>
HWY_INLINE int64_t keep_side(const int32_t* values, int64_t n, int32_t pivot, int32_t* out) {
  const I32 d;
  const VI p = hn::Set(d, pivot);
  int64_t kept = 0;
  for_vectors(values, n, pivot, [&](VI v, int64_t) HWY_ATTR {
    kept += static_cast<int64_t>(hn::CompressStore(v, kAbove ? hn::Gt(v, p) : hn::Lt(v, p), d, out + kept));
  });
  return kept;
}

// The rank-th largest of a few values (rank from 1). Sorts them.
int32_t sorted_rank(int32_t* values, int64_t n, int64_t rank) {
  for (int64_t i = 1; i < n; ++i) {
    const int32_t v = values[i];
    int64_t j = i;
    for (; j > 0 && values[j - 1] < v; --j) values[j] = values[j - 1];
    values[j] = v;
  }
  return values[rank - 1];
}

// The k-th largest of n >= k >= 1 keys. Quickselect: the pivot is the element of the wanted rank of a small sample, or, after a round
// that gained little, the middle of the range that is still possible, so that there are at most 64 rounds whatever the keys are.
int32_t kth_largest(const int32_t* keys, int64_t n, int64_t k, int32_t* scratch) {
  constexpr int64_t kSample = 16;
  int64_t low = INT32_MIN, high = INT32_MAX;
  bool bisect = false;
  const int32_t* active = keys;
  while (true) {
    if (n <= kSample) {
      if (active != scratch) std::copy_n(active, n, scratch);
      return sorted_rank(scratch, n, k);
    }
    int32_t pivot;
    if (bisect) {
      pivot = static_cast<int32_t>(low + (high - low) / 2);
    } else {
      int32_t sample[kSample];
      for (int64_t i = 0; i < kSample; ++i) sample[i] = active[i * n / kSample];
      pivot = sorted_rank(sample, kSample, std::clamp<int64_t>((k * kSample + n / 2) / n, 1, kSample));
    }
    const Split split = count_around(active, n, pivot);
    const int64_t before = n;
    if (split.greater >= k) {
      low = int64_t{pivot} + 1;
      n = keep_side<true>(active, n, pivot, scratch);
    } else if (split.greater + split.equal >= k) {
      return pivot;
    } else {
      high = int64_t{pivot} - 1;
      k -= split.greater + split.equal;
      n = keep_side<false>(active, n, pivot, scratch);
    }
    active = scratch;
    bisect = !bisect && n > before / 2;
  }
}

void Compact(Selection& s, int64_t k, int32_t* scratch) {
  const I32 d;
  if (s.count <= k) return;
  const int32_t kth = kth_largest(s.key, s.count, k, scratch);
  int64_t ties = k - count_around(s.key, s.count, kth).greater;
  const VI threshold = hn::Set(d, kth);
  int64_t kept = 0;
  const auto keep = [&](int64_t i) {
    if (s.key[i] < kth || (s.key[i] == kth && ties-- <= 0)) return;
    s.key[kept] = s.key[i];
    s.entry[kept++] = s.entry[i];
  };
  int64_t i = 0;
  for (; i + kLanes <= s.count; i += kLanes) {
    const VI keys = hn::LoadU(d, s.key + i);
    const auto equal = hn::Eq(keys, threshold);
    const auto tied = static_cast<int64_t>(hn::CountTrue(d, equal));
    auto mask = hn::Gt(keys, threshold);
    if (tied > 0 && ties > 0) {
      if (tied > ties) {  // some of this vector's
        for (int64_t l = 0; l < kLanes; ++l) keep(i + l);
        ties = 0;
        continue;
      }
      mask = hn::Or(mask, equal);
      ties -= tied;
    }
    // Entries first: both stores write whole vectors, no further than what has been read.
    const VI entries = hn::LoadU(d, s.entry + i);
    hn::CompressStore(entries, mask, d, s.entry + kept);
    kept += static_cast<int64_t>(hn::CompressStore(keys, mask, d, s.key + kept));
  }
  for (; i < s.count; ++i) keep(i);
  s.count = kept;
  s.threshold = kth;
}

void Append(Selection& s, const float* logits, int64_t n, int64_t first, int64_t k, int32_t* scratch) {
  const I32 d;
  const int64_t capacity = selection_capacity(k);
  const auto* bits = reinterpret_cast<const int32_t*>(logits);
  for (int64_t begin = 0; begin < n; begin += kAppendChunk) {
    const int64_t chunk = std::min(kAppendChunk, n - begin);
    if (s.count + chunk > capacity) Compact(s, k, scratch);
    const VI threshold = hn::Set(d, s.threshold);
    const VI base = hn::Iota(d, static_cast<int32_t>(first + begin));
    int64_t count = s.count;
    const auto add = [&](VI keys, int64_t i) HWY_ATTR {
      const auto mask = hn::Gt(keys, threshold);
      hn::CompressStore(hn::Add(base, hn::Set(d, static_cast<int32_t>(i))), mask, d, s.entry + count);
      count += static_cast<int64_t>(hn::CompressStore(keys, mask, d, s.key + count));
    };
    int64_t i = 0;
    // Skipping vectors without candidates pays only when they are rare: a branch that cannot be foreseen costs more than the stores.
    if (s.dense) {
      for (; i + kLanes <= chunk; i += kLanes) add(order_keys(hn::LoadU(d, bits + begin + i)), i);
    } else {
      for (; i + kLanes <= chunk; i += kLanes) {
        const VI keys = order_keys(hn::LoadU(d, bits + begin + i));
        if (!hn::AllFalse(d, hn::Gt(keys, threshold))) add(keys, i);
      }
    }
    if (i < chunk) {
      int32_t last[kLanes];
      for (int64_t l = 0; l < kLanes; ++l) last[l] = i + l < chunk ? bits[begin + i + l] : 0;
      // What is not there gets the one key that never passes.
      const auto valid = hn::FirstN(d, static_cast<size_t>(chunk - i));
      add(hn::IfThenElse(valid, order_keys(hn::LoadU(d, last)), hn::Set(d, kNoThreshold)), i);
    }
    s.dense = (count - s.count) * 64 > chunk;
    s.count = count;
  }
}

void AppendCandidates(Selection& s, const int32_t* keys, const int32_t* entries, int64_t n, int64_t k, int32_t* scratch) {
  const I32 d;
  const int64_t capacity = selection_capacity(k);
  for (int64_t begin = 0; begin < n; begin += kAppendChunk) {
    const int64_t end = std::min(begin + kAppendChunk, n);
    if (s.count + (end - begin) > capacity) Compact(s, k, scratch);
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      const VI v = hn::LoadU(d, keys + i);
      const auto mask = hn::Gt(v, hn::Set(d, s.threshold));
      hn::CompressStore(hn::LoadU(d, entries + i), mask, d, s.entry + s.count);
      s.count += static_cast<int64_t>(hn::CompressStore(v, mask, d, s.key + s.count));
    }
    for (; i < end; ++i) {
      if (keys[i] <= s.threshold) continue;
      s.entry[s.count] = entries[i];
      s.key[s.count++] = keys[i];
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu::indexer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strata::cpu::indexer {
namespace {

HWY_EXPORT(Append);
HWY_EXPORT(AppendCandidates);
HWY_EXPORT(Compact);

}  // namespace

SelectionFunctions selection_functions(const Device& device) {
  const size_t target = simd_index(device);
  return {HWY_DISPATCH_TABLE(Append)[target], HWY_DISPATCH_TABLE(AppendCandidates)[target], HWY_DISPATCH_TABLE(Compact)[target]};
}

void select_all(int64_t length, int64_t k, int32_t* out) {
  for (int64_t i = 0; i < k; ++i) out[i] = i < length ? static_cast<int32_t>(i) : -1;
}

}  // namespace strata::cpu::indexer
#endif  // HWY_ONCE
