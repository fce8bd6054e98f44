// Values of the C API as those of the C++ API.
#pragma once

#include <string>
#include <string_view>

#include "c_api/structs.h"
#include "strata/c/tensor.h"
#include "strata/kv_format.h"
#include "strata/tensor.h"

namespace strata::c_api {

STRATA_STRUCT(strata_paged_cache, 56);

// Whether an enumerator of the C API has the number of the C++ one: for static_assert.
template <class Enum>
constexpr bool same(int32_t c, Enum value) {
  return c == static_cast<int32_t>(value);
}
// Throws invalid_argument naming the field for a number that is not an enumerator: first to last are all that there are.
template <class Enum>
Enum to_enum(int32_t value, Enum last, const char* field) {
  require(value >= 0 && value <= static_cast<int32_t>(last), "{}: expected an enumerator, 0 to {}, is {}", field,
          static_cast<int32_t>(last), value);
  return static_cast<Enum>(value);
}
// A flag: 0 or 1.
inline bool to_bool(int32_t value, const char* field) {
  require(value == 0 || value == 1, "{}: expected 0 or 1, is {}", field, value);
  return value == 1;
}
// A text argument that must be given.
inline std::string_view to_text(const char* text, const char* field) {
  require(text != nullptr, "{}: expected a text, is null", field);
  return text;
}
// Empty for null.
inline std::string optional_text(const char* text) { return text == nullptr ? std::string() : std::string(text); }

DeviceId to_device_id(strata_device_id id, const char* field);
TensorView to_view(const strata_tensor_view& view, const char* field);
// A null pointer is a cache that is not present.
PagedCache to_cache(const strata_paged_cache* cache, const char* field);

strata_device_id from_device_id(DeviceId id);
strata_tensor_view from_view(const TensorView& view);
strata_paged_cache from_cache(const PagedCache& cache);

// Copies a text to a caller's buffer as api.h's functions that return texts do.
void write_text(std::string_view text, char* buffer, int64_t size, int64_t* needed);

}  // namespace strata::c_api
