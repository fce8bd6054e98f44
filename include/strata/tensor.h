// TensorView: a typed, strided, non-owning view of device memory. Tensor: owns its memory through a Device.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "strata/device.h"
#include "strata/dtype.h"

namespace strata {

inline constexpr int kMaxRank = 4;

// A view with rank 0 is "absent": how a nullable parameter is left out. A view with rank > 0 and null data has a shape only; it is
// what workspace queries use, and no op runs on it unless the shape has no elements.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::u8;
  DeviceId device{};
  int32_t rank = 0;
  std::array<int64_t, kMaxRank> shape{};   // elements
  std::array<int64_t, kMaxRank> stride{};  // elements, not bytes; >= 0

  // A contiguous row-major view. Throws invalid_argument for a rank that is not 1 to kMaxRank, negative extents, more bytes than 63 bits
  // count.
  [[nodiscard]] static TensorView contiguous(void* data, DType dtype, DeviceId device, std::initializer_list<int64_t> shape);

  bool present() const { return rank > 0; }
  int64_t numel() const;
  // Bytes of a contiguous tensor of this shape.
  int64_t bytes() const { return numel() * static_cast<int64_t>(size_of(dtype)); }
  bool is_contiguous() const;
  // True when the last dimension has stride 1 (or at most one element), so that a row can be read as an array.
  bool rows_contiguous() const;

  // T is the storage struct or C++ type of dtype; the caller has checked it.
  template <class T>
  T* ptr() const {
    return static_cast<T*>(data);
  }
  // First element of row i, of plane (i, j): pointer arithmetic in 64 bits.
  template <class T>
  T* row(int64_t i) const {
    return static_cast<T*>(data) + i * stride[0];
  }
  template <class T>
  T* row(int64_t i, int64_t j) const {
    return static_cast<T*>(data) + i * stride[0] + j * stride[1];
  }

  // Rows [begin, begin + count) of dimension 0. Throws invalid_argument when they are not all there; so does columns().
  [[nodiscard]] TensorView slice(int64_t begin, int64_t count) const;
  // Columns [begin, begin + count) of the last dimension.
  [[nodiscard]] TensorView columns(int64_t begin, int64_t count) const;
  // The same contiguous memory with another shape. Throws invalid_argument unless contiguous with equal numel.
  [[nodiscard]] TensorView reshape(std::initializer_list<int64_t> new_shape) const;
  // "bf16[4, 512] on cpu".
  std::string describe() const;
};

// Owns device memory; movable. Memory is not initialised.
class Tensor {
 public:
  Tensor() = default;
  // Throws invalid_argument for a null device and as TensorView::contiguous does, out_of_memory as the device does.
  Tensor(std::shared_ptr<Device> device, DType dtype, std::initializer_list<int64_t> shape);
  Tensor(Tensor&&) noexcept;
  Tensor& operator=(Tensor&&) noexcept;
  ~Tensor();

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }
  const std::shared_ptr<Device>& device() const { return device_; }
  int64_t allocated_bytes() const { return view_.bytes(); }

 private:
  std::shared_ptr<Device> device_;
  TensorView view_;
};

}  // namespace strata
