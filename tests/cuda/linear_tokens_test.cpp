// A weight is loaded in a form that two numbers of tokens can use (checkpoint/weight_form.cpp): then all can.
#include "cuda/cuda_fixture.h"
#include "strata/op_set.h"

namespace strata {
namespace {

class LinearTokens : public test::CudaTest {
 protected:
  LinearWeight weight(int64_t n, int64_t k) const {
    return {.n = n,
            .k = k,
            .weight = TensorView::contiguous(nullptr, DType::e4m3, device_->id(), {n, k}),
            .scale = TensorView::contiguous(nullptr, DType::f32, device_->id(), {(n + 127) / 128, (k + 127) / 128}),
            .block_n = 128,
            .block_k = 128};
  }
  bool takes(const LinearWeight& w, int64_t tokens, DType y) const {
    const LinearParams p{.x = TensorView::contiguous(nullptr, DType::bf16, device_->id(), {tokens, w.k}),
                         .weight = &w,
                         .y = TensorView::contiguous(nullptr, y, device_->id(), {tokens, w.n}),
                         .activation = ActivationFormat::fp8_ue8m0};
    return any_takes(ops_.linear, p);
  }
  bool takes_group(const LinearWeight& w, int64_t tokens) const {
    const GroupedLinearParams p{.x = TensorView::contiguous(nullptr, DType::e4m3, device_->id(), {tokens, w.groups, w.k}),
                                .x_scale = TensorView::contiguous(nullptr, DType::f32, device_->id(), {tokens, w.groups, w.k / 128}),
                                .weight = &w,
                                .y = TensorView::contiguous(nullptr, DType::bf16, device_->id(), {tokens, w.groups, w.n})};
    return any_takes(ops_.grouped_linear, p);
  }

 private:
  template <class Params>
  bool any_takes(const Op<Params>& op, const Params& p) const {
    for (const Implementation<Params>& impl : op.implementations()) {
      if (impl.supports(p, *device_)) return true;
    }
    return false;
  }
  OpSet ops_ = default_ops();
};

constexpr int64_t kMost = 1100;

TEST_F(LinearTokens, WhatTakesFewAndManyTakesAll) {
  int64_t taken = 0;
  for (const int64_t n : {8, 128, 320, 1032, 8192, 8200, 16896, 65536}) {
    for (const int64_t k : {128, 256, 512, 640, 1536, 2048, 7168}) {
      const LinearWeight w = weight(n, k);
      for (const DType y : {DType::bf16, DType::f32}) {
        if (!takes(w, 1, y) || !takes(w, 512, y)) continue;
        ++taken;
        for (int64_t tokens = 1; tokens <= kMost; tokens += tokens < 140 ? 1 : 17) {
          ASSERT_TRUE(takes(w, tokens, y)) << tokens << " tokens, n " << n << ", k " << k;
        }
      }
      if (!takes_group(w, 1) || !takes_group(w, 512)) continue;
      for (int64_t tokens = 1; tokens <= kMost; tokens += tokens < 140 ? 1 : 17) {
        ASSERT_TRUE(takes_group(w, tokens)) << "one group: " << tokens << " tokens, n " << n << ", k " << k;
      }
    }
  }
  const DeviceProperties p = device_->properties();
  const bool hopper = p.compute_major == 9 && p.compute_minor == 0;
  EXPECT_GT(taken, hopper ? 50 : -1);  // elsewhere bf16 weights are what is used
}

}  // namespace
}  // namespace strata
