// Arrays that callers give and receive.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "c_api/structs.h"

namespace strata::c_api {

// Texts that are not stored with a zero after them do not fit a const char*; those of literals and std::string do.
inline const char* c_text(std::string_view literal) { return literal.data(); }

// A caller's array of `count` values to read. It may be null where it has none.
template <class T>
std::span<const T> to_span(const T* values, int64_t count, const char* field) {
  require(count >= 0, "number of {}: expected at least 0, is {}", field, count);
  require(count == 0 || values != nullptr, "{}: expected an array of {}, is null", field, count);
  return {values, static_cast<size_t>(count)};
}
// The same of structs with struct_size, whose elements are read by read_element.
template <class T>
void check_structs(const T* structs, int64_t count, const char* field) {
  (void)to_span(structs, count, field);
}
std::vector<std::string> to_texts(const char* const* texts, int64_t count, const char* field);

// A caller's array of `capacity` results, which may be null where it has room for none.
template <class T>
void check_results(const T* results, int64_t capacity, const char* field) {
  require(capacity >= 0, "capacity of {}: expected at least 0, is {}", field, capacity);
  require(capacity == 0 || results != nullptr, "{}: expected an array of {}, is null", field, capacity);
}
// As many values as fit, and their number.
template <class T, class Values>
void write_values(const Values& values, T* results, int64_t capacity, int64_t* count, const char* field) {
  check_results(results, capacity, field);
  std::copy_n(std::begin(values), std::min(std::ssize(values), static_cast<ptrdiff_t>(capacity)), results);
  if (count != nullptr) *count = std::ssize(values);
}
// The same of structs, in the size of the caller's first one.
template <class T>
void write_structs(std::span<const T> values, T* results, int64_t capacity, int64_t* count, const char* field) {
  check_results(results, capacity, field);
  if (capacity > 0) {
    size_t size = 0;
    std::memcpy(&size, results, sizeof size);
    detail::check_struct_size(StructInfo<T>::kName, nullptr, size, StructInfo<T>::kFirstSize, sizeof(T));
    char* to = reinterpret_cast<char*>(results);
    for (T value : values.first(std::min(values.size(), static_cast<size_t>(capacity)))) {
      value.struct_size = size;
      std::memset(to, 0, size);
      std::memcpy(to, &value, std::min(size, sizeof value));
      to += size;
    }
  }
  if (count != nullptr) *count = std::ssize(values);
}

}  // namespace strata::c_api
