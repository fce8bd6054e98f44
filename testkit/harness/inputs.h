// The memory of one run of a case: inputs made from a seed on the host and uploaded, outputs and unused cache rows full of NaN
// patterns. Works on any Device through its copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "testkit/harness/random.h"
#include "strata/kv_format.h"
#include "strata/ops/linear.h"
#include "strata/tensor.h"

namespace strata::testkit {

// 1 to kMaxRank extents.
using Shape = std::vector<int64_t>;

// Elements between the end of a row and the next one, and between the last row of a plane and the next plane.
struct Padding {
  int64_t inner = 0;
  int64_t outer = 0;
};

struct CacheShape {
  KvFormat format = KvFormat::fp8_ds_mla_v4;
  int32_t row_dim = 512;
  int32_t page_size = 64;
  int64_t num_pages = 1;
  int64_t extra_stride = 0;  // bytes between pages beyond the payload
  bool infinite = false;     // dimension 0 of every row is +inf
  float scale = 1.0f;        // fp8_tensor only
  double ue8m0_rows = 0.0;   // fp8_ds_mla: the share of rows whose scales are powers of two
};

struct InputOptions {
  uint64_t seed = 1;
  double share = 1.0;       // of the tokens of a benchmark case
  bool keep_images = true;  // remember what was uploaded, to see afterwards what was written
  size_t offset = 0;        // bytes after a multiple of 256 at which everything begins; a multiple of 8, as elements may be
  bool drawn = false;       // Tags::drawn
};

class Inputs {
 public:
  // One allocation of the device; `image` is what it held before the run (empty without keep_images).
  struct Block {
    Tensor memory;
    std::vector<std::byte> image;
  };

  Inputs(std::shared_ptr<Device> device, const InputOptions& options);

  const std::shared_ptr<Device>& device() const { return device_; }
  Rng& rng() { return rng_; }
  // Whether the shape was drawn: among thousands are sums whose terms cancel, and rows of few small values, of which the lists have none,
  // so that bounds that have no form in the shape's terms are wider than those of the lists.
  bool drawn() const { return options_.drawn; }
  // What a benchmark case uses of n tokens, requests or batch entries: all of them, or a share when the reference is timed.
  int64_t share(int64_t n) const;

  // Values of Rng::normal times `scale`.
  TensorView bf16(const Shape& shape, double scale = 1.0, Padding padding = {});
  TensorView f32(const Shape& shape, double scale = 1.0, Padding padding = {});
  TensorView e4m3(const Shape& shape, double scale = 1.0, Padding padding = {});

  // Given values, row-major. T has the size of the dtype's elements.
  template <class T>
  TensorView values(DType dtype, const Shape& shape, const std::vector<T>& v, Padding padding = {}) {
    return place(dtype, shape, padding, v.data(), v.size() * sizeof(T));
  }
  // The same rounded to bf16.
  TensorView bf16_values(const Shape& shape, const std::vector<float>& v, Padding padding = {});
  TensorView i32(const std::vector<int32_t>& v) { return values(DType::i32, {static_cast<int64_t>(v.size())}, v); }
  TensorView i64(const std::vector<int64_t>& v) { return values(DType::i64, {static_cast<int64_t>(v.size())}, v); }
  TensorView u8(const std::vector<uint8_t>& v) { return values(DType::u8, {static_cast<int64_t>(v.size())}, v); }

  // Poison: NaN for floating-point types, a large number for integers.
  TensorView output(DType dtype, const Shape& shape, Padding padding = {});

  // f32 [rows, dim] of cosines and sines of random angles: every rotation is as good as the model's own, and a wrong row shows.
  TensorView rope_table(int64_t rows, int64_t dim = 64);

  // A cache with random records in the rows `filled` and poison everywhere else, padding included.
  PagedCache cache(const CacheShape& shape, std::span<const int64_t> filled, double scale = 1.0);

  // `bytes` bytes of the device that write(pointer) fills, as they are before the run.
  TensorView packed(size_t bytes, const std::function<void(void*)>& write);

  // Weights are referred to by pointer.
  const LinearWeight* keep(LinearWeight weight);

  const std::vector<Block>& blocks() const { return blocks_; }
  size_t bytes() const { return bytes_; }

 private:
  // Poison with rows of `data` (row-major, null: none) in it.
  TensorView place(DType dtype, const Shape& shape, Padding padding, const void* data, size_t data_bytes);
  void* upload(std::vector<std::byte> image);

  std::shared_ptr<Device> device_;
  InputOptions options_;
  Rng rng_;
  std::vector<Block> blocks_;
  std::vector<std::unique_ptr<LinearWeight>> weights_;
  size_t bytes_ = 0;
};

// Poison byte of a dtype: makes NaN of floating-point types, and of integers a number that is no index, count or slot.
uint8_t poison_byte(DType dtype);

}  // namespace strata::testkit
