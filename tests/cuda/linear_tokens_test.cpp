// A weight is loaded in a form that five numbers of tokens can use (weights/weight_form.cpp): then all can.
#include "cuda/cuda_fixture.h"
#include "contracts/packed_weight.h"
#include "strata/op_set.h"

namespace strata {
namespace {

class LinearTokens : public test::CudaTest {
 protected:
  LinearWeight fp8(int64_t groups, int64_t n, int64_t k) const {
    return {.n = n,
            .k = k,
            .groups = groups,
            .weight = TensorView::contiguous(nullptr, DType::e4m3, device_->id(), {groups * n, k}),
            .scale = TensorView::contiguous(nullptr, DType::f32, device_->id(), {(groups * n + 127) / 128, (k + 127) / 128}),
            .block_n = 128,
            .block_k = 128,
            .power_of_two_scales = true};
  }
  LinearWeight bf16(int64_t groups, int64_t n, int64_t k) const {
    return {.n = n, .k = k, .groups = groups, .weight = TensorView::contiguous(nullptr, DType::bf16, device_->id(), {groups * n, k})};
  }
  bool takes(const LinearWeight& w, ActivationFormat activation, DType y, int64_t tokens) const {
    const LinearParams p{.x = TensorView::contiguous(nullptr, DType::bf16, device_->id(), {tokens, w.k}),
                         .weight = &w,
                         .y = TensorView::contiguous(nullptr, y, device_->id(), {tokens, w.n}),
                         .activation = activation};
    return any_takes(ops_.linear, p);
  }
  // Quantised x if the weight is e4m3, unless the weight is packed.
  bool takes_groups(const LinearWeight& w, int64_t tokens) const {
    const DType x = w.packed.present() ? DType::bf16 : w.weight.dtype;
    GroupedLinearParams p{.x = TensorView::contiguous(nullptr, x, device_->id(), {tokens, w.groups, w.k}),
                          .weight = &w,
                          .y = TensorView::contiguous(nullptr, DType::bf16, device_->id(), {tokens, w.groups, w.n})};
    if (x == DType::e4m3) p.x_scale = TensorView::contiguous(nullptr, DType::f32, device_->id(), {tokens, w.groups, w.k / 128});
    return any_takes(ops_.grouped_linear, p);
  }

  // By every packing that the device has for it.
  std::vector<LinearWeight> packed(const LinearWeight& w) const {
    std::vector<LinearWeight> forms;
    for (const WeightPacking& packing : ops_.weight_packings) {
      const auto bytes = static_cast<int64_t>(packing.packed_bytes(w, *device_));
      if (bytes == 0) continue;
      forms.push_back(ops::as_packed(w, packing.name, TensorView::contiguous(nullptr, DType::u8, device_->id(), {bytes})));
    }
    return forms;
  }

  // Only Hopper takes quantised x in grouped products. Other GPUs pack the weights, for bf16 activations.
  bool hopper() const {
    const DeviceProperties p = device_->properties();
    return p.compute_major == 9 && p.compute_minor == 0;
  }

 private:
  template <class Params>
  bool any_takes(const Op<Params>& op, const Params& p) const {
    for (const Implementation<Params>& impl : op.implementations()) {
      if (impl.supports(p, *device_) && (!impl.prefers || impl.prefers(p, *device_))) return true;
    }
    return false;
  }
  OpSet ops_ = default_ops();
};

// Whether takes(tokens) of the five numbers. Then it must be so of all.
template <class F>
bool taken(const LinearWeight& w, F&& takes) {
  constexpr int64_t kMost = 1100;
  if (!takes(1) || !takes(65) || !takes(129) || !takes(257) || !takes(512)) return false;
  const auto expect = [&](int64_t tokens) {
    EXPECT_TRUE(takes(tokens)) << tokens << " tokens, " << w.groups << " groups, n " << w.n << ", k " << w.k << ", " << w.weight.describe();
  };
  for (int64_t tokens = 1; tokens <= kMost; tokens += tokens < 140 ? 1 : 17) expect(tokens);
  for (const int64_t tokens : {4096, 10007, 65536}) expect(tokens);
  return true;
}

TEST_F(LinearTokens, WhatTakesFewAndManyTakesAll) {
  int64_t fp8_taken = 0, codes_taken = 0;
  for (const int64_t n : {8, 128, 320, 1032, 8192, 8200, 16896, 65536}) {
    for (const int64_t k : {128, 256, 512, 640, 1536, 2048, 7168}) {
      const LinearWeight codes = fp8(1, n, k), values = bf16(1, n, k);
      for (const DType y : {DType::bf16, DType::f32}) {
        fp8_taken += taken(codes, [&](int64_t tokens) { return takes(codes, ActivationFormat::fp8_ue8m0, y, tokens); }) ? 1 : 0;
        EXPECT_TRUE(taken(values, [&](int64_t tokens) { return takes(values, ActivationFormat::bf16, y, tokens); })) << n << " x " << k;
      }
      codes_taken += taken(codes, [&](int64_t tokens) { return takes_groups(codes, tokens); }) ? 1 : 0;
    }
  }
  EXPECT_GE(fp8_taken, hopper() ? 32 : 0);  // those whose k is a multiple of 512; elsewhere bf16 weights are what is used
  if (hopper()) {
    EXPECT_GT(codes_taken, 0) << "one group of codes is taken at no size";
  }
}

TEST_F(LinearTokens, AndOfSeveralGroups) {
  int64_t codes_taken = 0;
  for (const int64_t groups : {2, 8, 16, 128}) {
    for (const int64_t n : {128, 192, 512, 1024}) {
      for (const int64_t k : {128, 512, 4096}) {
        const LinearWeight codes = fp8(groups, n, k), values = bf16(groups, n, k);
        codes_taken += taken(codes, [&](int64_t tokens) { return takes_groups(codes, tokens); }) ? 1 : 0;
        for (const LinearWeight& w : packed(codes)) {
          EXPECT_TRUE(taken(w, [&](int64_t tokens) { return takes_groups(w, tokens); }))
              << w.packing << ", " << groups << " of " << n << " x " << k;
        }
        EXPECT_TRUE(taken(values, [&](int64_t tokens) { return takes_groups(values, tokens); })) << groups << " of " << n << " x " << k;
      }
    }
  }
  if (hopper()) {
    EXPECT_GT(codes_taken, 0) << "several groups of codes are taken at no size";
  }
}

}  // namespace
}  // namespace strata
