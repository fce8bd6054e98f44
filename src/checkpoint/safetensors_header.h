// The header of a safetensors file: 8 bytes of length, then JSON: name -> dtype, shape, data_offsets.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "strata/checkpoint.h"
#include "strata/error.h"

namespace strata {

// The format's own limit.
inline constexpr size_t kMaxSafetensorsHeader = 100'000'000;

// "BF16", "F8_E4M3", ...
std::string_view safetensors_name(DType dtype);

// Product of shape and element size. Throws `code` naming the tensor when it does not fit 63 bits or an extent is negative.
size_t stored_bytes(const std::string& origin, const std::string& name, DType dtype, const std::vector<int64_t>& shape, ErrorCode code);

// Tensors by name, ascending, pointing into data[0, data_bytes). Every tensor lies in it, none overlap, and together they cover it.
std::vector<StoredTensor> parse_safetensors_header(std::string_view json, const std::byte* data, size_t data_bytes,
                                                   const std::string& origin);

// The length and the JSON, padded so that the data begins at a multiple of 8, for tensors stored one behind the other in this order.
std::string make_safetensors_header(const std::vector<StoredTensor>& tensors, const std::string& origin);

}  // namespace strata
