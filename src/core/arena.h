// A bump allocator over caller-owned memory. Without memory it only measures: views get null data, and used() is what a real run needs. So
// one layout function serves planning and running.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/check.h"
#include "strata/op.h"
#include "strata/tensor.h"

namespace strata {

class Arena {
 public:
  static constexpr int64_t kAlignment = 256;

  // A measuring arena.
  explicit Arena(DeviceId device) : device_(device), measuring_(true) {}
  Arena(DeviceId device, Workspace workspace) : device_(device), memory_(workspace) {}

  bool measuring() const { return measuring_; }
  int64_t used() const { return used_; }
  // The most bytes in use at once, op workspaces included.
  int64_t peak() const { return peak_; }

  TensorView tensor(DType dtype, std::initializer_list<int64_t> shape) {
    TensorView view = TensorView::contiguous(nullptr, dtype, device_, shape);
    view.data = take(view.bytes());
    return view;
  }

  // release(mark) releases everything taken after mark().
  int64_t mark() const { return used_; }
  void release(int64_t mark) { used_ = mark; }

  // Runs f, and keeps all memory that f used at any time: for work that runs concurrently with later users of the arena.
  template <class F>
  void without_reuse(F&& f) {
    const int64_t before = std::exchange(peak_, used_);
    f();
    take(peak_ - used_);
    peak_ = std::max(before, peak_);
  }

  // The rest of the memory, for an op that needs `bytes` of it.
  Workspace rest(int64_t bytes) {
    peak_ = std::max(peak_, used_ + bytes);
    if (measuring_) return {nullptr, bytes};
    return {static_cast<std::byte*>(memory_.data) + used_, memory_.bytes - used_};
  }

 private:
  void* take(int64_t bytes) {
    const int64_t begin = used_;
    if (__builtin_add_overflow(begin, bytes, &used_) || __builtin_add_overflow(used_, kAlignment - 1, &used_)) {
      fail(ErrorCode::invalid_argument, "workspace: its bytes must fit 63 bits, are {} and {}", begin, bytes);
    }
    used_ = used_ / kAlignment * kAlignment;
    peak_ = std::max(peak_, used_);
    if (measuring_) return nullptr;
    if (used_ > memory_.bytes) {
      fail(ErrorCode::workspace_too_small, "workspace: needs at least {} bytes, got {}", used_, memory_.bytes);
    }
    return static_cast<std::byte*>(memory_.data) + begin;
  }

  DeviceId device_;
  Workspace memory_{};
  int64_t used_ = 0;
  int64_t peak_ = 0;
  bool measuring_ = false;
};

}  // namespace strata
