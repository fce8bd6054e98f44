// A bump allocator over caller-owned memory. With no memory it only measures: views get null data, and used() is what a real run
// needs. One layout function therefore serves planning and running.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/check.h"
#include "strata/op.h"
#include "strata/tensor.h"

namespace strata {

class Arena {
 public:
  static constexpr size_t kAlignment = 256;

  // Measures.
  explicit Arena(DeviceId device) : device_(device), measuring_(true) {}
  Arena(DeviceId device, Workspace workspace) : device_(device), memory_(workspace) {}

  bool measuring() const { return measuring_; }
  size_t used() const { return used_; }
  // The most that was in use at once, op workspaces included.
  size_t peak() const { return peak_; }

  TensorView tensor(DType dtype, std::initializer_list<int64_t> shape) {
    TensorView view = TensorView::contiguous(nullptr, dtype, device_, shape);
    view.data = take(view.bytes());
    return view;
  }

  // Everything taken after mark() is given back by release(mark).
  size_t mark() const { return used_; }
  void release(size_t mark) { used_ = mark; }

  // Runs f, and keeps taken whatever it had in use at any time: for work that goes on while other memory is taken.
  template <class F>
  void keep_all(F&& f) {
    const size_t before = std::exchange(peak_, used_);
    f();
    take(peak_ - used_);
    peak_ = std::max(before, peak_);
  }

  // What is left, for an op that needs `bytes` of it.
  Workspace rest(size_t bytes) {
    peak_ = std::max(peak_, used_ + bytes);
    if (measuring_) return {nullptr, bytes};
    return {static_cast<std::byte*>(memory_.data) + used_, memory_.bytes - used_};
  }

 private:
  void* take(size_t bytes) {
    const size_t begin = used_;
    used_ = (begin + bytes + kAlignment - 1) / kAlignment * kAlignment;
    peak_ = std::max(peak_, used_);
    if (measuring_) return nullptr;
    if (used_ > memory_.bytes) {
      fail(ErrorCode::workspace_too_small, "workspace: needs at least {} bytes, got {}", used_, memory_.bytes);
    }
    return static_cast<std::byte*>(memory_.data) + begin;
  }

  DeviceId device_;
  Workspace memory_{};
  size_t used_ = 0;
  size_t peak_ = 0;
  bool measuring_ = false;
};

}  // namespace strata
