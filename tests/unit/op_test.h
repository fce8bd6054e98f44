// Host arrays as op parameters, running an op on its reference implementation, and expecting a refusal that leaves outputs alone.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "formats/bf16.h"
#include "strata/op.h"
#include "strata/tensor.h"

namespace strata::test {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<Bf16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<E4m3>() {
  return DType::e4m3;
}
template <>
constexpr DType dtype_of<E8m0>() {
  return DType::e8m0;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::i64;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::u8;
}

// A contiguous host tensor. Elements start as the bytes 0xA5 unless values are given, so that a test sees what was not written.
template <class T>
class Array {
 public:
  explicit Array(std::initializer_list<int64_t> shape) : view_(TensorView::contiguous(nullptr, dtype_of<T>(), {}, shape)) {
    values_.resize(static_cast<size_t>(view_.numel()));
    if (!values_.empty()) std::memset(static_cast<void*>(values_.data()), 0xA5, values_.size() * sizeof(T));
  }
  Array(std::initializer_list<int64_t> shape, std::vector<T> values)
      : view_(TensorView::contiguous(nullptr, dtype_of<T>(), {}, shape)), values_(std::move(values)) {
    EXPECT_EQ(static_cast<int64_t>(values_.size()), view_.numel());
  }

  operator TensorView() { return view(); }
  TensorView view() {
    TensorView v = view_;
    v.data = values_.data();
    return v;
  }
  T& operator[](int64_t i) { return values_[static_cast<size_t>(i)]; }
  const std::vector<T>& values() const { return values_; }
  std::vector<T>& values() { return values_; }
  void fill(T value) { std::fill(values_.begin(), values_.end(), value); }
  std::string bytes() const { return {reinterpret_cast<const char*>(values_.data()), values_.size() * sizeof(T)}; }

 private:
  TensorView view_;
  std::vector<T> values_;
};

inline std::vector<Bf16> bf16_values(const std::vector<float>& values) {
  std::vector<Bf16> result;
  for (float v : values) result.push_back(to_bf16(v));
  return result;
}

// n values of about N(0, sigma), rounded to bf16.
inline std::vector<Bf16> random_bf16(int64_t n, float sigma, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution(0.0f, sigma);
  std::vector<Bf16> result(static_cast<size_t>(n));
  for (Bf16& v : result) v = to_bf16(distribution(generator));
  return result;
}

// The op on the CPU device, forced to its reference.
template <class Params>
void run(const Op<Params>& op, const Params& params) {
  Config config;
  config.force[op.name()] = "reference";
  const auto device = open_device({}, config);
  const int64_t bytes = op.workspace_bytes(params, *device);
  const Tensor workspace(device, DType::u8, {bytes});
  op(params, {*device, {}, {workspace.view().data, bytes}});
}

// invalid_argument with a message that has every word, and no output byte changed.
template <class Params, class... Outputs>
void expect_refused(const Op<Params>& op, const Params& params, std::initializer_list<const char*> words, const Outputs&... outputs) {
  const std::vector<std::string> before{outputs.bytes()...};
  try {
    run(op, params);
    ADD_FAILURE() << op.name() << " accepted the call";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
    EXPECT_THAT(error.what(), testing::HasSubstr(op.name()));
    for (const char* word : words) EXPECT_THAT(error.what(), testing::HasSubstr(word));
  }
  EXPECT_EQ(before, (std::vector<std::string>{outputs.bytes()...})) << "outputs were written";
}

}  // namespace strata::test
