#include "strata/tensor.h"

#include <utility>

#include "core/check.h"

namespace strata {
namespace {

void set_contiguous(TensorView& view, std::initializer_list<int64_t> shape) {
  require(shape.size() >= 1 && shape.size() <= kMaxRank, "a tensor has 1 to {} dimensions, got {}", kMaxRank, shape.size());
  view.rank = static_cast<int32_t>(shape.size());
  view.shape = {};
  view.stride = {};
  int64_t stride = 1;
  int64_t bytes = static_cast<int64_t>(size_of(view.dtype));
  bool fits = true;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.shape[i] = shape.begin()[i];
    view.stride[i] = stride;
    fits = !__builtin_mul_overflow(stride, view.shape[i], &stride) && !__builtin_mul_overflow(bytes, view.shape[i], &bytes) && fits;
  }
  for (int i = 0; i < view.rank; ++i) fits = fits && view.shape[i] >= 0;
  require(fits, "a tensor's extents must be >= 0 and its bytes fit 63 bits, got {}", view);
}

// [begin, begin + count) lies within the dimension; the sum may not fit 64 bits.
bool within(int64_t begin, int64_t count, int64_t extent) { return begin >= 0 && begin <= extent && count >= 0 && count <= extent - begin; }

}  // namespace

TensorView TensorView::contiguous(void* data, DType dtype, DeviceId device, std::initializer_list<int64_t> shape) {
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.device = device;
  set_contiguous(view, shape);
  return view;
}

int64_t TensorView::numel() const {
  int64_t n = rank > 0 ? 1 : 0;
  for (int i = 0; i < rank; ++i) n *= shape[i];
  return n;
}

bool TensorView::is_contiguous() const {
  int64_t expected = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (shape[i] > 1 && stride[i] != expected) return false;
    (void)__builtin_mul_overflow(expected, shape[i], &expected);  // wraps in views that are refused; their description comes first
  }
  return true;
}

bool TensorView::rows_contiguous() const { return rank == 0 || shape[rank - 1] <= 1 || stride[rank - 1] == 1; }

TensorView TensorView::slice(int64_t begin, int64_t count) const {
  require(rank > 0 && within(begin, count, shape[0]), "{} rows from row {} on are not within {}", count, begin, *this);
  TensorView view = *this;
  view.shape[0] = count;
  if (data != nullptr) view.data = static_cast<char*>(data) + begin * stride[0] * static_cast<int64_t>(size_of(dtype));
  return view;
}

TensorView TensorView::columns(int64_t begin, int64_t count) const {
  require(rank > 0 && within(begin, count, shape[rank - 1]), "{} columns from column {} on are not within {}", count, begin, *this);
  TensorView view = *this;
  view.shape[rank - 1] = count;
  if (data != nullptr) view.data = static_cast<char*>(data) + begin * stride[rank - 1] * static_cast<int64_t>(size_of(dtype));
  return view;
}

TensorView TensorView::reshape(std::initializer_list<int64_t> new_shape) const {
  TensorView view = *this;
  set_contiguous(view, new_shape);
  require(is_contiguous() && view.numel() == numel(), "cannot view {} as {}", *this, view);
  return view;
}

std::string TensorView::describe() const {
  if (!present()) return "absent";
  if (rank > kMaxRank) return std::string(to_string(dtype)) + " of " + std::to_string(rank) + " dimensions";
  std::string text = std::string(to_string(dtype)) + "[";
  for (int i = 0; i < rank; ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  text += "]";
  if (!is_contiguous()) {
    text += " with strides [";
    for (int i = 0; i < rank; ++i) text += (i ? ", " : "") + std::to_string(stride[i]);
    text += "]";
  }
  return text + " on " + to_string(device);
}

Tensor::Tensor(std::shared_ptr<Device> device, DType dtype, std::initializer_list<int64_t> shape) : device_(std::move(device)) {
  require(device_ != nullptr, "a tensor's device is required, is null");
  view_ = TensorView::contiguous(nullptr, dtype, device_->id(), shape);
  if (view_.numel() > 0) view_.data = device_->allocate(view_.bytes());
}

Tensor::Tensor(Tensor&& other) noexcept : device_(std::move(other.device_)), view_(std::exchange(other.view_, {})) {}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(view_, other.view_);
  return *this;
}

Tensor::~Tensor() {
  if (device_) device_->deallocate(view_.data);
}

}  // namespace strata
