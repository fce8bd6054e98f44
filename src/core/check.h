// Contract checks. Every message has the op or file, the name, the expected and the actual value.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <string_view>

#include "strata/error.h"
#include "strata/kv_format.h"
#include "strata/tensor.h"

// Views and devices as arguments of messages: they become text only where a message is written.
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

// A number of bytes as the standard library and the devices' runtimes take it.
inline size_t byte_count(int64_t bytes) {
  require(bytes >= 0, "a number of bytes must not be negative, is {}", bytes);
  return static_cast<size_t>(bytes);
}

// Any extent is accepted where a shape check says -1.
inline constexpr int64_t kAny = -1;

// Checks of one op's parameters, all of which must be on the device that the op runs on.
class ParamCheck {
 public:
  ParamCheck(std::string_view op, DeviceId device) : op_(op), device_(device) {}

  // Present, of this dtype and shape (kAny: any extent), last dimension contiguous, with memory that begins at a multiple of an element's
  // size, on the op's device.
  void view(std::string_view name, const TensorView& view, std::initializer_list<DType> dtypes, std::initializer_list<int64_t> shape);
  void view(std::string_view name, const TensorView& v, DType dtype, std::initializer_list<int64_t> shape) {
    view(name, v, {dtype}, shape);
  }
  // The same when present; nothing when absent.
  void optional(std::string_view name, const TensorView& view, DType dtype, std::initializer_list<int64_t> shape);
  void contiguous(std::string_view name, const TensorView& view);
  // Present, one of the formats, a row dimension (kAny: any), a page stride that holds the payload, pages whose bytes 63 bits count, with
  // memory, on the op's device.
  void cache(std::string_view name, const PagedCache& cache, std::initializer_list<KvFormat> formats, int64_t row_dim);

  template <class... Args>
  [[noreturn]] void reject(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", op_, fmt::format(format, std::forward<Args>(args)...)));
  }
  // Checks are part of every call: arguments that cost more than a number stand behind an if and reject().
  template <class... Args>
  void require(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (!condition) reject(format, std::forward<Args>(args)...);
  }

  // Host-visible memory only (on other devices these do nothing): every value of an i64 [N] or i32 array lies in [low, high).
  // Values below zero are accepted when `negative_skips`.
  void values_in(std::string_view name, const TensorView& view, int64_t low, int64_t high, bool negative_skips);

 private:
  void on_device(std::string_view name, DeviceId id);
  std::string_view op_;
  DeviceId device_;
};

}  // namespace strata
