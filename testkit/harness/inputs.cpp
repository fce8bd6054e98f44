#include "testkit/harness/inputs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "core/check.h"
#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "formats/kv_rows.h"

namespace strata::testkit {
namespace {

// After every allocation, so that a write past the end shows in the image.
constexpr size_t kGuardBytes = 64;

// Beyond this many rows a cache repeats its records: quantising millions of rows would take longer than what is measured.
constexpr size_t kDistinctRows = 2048;

int64_t product(const Shape& shape) {
  int64_t n = 1;
  for (int64_t extent : shape) n *= extent;
  return n;
}

}  // namespace

uint8_t poison_byte(DType dtype) {
  switch (dtype) {
    case DType::i64:
    case DType::i32:
    case DType::i16:
    case DType::i8:
    case DType::boolean: return 0x5A;
    default: return 0xFF;
  }
}

Inputs::Inputs(std::shared_ptr<Device> device, const InputOptions& options)
    : device_(std::move(device)), options_(options), rng_(options.seed) {}

int64_t Inputs::share(int64_t n) const {
  return std::clamp<int64_t>(static_cast<int64_t>(std::llround(static_cast<double>(n) * options_.share)), std::min<int64_t>(n, 1), n);
}

void* Inputs::upload(std::vector<std::byte> image) {
  image.insert(image.begin(), options_.offset, std::byte{0xFF});
  image.resize(image.size() + kGuardBytes, std::byte{0xFF});
  Block block{Tensor(device_, DType::u8, {static_cast<int64_t>(image.size())}), {}};
  device_->copy_from_host(block.memory.view().data, image.data(), image.size(), {});
  device_->synchronize({});
  bytes_ += image.size();
  if (options_.keep_images) block.image = std::move(image);
  blocks_.push_back(std::move(block));
  return blocks_.back().memory.view().ptr<std::byte>() + options_.offset;
}

TensorView Inputs::place(DType dtype, const Shape& shape, Padding padding, const void* data, size_t data_bytes) {
  const size_t element = size_of(dtype);
  require(!shape.empty() && shape.size() <= kMaxRank, "a case's tensor has 1 to {} dimensions, got {}", kMaxRank, shape.size());
  require(data == nullptr || data_bytes == static_cast<size_t>(product(shape)) * element, "a case's tensor of {} bytes got {} bytes",
          static_cast<size_t>(product(shape)) * element, data_bytes);
  TensorView view;
  view.dtype = dtype;
  view.device = device_->id();
  view.rank = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), view.shape.begin());
  int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.stride[i] = stride;
    stride *= view.shape[i];
    if (i == view.rank - 1) stride += padding.inner;
    if (i == view.rank - 2) stride += padding.outer;
  }
  if (view.numel() == 0) return view;
  std::vector<std::byte> image(static_cast<size_t>(view.shape[0] * view.stride[0]) * element, std::byte{poison_byte(dtype)});
  if (data != nullptr) {
    const int64_t columns = view.shape[view.rank - 1];
    const size_t row_bytes = static_cast<size_t>(columns) * element;
    for (int64_t row = 0; row < view.numel() / columns; ++row) {
      int64_t offset = 0, rest = row;
      for (int i = view.rank - 2; i >= 0; --i) {
        offset += rest % view.shape[i] * view.stride[i];
        rest /= view.shape[i];
      }
      std::memcpy(image.data() + static_cast<size_t>(offset) * element,
                  static_cast<const std::byte*>(data) + static_cast<size_t>(row) * row_bytes, row_bytes);
    }
  }
  view.data = upload(std::move(image));
  return view;
}

TensorView Inputs::f32(const Shape& shape, double scale, Padding padding) {
  std::vector<float> v(static_cast<size_t>(product(shape)));
  rng_.normal(v.data(), static_cast<int64_t>(v.size()), static_cast<float>(scale));
  return values(DType::f32, shape, v, padding);
}

TensorView Inputs::bf16(const Shape& shape, double scale, Padding padding) {
  std::vector<float> v(static_cast<size_t>(product(shape)));
  rng_.normal(v.data(), static_cast<int64_t>(v.size()), static_cast<float>(scale));
  return bf16_values(shape, v, padding);
}

