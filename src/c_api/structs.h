// Reading and writing of structs that begin with struct_size.
#pragma once

#include <cstring>

#include "c_api/error.h"

namespace strata::c_api {

// Name of a struct, and its size in the first release that had it, which no release may shrink: STRATA_STRUCT(strata_config, 56).
template <class T>
struct StructInfo;
#define STRATA_STRUCT(type, first_size)                                                                   \
  template <>                                                                                             \
  struct StructInfo<type> {                                                                               \
    static constexpr const char* kName = #type;                                                           \
    static constexpr size_t kFirstSize = first_size;                                                      \
    static_assert(sizeof(type) >= kFirstSize && std::is_trivially_copyable_v<type>, #type " has shrunk"); \
  }

namespace detail {
// Throws unless a struct of `given` bytes can be read as one of `known` bytes: api.h has the rule.
void check_struct_size(const char* name, const void* data, size_t given, size_t first, size_t known);
}  // namespace detail

// A copy of a struct in the size that this library knows; what the caller's lacks is zero.
template <class T>
T read_struct(const T* pointer, const char* what) {
  require(pointer != nullptr, "{}: expected a {}, is null", what, StructInfo<T>::kName);
  size_t size = 0;
  std::memcpy(&size, pointer, sizeof size);
  detail::check_struct_size(StructInfo<T>::kName, pointer, size, StructInfo<T>::kFirstSize, sizeof(T));
  T copy;
  std::memset(&copy, 0, sizeof copy);
  std::memcpy(&copy, pointer, size < sizeof copy ? size : sizeof copy);
  return copy;
}

// Writes a result up to the size that the caller's struct has. Its struct_size stays.
template <class T>
class StructResult {
 public:
  // Checks the caller's struct, before any work is done.
  StructResult(T* pointer, const char* what) : pointer_(pointer), size_(read_size(pointer, what)) {}
  void write(T value) const {
    value.struct_size = size_;
    std::memcpy(static_cast<void*>(pointer_), &value, size_ < sizeof value ? size_ : sizeof value);
  }

 private:
  static size_t read_size(const T* pointer, const char* what) {
    require(pointer != nullptr, "{}: expected a {}, is null", what, StructInfo<T>::kName);
    // What the struct holds is overwritten, so only its size has to fit.
    size_t size = 0;
    std::memcpy(&size, pointer, sizeof size);
    detail::check_struct_size(StructInfo<T>::kName, nullptr, size, StructInfo<T>::kFirstSize, sizeof(T));
    return size;
  }
  T* pointer_;
  size_t size_;
};

// Element i of an array of structs, which all have the size of the first.
template <class T>
T read_element(const T* array, int64_t i, const char* what) {
  require(array != nullptr, "{}: expected an array of {}, is null", what, StructInfo<T>::kName);
  size_t stride = 0, size = 0;
  std::memcpy(&stride, array, sizeof stride);
  detail::check_struct_size(StructInfo<T>::kName, array, stride, StructInfo<T>::kFirstSize, sizeof(T));
  const T* element = reinterpret_cast<const T*>(reinterpret_cast<const char*>(array) + static_cast<size_t>(i) * stride);
  std::memcpy(&size, element, sizeof size);
  require(size == stride, "{}: element {} has struct_size {}, expected {}, that of element 0", what, i, size, stride);
  return read_struct(element, what);
}

}  // namespace strata::c_api
