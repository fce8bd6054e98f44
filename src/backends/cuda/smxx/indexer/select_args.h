// What the top-k kernels are launched with.
#pragma once

#include <cstdint>

#include "strata/ops/indexer.h"

namespace strata::cuda {

struct SelectArgs {
  const float* logits;
  int64_t logits_stride;
  bool aligned;  // every row begins at a multiple of 16 bytes
  const int32_t* lengths;
  int32_t* topk;
  int64_t topk_stride;
  int32_t k;
  bool behind_logits;   // the kernel in front computes the logits, and began when the lengths were there
  const float* maxima;  // the largest of each kMaximaRows logits, where the selection was given them
  int64_t maxima_stride;
};

inline SelectArgs select_args(const TopkSelectParams& p) {
  const bool aligned = reinterpret_cast<uintptr_t>(p.logits.data) % 16 == 0 && (p.logits.stride[0] % 4 == 0 || p.logits.shape[0] == 1);
  return {p.logits.ptr<float>(),
          p.logits.stride[0],
          aligned,
          p.lengths.ptr<int32_t>(),
          p.topk_indices.ptr<int32_t>(),
          p.topk_indices.stride[0],
          static_cast<int32_t>(p.topk_indices.shape[1]),
          false,
          nullptr,
          0};
}

// Threads for a row: many where few rows must be quick, few where many rows are on an SM at a time. The shortest list is for what
// it has room for (SelectShared).
inline int select_threads(const TopkSelectParams& p, int num_sms) {
  if (p.lengths.shape[0] <= 2 * num_sms) return 512;
  const bool short_list = p.topk_indices.shape[1] <= 1024 && (!p.logits.present() || p.logits.shape[1] <= 131072);
  return short_list ? 128 : 256;
}

}  // namespace strata::cuda
