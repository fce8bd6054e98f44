// Element types of tensors and their storage structs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace strata {

enum class DType : uint8_t { f64, f32, bf16, f16, e4m3, e8m0, i64, i32, i16, i8, u8, boolean };

// Bytes of one element. Every supported type has a whole number of bytes; MXFP4 is stored packed in u8.
constexpr size_t size_of(DType t) {
  switch (t) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16:
    case DType::i16: return 2;
    case DType::e4m3:
    case DType::e8m0:
    case DType::i8:
    case DType::u8:
    case DType::boolean: return 1;
  }
  return 0;
}

constexpr std::string_view to_string(DType t) {
  switch (t) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::e4m3: return "e4m3";
    case DType::e8m0: return "e8m0";
    case DType::i64: return "i64";
    case DType::i32: return "i32";
    case DType::i16: return "i16";
    case DType::i8: return "i8";
    case DType::u8: return "u8";
    case DType::boolean: return "bool";
  }
  return "unknown";
}

// Storage of the types C++20 has no name for. The codecs are in src/formats.
struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};
struct E4m3 {
  uint8_t bits;
};
struct E8m0 {
  uint8_t bits;
};

}  // namespace strata