TensorView Inputs::bf16_values(const Shape& shape, const std::vector<float>& v, Padding padding) {
  std::vector<Bf16> rounded(v.size());
  for (size_t i = 0; i < v.size(); ++i) rounded[i] = to_bf16(v[i]);
  return values(DType::bf16, shape, rounded, padding);
}

TensorView Inputs::e4m3(const Shape& shape, double scale, Padding padding) {
  std::vector<float> v(static_cast<size_t>(product(shape)));
  rng_.normal(v.data(), static_cast<int64_t>(v.size()), static_cast<float>(scale));
  std::vector<E4m3> codes(v.size());
  for (size_t i = 0; i < v.size(); ++i) codes[i] = to_e4m3(v[i]);
  return values(DType::e4m3, shape, codes, padding);
}

TensorView Inputs::output(DType dtype, const Shape& shape, Padding padding) { return place(dtype, shape, padding, nullptr, 0); }

TensorView Inputs::rope_table(int64_t rows, int64_t dim) {
  std::vector<float> v(static_cast<size_t>(rows * dim));
  for (int64_t row = 0; row < rows; ++row) {
    float* values_of_row = v.data() + row * dim;
    for (int64_t i = 0; i < dim / 2; ++i) {
      const double angle = 2.0 * std::numbers::pi * rng_.uniform();
      values_of_row[i] = static_cast<float>(std::cos(angle));
      values_of_row[dim / 2 + i] = static_cast<float>(std::sin(angle));
    }
  }
  return values(DType::f32, {rows, dim}, v);
}

PagedCache Inputs::cache(const CacheShape& shape, std::span<const int64_t> filled, double scale) {
  PagedCache cache;
  cache.device = device_->id();
  cache.format = shape.format;
  cache.row_dim = shape.row_dim;
  cache.page_size = shape.page_size;
  cache.num_pages = shape.num_pages;
  cache.page_stride = page_payload_bytes(shape.format, shape.row_dim, shape.page_size) + shape.extra_stride;
  cache.scale = shape.scale;

  std::vector<std::byte> image(static_cast<size_t>(cache.num_pages * cache.page_stride), std::byte{0xFF});
  PagedCache host = cache;
  host.device = {};
  host.data = image.data();
  std::vector<float> row(static_cast<size_t>(shape.row_dim));
  const auto data_bytes = static_cast<size_t>(row_data_bytes(shape.format, shape.row_dim));
  const auto scale_bytes = static_cast<size_t>(row_scale_bytes(shape.format));
  for (size_t i = 0; i < filled.size(); ++i) {
    const int64_t slot = filled[i];
    require(slot >= 0 && slot < cache.num_slots(), "a case's cache has {} rows, row {} is to be filled", cache.num_slots(), slot);
    if (i < kDistinctRows) {
      rng_.normal(row.data(), shape.row_dim, static_cast<float>(scale));
      if (shape.infinite) row[0] = INFINITY;
      store_row(host, slot, row.data(), {.ue8m0 = shape.ue8m0_rows > 0 && rng_.uniform() < shape.ue8m0_rows});
      continue;
    }
    const int64_t source = filled[i % kDistinctRows];
    std::memcpy(image.data() + host.data_offset(slot), image.data() + host.data_offset(source), data_bytes);
    if (scale_bytes > 0) std::memcpy(image.data() + host.scale_offset(slot), image.data() + host.scale_offset(source), scale_bytes);
  }
  if (!image.empty()) cache.data = upload(std::move(image));
  return cache;
}

TensorView Inputs::packed(size_t bytes, const std::function<void(void*)>& write) {
  void* data = upload(std::vector<std::byte>(bytes, std::byte{0xFF}));
  write(data);
  device_->synchronize({});
  Block& block = blocks_.back();
  if (options_.keep_images) {
    device_->copy_to_host(block.image.data(), block.memory.view().data, block.image.size(), {});
    device_->synchronize({});
  }
  return TensorView::contiguous(data, DType::u8, device_->id(), {static_cast<int64_t>(bytes)});
}

const LinearWeight* Inputs::keep(LinearWeight weight) {
  weights_.push_back(std::make_unique<LinearWeight>(std::move(weight)));
  return weights_.back().get();
}

}  // namespace strata::testkit
