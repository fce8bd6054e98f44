// Contract checks. Every message names the op or file, the field, the expected and the actual value.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <string_view>

#include "strata/error.h"
#include "strata/kv_format.h"
#include "strata/tensor.h"

// Views and devices as arguments of messages: converted to text only when a message is written.
template <>
struct fmt::formatter<strata::TensorView> : fmt::formatter<std::string_view> {
  auto format(const strata::TensorView& view, format_context& context) const {
    return formatter<std::string_view>::format(view.describe(), context);
  }
};
template <>
struct fmt::formatter<strata::DeviceId> : fmt::formatter<std::string_view> {
  auto format(strata::DeviceId id, format_context& context) const { return formatter<std::string_view>::format(to_string(id), context); }
};

namespace strata {

template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw Error(ErrorCode::invalid_argument, fmt::format(format, std::forward<Args>(args)...));
}

// A number of bytes as size_t, for the standard library and the devices' runtimes.
inline size_t byte_count(int64_t bytes) {
  require(bytes >= 0, "a number of bytes must not be negative, is {}", bytes);
  return static_cast<size_t>(bytes);
}

// Any extent is accepted where a shape check says -1.
inline constexpr int64_t kAny = -1;

// Checks of one op's parameters. All views must be on the op's device.
class ParamCheck {
 public:
  ParamCheck(std::string_view op, DeviceId device) : op_(op), device_(device) {}

  // The view is present, has one of the dtypes and this shape (kAny: any extent), a contiguous last dimension and element-aligned memory,
  // and is on the op's device.
  void view(std::string_view name, const TensorView& view, std::initializer_list<DType> dtypes, std::initializer_list<int64_t> shape);
  void view(std::string_view name, const TensorView& v, DType dtype, std::initializer_list<int64_t> shape) {
    view(name, v, {dtype}, shape);
  }
  // The same if present; nothing if absent.
  void optional(std::string_view name, const TensorView& view, DType dtype, std::initializer_list<int64_t> shape);
  void contiguous(std::string_view name, const TensorView& view);
  // The cache is present, has one of the formats, this row dimension (kAny: any), a page stride that holds the payload, fewer than 2^63
  // bytes and memory, and is on the op's device.
  void cache(std::string_view name, const PagedCache& cache, std::initializer_list<KvFormat> formats, int64_t row_dim);

  template <class... Args>
  [[noreturn]] void reject(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", op_, fmt::format(format, std::forward<Args>(args)...)));
  }
  // Checks are part of every call. Arguments that cost more than a number are built only after an if, with reject().
  template <class... Args>
  void require(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (!condition) reject(format, std::forward<Args>(args)...);
  }

  // Every value of an i64 [N] or i32 array is in [low, high); values below 0 are accepted with `negative_skips`. For host-visible memory
  // only: on other devices these do nothing.
  void values_in(std::string_view name, const TensorView& view, int64_t low, int64_t high, bool negative_skips);

 private:
  void on_device(std::string_view name, DeviceId id);
  std::string_view op_;
  DeviceId device_;
};

}  // namespace strata
