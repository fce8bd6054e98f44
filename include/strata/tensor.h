// TensorView: a typed, strided, non-owning view of device memory. Tensor: owning, allocated by a Device.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "strata/device.h"
#include "strata/dtype.h"

namespace strata {

// Most dimensions of a tensor.
inline constexpr int kMaxRank = 4;

// A view of rank 0 is absent: an optional parameter that is not given. A view of rank > 0 with null data has a shape only. Workspace
// queries take such views; an op runs on one only if the shape has no elements.
struct TensorView {
  void* data = nullptr;                    // first element, in memory of `device`; null: a shape only
  DType dtype = DType::u8;                 // of every element
  DeviceId device{};                       // whose memory it is
  int32_t rank = 0;                        // number of dimensions; 0: absent
  std::array<int64_t, kMaxRank> shape{};   // elements
  std::array<int64_t, kMaxRank> stride{};  // elements, not bytes; >= 0

  // A contiguous row-major view. Throws invalid_argument for a rank outside [1, kMaxRank], negative extents, and more than 2^63 - 1 bytes.
  [[nodiscard]] static TensorView contiguous(void* data, DType dtype, DeviceId device, std::initializer_list<int64_t> shape);

  // False for an optional parameter that is not given.
  bool present() const { return rank > 0; }
  // Number of elements; 0 when absent.
  int64_t numel() const;
  // Bytes of a contiguous tensor of this shape.
  int64_t bytes() const { return numel() * static_cast<int64_t>(size_of(dtype)); }
  // True when the elements are in row-major order without gaps.
  bool is_contiguous() const;
  // True when the last dimension has stride 1 or at most one element, so that a row can be read as an array.
  bool rows_contiguous() const;

  // T is the storage struct or C++ type of dtype. This is not checked.
  template <class T>
  T* ptr() const {
    return static_cast<T*>(data);
  }
  // First element of row i. Offsets are computed in 64 bits.
  template <class T>
  T* row(int64_t i) const {
    return static_cast<T*>(data) + i * stride[0];
  }
  // First element of row (i, j).
  template <class T>
  T* row(int64_t i, int64_t j) const {
    return static_cast<T*>(data) + i * stride[0] + j * stride[1];
  }

  // Rows [begin, begin + count) of dimension 0. slice() and columns() throw invalid_argument for a range outside the view.
  [[nodiscard]] TensorView slice(int64_t begin, int64_t count) const;
  // Columns [begin, begin + count) of the last dimension.
  [[nodiscard]] TensorView columns(int64_t begin, int64_t count) const;
  // The same contiguous memory with another shape. Throws invalid_argument unless the view is contiguous and numel is equal.
  [[nodiscard]] TensorView reshape(std::initializer_list<int64_t> new_shape) const;
  // For messages: "bf16[4, 512] on cpu".
  std::string describe() const;
};

// Owns uninitialised device memory, and shares ownership of its device. Movable, not copyable.
class Tensor {
 public:
  Tensor() = default;
  // Throws invalid_argument for a null device and as TensorView::contiguous does; out_of_memory as the device does.
  Tensor(std::shared_ptr<Device> device, DType dtype, std::initializer_list<int64_t> shape);
  Tensor(Tensor&&) noexcept;
  Tensor& operator=(Tensor&&) noexcept;
  ~Tensor();

  // The whole tensor, contiguous. Its memory is valid until the tensor is destroyed.
  const TensorView& view() const { return view_; }
  // view(), so that a tensor can be given where an op takes a view.
  operator const TensorView&() const { return view_; }
  // The device whose memory it is; null for an empty object.
  const std::shared_ptr<Device>& device() const { return device_; }
  // Bytes of the elements.
  int64_t allocated_bytes() const { return view_.bytes(); }

 private:
  std::shared_ptr<Device> device_;
  TensorView view_;
};

}  // namespace strata
