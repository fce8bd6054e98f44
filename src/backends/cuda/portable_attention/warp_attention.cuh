// A warp's softmax over rows, one after the other, on the ordinary fp32 units; and a query token's head of dense prefill by it.
#pragma once

#include <cmath>

#include "backends/cuda/device/warp.cuh"
#include "backends/cuda/portable_attention/dense_prefill.h"
#include "formats/bf16.h"

namespace strata::cuda {

// One lane's share of a softmax over rows: lane l has the values l, l + 32, ...
class WarpSoftmax {
  static constexpr int kMaxDim = 576, kLanes = kMaxDim / 32;

 public:
  // `key` and `value` return a value of a row by its index.
  template <class Query, class Key, class Value>
  __device__ void add(int dim, int value_dim, float scale, Query&& query, Key&& key, Value&& value) {
    const int lane = threadIdx.x % 32;
    float dot = 0.0f;
    for (int d = lane; d < dim; d += 32) dot = fmaf(query(d), key(d), dot);
    const float logit = scale * lanes_sum(dot);
    if (logit == -INFINITY) return;  // has weight 0, and would be -inf - -inf below
    const float max = fmaxf(max_, logit), rescale = expf(max_ - max), weight = expf(logit - max);
    max_ = max;
    sum_ = sum_ * rescale + weight;
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      const int d = lane + 32 * i;
      if (d < value_dim) values_[i] = fmaf(weight, value(d), values_[i] * rescale);
    }
  }

  __device__ bool empty() const { return sum_ == 0.0f; }
  __device__ float max() const { return max_; }
  __device__ float lse(float of_empty) const { return empty() ? of_empty : max_ + logf(sum_); }

  // Calls store(d, value) for every value, normalised with the sink as one more logit.
  template <class Store>
  __device__ void finish(int value_dim, float sink, Store&& store) const {
    const float factor = empty() ? 0.0f : 1.0f / (sum_ + expf(sink - max_));
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      const int d = static_cast<int>(threadIdx.x) % 32 + 32 * i;
      if (d < value_dim) store(d, values_[i] * factor);
    }
  }

 private:
  float max_ = -INFINITY, sum_ = 0.0f;
  float values_[kLanes] = {};
};

// Query `token` of the call, in request r.
__device__ inline void prefill_query(const DensePrefill& a, const RequestRange& r, int64_t token, int64_t head) {
  const int64_t visible = a.causal ? r.num_keys - (r.first_query + r.num_queries - 1 - token) : r.num_keys;
  const int nope = a.nope_dim, dim = a.nope_dim + a.rotary_dim;
  const Bf16* q = a.q + token * a.q_stride.token + head * a.q_stride.head;
  WarpSoftmax softmax;
  for (int64_t j = r.first_key; j < r.first_key + visible; ++j) {
    const Bf16 *k_nope = a.k_nope + j * a.k_nope_stride.token + head * a.k_nope_stride.head, *k_pe = a.k_pe + j * a.k_pe_stride;
    const Bf16* v = a.v + j * a.v_stride.token + head * a.v_stride.head;
    softmax.add(
        dim, a.value_dim, a.softmax_scale, [&](int d) { return to_float(q[d]); },
        [&](int d) { return to_float(d < nope ? k_nope[d] : k_pe[d - nope]); }, [&](int d) { return to_float(v[d]); });
  }
  const int64_t out = token * a.out_stride.token + head * a.out_stride.head;
  softmax.finish(a.value_dim, -INFINITY, [&](int d, float v) {
    if (a.out_f32 != nullptr) {
      a.out_f32[out + d] = v;
    } else {
      a.out_bf16[out + d] = to_bf16(v);
    }
  });
  if (threadIdx.x % 32 == 0 && a.lse != nullptr) a.lse[token * a.lse_stride.token + head * a.lse_stride.head] = softmax.lse(-INFINITY);
}

}  // namespace strata::cuda
