// A small checkpoint of matrices that a test makes, and what WeightLoader must make of them.
#pragma once

#include "weights/load_weights.h"

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>

#include "checkpoint_files.h"
#include "core/host_device.h"
#include "formats/bf16.h"
#include "formats/bits.h"
#include "formats/e4m3.h"
#include "formats/fp16.h"
#include "formats/ue8m0.h"

namespace strata::test {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Implementations that only say what they take.
struct Fake {
  std::string name;
  std::function<bool(const LinearWeight&, int64_t tokens)> takes;
};
inline bool is_fp8(const LinearWeight& w) { return w.weight.present() && w.weight.dtype == DType::e4m3; }
inline bool is_bf16(const LinearWeight& w) { return w.weight.present() && w.weight.dtype == DType::bf16; }

template <class Params>
Op<Params> fake_op(const char* name, const std::vector<Fake>& fakes) {
  std::vector<Implementation<Params>> list;
  for (const Fake& fake : fakes) {
    list.push_back(
        {fake.name,
         [fake](const Params& p, const Device&) { return fake.takes(*p.weight, p.x.shape[0]) ? Support::yes() : Support::no("not mine"); },
         [](const Params&, const Device&) { return size_t{0}; }, [](const Params&, const ExecutionContext&) {}});
  }
  return {name, [](const Params&, DeviceId) {}, std::move(list)};
}
inline OpSet fake_ops(const std::vector<Fake>& fakes) {
  OpSet ops = default_ops();
  ops.linear = fake_op<LinearParams>("linear", fakes);
  ops.grouped_linear = fake_op<GroupedLinearParams>("grouped_linear", fakes);
  ops.weight_packings.clear();
  return ops;
}
inline OpSet row_major_ops() {
  return fake_ops({{"any", [](const LinearWeight& w, int64_t) { return w.weight.present(); }}});
}

// A CPU's memory under another device's id: everything must go through copy_from_host.
class OtherDevice final : public HostDevice {
 public:
  OtherDevice() : HostDevice({DeviceKind::opencl, 0}) {}
  void copy_from_host(void* dst, const void* src, int64_t bytes, Stream stream) override {
    HostDevice::copy_from_host(dst, src, bytes, stream);
    ++copies;
  }
  int copies = 0;
};

// A matrix as a checkpoint stores it, and what it stands for.
struct Matrix {
  int64_t n, k;
  std::vector<uint8_t> codes;
  std::vector<float> scales;  // [ceil(n / block_n), ceil(k / block_k)]
  int64_t block_n = 128, block_k = 128;

  Matrix(int64_t rows, int64_t columns, uint32_t seed, int64_t bn = 128, int64_t bk = 128) : n(rows), k(columns), block_n(bn), block_k(bk) {
    std::mt19937 random(seed);
    codes.resize(static_cast<size_t>(n * k));
    for (uint8_t& code : codes) {
      do code = static_cast<uint8_t>(random());
      while ((code & 0x7F) == 0x7F);
    }
    scales.resize(static_cast<size_t>(scale_rows() * scale_columns()));
    for (float& scale : scales) scale = std::ldexp(1.0f, static_cast<int>(random() % 12) - 6);
  }
  int64_t scale_rows() const { return (n + block_n - 1) / block_n; }
  int64_t scale_columns() const { return (k + block_k - 1) / block_k; }
  float value(int64_t row, int64_t column) const {
    return to_float(E4m3{codes[static_cast<size_t>(row * k + column)]}) *
           scales[static_cast<size_t>(row / block_n * scale_columns() + column / block_k)];
  }
  std::vector<uint8_t> e8m0() const {
    std::vector<uint8_t> bytes;
    for (const float s : scales) bytes.push_back(to_e8m0(ceil_log2(s)).bits);
    return bytes;
  }
};

class LoadWeights : public ::testing::Test {
 protected:
  std::string prefix = "layers.0.attn.";
  void add_fp8(const std::string& name, const Matrix& m) {
    list_.add(prefix + name + ".weight", DType::e4m3, {m.n, m.k}, m.codes);
    list_.add(prefix + name + ".scale", DType::e8m0, {m.scale_rows(), m.scale_columns()}, m.e8m0());
  }
  std::vector<float> add_bf16(const std::string& name, std::vector<int64_t> shape, uint32_t seed) {
    int64_t numel = 1;
    for (const int64_t extent : shape) numel *= extent;
    std::mt19937 random(seed);
    std::vector<Bf16> stored;
    std::vector<float> values;
    for (int64_t i = 0; i < numel; ++i) {
      stored.push_back(to_bf16(static_cast<float>(random() % 2001) * 0.001f - 1.0f));
      values.push_back(to_float(stored.back()));
    }
    list_.add(prefix + name, DType::bf16, std::move(shape), stored);
    return values;
  }
  const Checkpoint& open() {
    list_.write(dir_.path() / "model.safetensors");
    dir_.write("config.json", config_.to_json());
    checkpoint_ = std::make_unique<Checkpoint>(dir_.path());
    return *checkpoint_;
  }
  WeightLoader loader() { return {checkpoint_ ? *checkpoint_ : open(), 0, device_, ops_}; }

  // Element of a loaded row-major matrix, whatever its form.
  static float value(const LinearWeight& w, int64_t row, int64_t column) {
    if (w.weight.dtype == DType::bf16) return to_float(w.weight.row<Bf16>(row)[column]);
    return to_float(w.weight.row<E4m3>(row)[column]) * w.scale.row<float>(row / w.block_n)[column / w.block_k];
  }
  static void expect_part(const LinearWeight& w, const Matrix& m, int64_t row_begin, int64_t column_begin, int64_t at_row = 0) {
    for (int64_t i = 0; at_row + i < w.weight.shape[0] && row_begin + i < m.n; ++i) {
      for (int64_t j = 0; j < w.k; ++j) {
        ASSERT_EQ(value(w, at_row + i, j), m.value(row_begin + i, column_begin + j)) << "row " << i << " column " << j;
      }
    }
  }
  template <class F>
  std::string refusal(F&& f) {
    return message_of(ErrorCode::invalid_file, f);
  }

  TempDir dir_;
  TensorList list_;
  ModelConfig config_ = preset("v4-tiny");
  std::unique_ptr<Checkpoint> checkpoint_;
  std::shared_ptr<Device> device_ = open_device({});
  OpSet ops_ = row_major_ops();
};

}  // namespace strata::test
