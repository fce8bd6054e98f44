// The header of a safetensors file: 8 bytes of length, then JSON: name -> dtype, shape, data_offsets.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "strata/checkpoint.h"
#include "strata/error.h"

namespace strata {

// Product of shape and element size. Throws `code` naming the tensor when the bits do not fit 63 bits, an extent is negative, or
// elements of less than a byte make no whole number of bytes.
size_t stored_bytes(const std::string& origin, const std::string& name, StoredDType dtype, const std::vector<int64_t>& shape,
                    ErrorCode code);

// Throws invalid_argument for names given twice and for bytes that contradict shape and dtype.
void check_tensors(const std::vector<StoredTensor>& tensors, const std::string& origin);

// The tensors of a whole file in memory, by name, ascending, pointing into it. Every tensor lies in the data section, none overlap, and
// together they cover it. Throws invalid_file.
std::vector<StoredTensor> parse_safetensors(const std::byte* file, size_t bytes, const std::string& origin);

// The length and the JSON, padded so that the data begins at a multiple of 8, for tensors stored one after the other in this order. Throws
// as check_tensors does, and for names that are not UTF-8.
std::string make_safetensors_header(const std::vector<StoredTensor>& tensors, const std::string& origin);

}  // namespace strata
