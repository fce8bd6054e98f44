// Element types of tensors in files: all types of safetensors, including those that no op computes with.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "strata/dtype.h"

namespace strata {

// A type of safetensors, with its name in files, its size and the DType that it corresponds to.
class StoredDType {
 public:
  // In the order of safetensors, by bits; kRows below has the same order.
  enum Value : uint8_t {
    boolean,   // "BOOL", one byte
    f4,        // "F4": e2m1, two to a byte
    f6_e2m3,   // "F6_E2M3"
    f6_e3m2,   // "F6_E3M2"
    u8,        // "U8"
    i8,        // "I8"
    e5m2,      // "F8_E5M2"
    e4m3,      // "F8_E4M3"
    e8m0,      // "F8_E8M0": a power of two
    e4m3fnuz,  // "F8_E4M3FNUZ"
    e5m2fnuz,  // "F8_E5M2FNUZ"
    i16,       // "I16"
    u16,       // "U16"
    f16,       // "F16"
    bf16,      // "BF16"
    i32,       // "I32"
    u32,       // "U32"
    f32,       // "F32"
    c64,       // "C64": two f32
    f64,       // "F64"
    i64,       // "I64"
    u64,       // "U64"
  };
  // Number of types.
  static constexpr int64_t kCount = u64 + 1;

  // A type of safetensors; implicit, because every Value is one.
  constexpr StoredDType(Value value) : value_(value) {}  // NOLINT(google-explicit-constructor): StoredDType::f4 is one
  // The type of files for a type of ops; implicit, because every DType can be stored.
  constexpr StoredDType(DType dtype) : value_(value_of(dtype)) {}  // NOLINT(google-explicit-constructor): every DType can be stored

  friend constexpr bool operator==(StoredDType, StoredDType) = default;

  // The name in files: "BF16", "F8_E4M3".
  constexpr std::string_view name() const { return row_of(value_).name; }
  // Bits of one element.
  constexpr int64_t bits() const { return row_of(value_).bits; }
  // The type that ops compute with; absent for types that are only stored.
  constexpr std::optional<DType> dtype() const { return row_of(value_).dtype; }

  // Absent for a name that safetensors does not define.
  static constexpr std::optional<StoredDType> from_name(std::string_view name) {
    for (const Row& row : kRows) {
      if (row.name == name) return row.value;
    }
    return std::nullopt;
  }

 private:
  struct Row {
    Value value;
    std::string_view name;
    int64_t bits;
    std::optional<DType> dtype;
  };
  static constexpr std::array<Row, kCount> kRows{{
      {boolean, "BOOL", 8, DType::boolean},
      {f4, "F4", 4, std::nullopt},
      {f6_e2m3, "F6_E2M3", 6, std::nullopt},
      {f6_e3m2, "F6_E3M2", 6, std::nullopt},
      {u8, "U8", 8, DType::u8},
      {i8, "I8", 8, DType::i8},
      {e5m2, "F8_E5M2", 8, std::nullopt},
      {e4m3, "F8_E4M3", 8, DType::e4m3},
      {e8m0, "F8_E8M0", 8, DType::e8m0},
      {e4m3fnuz, "F8_E4M3FNUZ", 8, std::nullopt},
      {e5m2fnuz, "F8_E5M2FNUZ", 8, std::nullopt},
      {i16, "I16", 16, DType::i16},
      {u16, "U16", 16, std::nullopt},
      {f16, "F16", 16, DType::f16},
      {bf16, "BF16", 16, DType::bf16},
      {i32, "I32", 32, DType::i32},
      {u32, "U32", 32, std::nullopt},
      {f32, "F32", 32, DType::f32},
      {c64, "C64", 64, std::nullopt},
      {f64, "F64", 64, DType::f64},
      {i64, "I64", 64, DType::i64},
      {u64, "U64", 64, std::nullopt},
  }};

  static constexpr const Row& row_of(Value value) { return kRows[value]; }
  static constexpr Value value_of(DType dtype) {
    for (const Row& row : kRows) {
      if (row.dtype == dtype) return row.value;
    }
    return u8;
  }

  Value value_;
};

// The ops' name of the type; for a type that is only stored, its name in files.
constexpr std::string_view to_string(StoredDType stored) {
  const auto dtype = stored.dtype();
  return dtype ? to_string(*dtype) : stored.name();
}

}  // namespace strata
