// Element types of tensors and their storage structs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace strata {

// Element type of a tensor that ops compute with.
enum class DType : uint8_t {
  f64,      // IEEE 64-bit float
  f32,      // IEEE 32-bit float
  bf16,     // the upper half of an f32
  f16,      // IEEE 16-bit float
  e4m3,     // FP8: 4 bits of exponent, 3 of mantissa, largest value 448, no infinity
  e8m0,     // a power of two: 8 bits of exponent with bias 127 (ue8m0)
  i64,      // signed integer
  i32,      // signed integer
  i16,      // signed integer
  i8,       // signed integer
  u8,       // bytes, packed MXFP4 and flags
  boolean,  // one byte, 0 or 1
};

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

// "f64", "bf16", "bool", as messages and the command name the type.
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

// Storage of DType::bf16. C++20 has no name for it and the types below. Conversions of Bf16 are in strata/bf16.h, the others in
// src/formats.
struct Bf16 {
  uint16_t bits;  // sign, 8 bits of exponent, 7 of mantissa
};
// Storage of DType::f16.
struct Fp16 {
  uint16_t bits;  // sign, 5 bits of exponent, 10 of mantissa
};
// Storage of DType::e4m3.
struct E4m3 {
  uint8_t bits;  // sign, 4 bits of exponent, 3 of mantissa
};
// Storage of DType::e8m0.
struct E8m0 {
  uint8_t bits;  // n: 2^(n - 127); 255: NaN
};

}  // namespace strata
