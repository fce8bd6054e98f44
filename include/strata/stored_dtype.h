// Element types of files: all that safetensors defines, more than ops compute with.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "strata/dtype.h"

namespace strata {

class StoredDType {
 public:
  // In the order of safetensors, by bits; the table below has the same.
  enum Value : uint8_t {
    boolean,
    f4,  // e2m1, two to a byte
    f6_e2m3,
    f6_e3m2,
    u8,
    i8,
    e5m2,
    e4m3,
    e8m0,
    e4m3fnuz,
    e5m2fnuz,
    i16,
    u16,
    f16,
    bf16,
    i32,
    u32,
    f32,
    c64,
    f64,
    i64,
    u64,
  };
  static constexpr int64_t kCount = u64 + 1;

  constexpr StoredDType(Value value) : value_(value) {}            // NOLINT(google-explicit-constructor): StoredDType::f4 is one
  constexpr StoredDType(DType dtype) : value_(value_of(dtype)) {}  // NOLINT(google-explicit-constructor): every DType can be stored

  friend constexpr bool operator==(StoredDType, StoredDType) = default;

  // As the file spells it: "BF16", "F8_E4M3".
  constexpr std::string_view name() const { return row_of(value_).name; }
  constexpr int64_t bits() const { return row_of(value_).bits; }
  // The type that ops compute with; none for types that are only stored.
  constexpr std::optional<DType> dtype() const { return row_of(value_).dtype; }

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

// The name that ops have for the type; the file's name for one that is only stored.
constexpr std::string_view to_string(StoredDType stored) {
  const auto dtype = stored.dtype();
  return dtype ? to_string(*dtype) : stored.name();
}

}  // namespace strata
