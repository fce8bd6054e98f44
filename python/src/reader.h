// The values of torch's stack as params of an op.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "arguments.h"
#include "strata/error.h"
#include "torch_tensor.h"

namespace strata::torch_ops {

// A pointer on torch's stack.
template <class T>
T* pointer_of(StableIValue value) {
  return std::bit_cast<T*>(value);
}

// The arguments of a call, which belong to the callee: gives them back.
class OwnedArguments {
 public:
  OwnedArguments(StableIValue* stack, std::span<const ArgumentKind> kinds) : stack_(stack), kinds_(kinds) {}
  OwnedArguments(const OwnedArguments&) = delete;
  OwnedArguments& operator=(const OwnedArguments&) = delete;
  ~OwnedArguments();

 private:
  StableIValue* stack_;
  std::span<const ArgumentKind> kinds_;
};

// Reads the stack in the order of the schema. Throws invalid_argument for values that no params can hold.
class Reader : public Visitor<Reader> {
 public:
  Reader(std::string_view op, const StableIValue* stack) : Visitor(Pass::required), op_(op), next_(stack) {}

  void tensor_argument(ArgumentName name, TensorView& view, TensorUse use) {
    AtenTensorHandle tensor = next_tensor(use.is_optional);
    if (tensor == nullptr) return;
    view = view_of(tensor, op_, name);
    if (use.bytes_are && view.dtype == DType::u8) view.dtype = *use.bytes_are;
    seen(view.device);
  }
  void cache_memory(ArgumentName name, PagedCache& cache, TensorUse use) {
    cache_tensor_ = next_tensor(use.is_optional);
    if (cache_tensor_ == nullptr) return;
    cache.data = memory_of(cache_tensor_);
    cache.device = device_id_of(cache_tensor_, op_, name);
    seen(cache.device);
  }
  // The cache without a tensor is absent; the pages of another one are in the tensor's memory.
  void cache_complete(ArgumentName name, PagedCache& cache) {
    if (cache_tensor_ == nullptr) {
      cache = {};
    } else {
      check_pages(cache_tensor_, cache, 1, op_, name);
    }
  }
  void check_rows_of_slot(ArgumentName name, const PagedCache& cache, int64_t rows) const {
    if (rows > 1) check_pages(cache_tensor_, cache, rows, op_, name);
  }
  template <class T>
  void scalar_argument(ArgumentName name, T& field, bool) {
    const StableIValue value = *next_++;
    if constexpr (std::is_same_v<T, bool>) {
      std::memcpy(&field, &value, sizeof field);
    } else if constexpr (std::is_floating_point_v<T>) {
      double number = 0;
      std::memcpy(&number, &value, sizeof number);
      field = static_cast<T>(number);
    } else {
      int64_t number = 0;
      std::memcpy(&number, &value, sizeof number);
      if constexpr (std::is_enum_v<T>) {
        check_range(name, number, 0, static_cast<int64_t>(last_enumerator(T{})));
      } else {
        check_range(name, number, std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
      }
      field = static_cast<T>(number);
    }
  }
  void text_argument(ArgumentName name, std::string& field);
  void begin_group() { group_is_given_ = false; }
  bool end_group() const { return group_is_given_; }
  LinearWeight& own_weight() { return weight_; }

  // The device of the first tensor.
  std::optional<DeviceId> device() const { return device_; }

 private:
  static constexpr KvFormat last_enumerator(KvFormat) { return KvFormat::state_f32; }
  static constexpr ActivationFormat last_enumerator(ActivationFormat) { return ActivationFormat::fp8_f32; }
  template <class E>
  static constexpr E last_enumerator(E) {
    return E{1};  // RopePairing, RopeSlice
  }
  AtenTensorHandle next_tensor(bool is_optional) {
    const StableIValue value = *next_++;
    if (!is_optional) return pointer_of<AtenTensorOpaque>(value);
    return value == 0 ? nullptr : pointer_of<AtenTensorOpaque>(*pointer_of<StableIValue>(value));
  }
  void seen(DeviceId device) {
    if (!device_) device_ = device;
    group_is_given_ = true;
  }
  void check_range(ArgumentName name, int64_t value, int64_t low, int64_t high) const;

  std::string_view op_;
  const StableIValue* next_;
  std::optional<DeviceId> device_{};
  AtenTensorHandle cache_tensor_ = nullptr;
  bool group_is_given_ = false;
  LinearWeight weight_{};
};

}  // namespace strata::torch_ops
