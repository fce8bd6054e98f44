#include "c_api/convert.h"

#include <algorithm>
#include <limits>

namespace strata::c_api {
namespace {

static_assert(STRATA_MAX_RANK == kMaxRank);
static_assert(STRATA_CPU == static_cast<int32_t>(DeviceKind::cpu) && STRATA_CUDA == static_cast<int32_t>(DeviceKind::cuda) &&
              STRATA_OPENCL == static_cast<int32_t>(DeviceKind::opencl));
static_assert(same(STRATA_F64, DType::f64) && same(STRATA_F32, DType::f32) && same(STRATA_BF16, DType::bf16) &&
              same(STRATA_F16, DType::f16) && same(STRATA_E4M3, DType::e4m3) && same(STRATA_E8M0, DType::e8m0) &&
              same(STRATA_I64, DType::i64) && same(STRATA_I32, DType::i32) && same(STRATA_I16, DType::i16) && same(STRATA_I8, DType::i8) &&
              same(STRATA_U8, DType::u8) && same(STRATA_BOOL, DType::boolean));
static_assert(same(STRATA_KV_BF16, KvFormat::bf16) && same(STRATA_KV_FP8_TENSOR, KvFormat::fp8_tensor) &&
              same(STRATA_KV_FP8_DS_MLA_V4, KvFormat::fp8_ds_mla_v4) && same(STRATA_KV_FP8_DS_MLA, KvFormat::fp8_ds_mla) &&
              same(STRATA_KV_INDEXER_FP8, KvFormat::indexer_fp8) && same(STRATA_KV_INDEXER_MXFP4, KvFormat::indexer_mxfp4) &&
              same(STRATA_KV_STATE_F32, KvFormat::state_f32));

}  // namespace

DeviceId to_device_id(strata_device_id id, const char* field) {
  const DeviceKind kind = to_enum(id.kind, DeviceKind::opencl, field);
  const int32_t most = kind == DeviceKind::cpu ? 0 : std::numeric_limits<int32_t>::max();
  require(id.index >= 0 && id.index <= most, "{}: expected a device index in [0, {}], is {}", field, most, id.index);
  return {.kind = kind, .index = id.index};
}

TensorView to_view(const strata_tensor_view& view, const char* field) {
  TensorView result;
  if (view.rank == 0) return result;
  require(view.rank > 0 && view.rank <= kMaxRank, "{}: expected a rank in [0, {}], is {}", field, kMaxRank, view.rank);
  result.data = view.data;
  result.dtype = to_enum(view.dtype, DType::boolean, field);
  result.device = to_device_id(view.device, field);
  result.rank = view.rank;
  for (int32_t i = 0; i < view.rank; ++i) {
    require(view.shape[i] >= 0 && view.stride[i] >= 0, "{}: expected extents and strides >= 0, dimension {} has extent {} and stride {}",
            field, i, view.shape[i], view.stride[i]);
    result.shape[i] = view.shape[i];
    result.stride[i] = view.stride[i];
  }
  return result;
}

PagedCache to_cache(const strata_paged_cache* cache, const char* field) {
  if (cache == nullptr) return {};
  const strata_paged_cache c = read_struct(cache, field);
  return {.data = c.data,
          .device = to_device_id(c.device, field),
          .format = to_enum(c.format, KvFormat::state_f32, field),
          .row_dim = c.row_dim,
          .page_size = c.page_size,
          .num_pages = c.num_pages,
          .page_stride = c.page_stride,
          .scale = c.scale};
}

strata_device_id from_device_id(DeviceId id) { return {.kind = static_cast<int32_t>(id.kind), .index = id.index}; }

strata_tensor_view from_view(const TensorView& view) {
  strata_tensor_view result{};
  result.data = view.data;
  result.dtype = static_cast<int32_t>(view.dtype);
  result.rank = view.rank;
  result.device = from_device_id(view.device);
  std::copy(view.shape.begin(), view.shape.end(), result.shape);
  std::copy(view.stride.begin(), view.stride.end(), result.stride);
  return result;
}

strata_paged_cache from_cache(const PagedCache& cache) {
  strata_paged_cache result = strata_paged_cache_default();
  result.data = cache.data;
  result.device = from_device_id(cache.device);
  result.format = static_cast<int32_t>(cache.format);
  result.row_dim = cache.row_dim;
  result.page_size = cache.page_size;
  result.scale = cache.scale;
  result.num_pages = cache.num_pages;
  result.page_stride = cache.page_stride;
  return result;
}

void write_text(std::string_view text, char* buffer, int64_t size, int64_t* needed) {
  require(size >= 0 && (size == 0 || buffer != nullptr), "expected a buffer of size bytes, size is {} and the buffer {}", size,
          buffer == nullptr ? "null" : "not null");
  if (size > 0) {
    const size_t count = std::min(text.size(), static_cast<size_t>(size - 1));
    std::copy_n(text.data(), count, buffer);
    buffer[count] = '\0';
  }
  if (needed != nullptr) *needed = static_cast<int64_t>(text.size()) + 1;
}

}  // namespace strata::c_api

using namespace strata;
using namespace strata::c_api;

int64_t strata_dtype_bytes(strata_dtype dtype) noexcept {
  const bool known = dtype >= 0 && dtype <= static_cast<int32_t>(DType::boolean);
  return known ? static_cast<int64_t>(size_of(static_cast<DType>(dtype))) : 0;
}

strata_status strata_tensor_view_contiguous(void* data, strata_dtype dtype, strata_device_id device, int32_t rank, const int64_t* shape,
                                            strata_tensor_view* view) noexcept {
  return guarded([&] {
    strata_tensor_view& out = result(view, "view");
    require(shape != nullptr, "shape: expected an array, is null");
    require(rank >= 1 && rank <= kMaxRank, "rank: expected 1 to {}, is {}", kMaxRank, rank);
    strata_tensor_view made{};
    made.data = data;
    made.dtype = dtype;
    made.rank = rank;
    made.device = device;
    std::copy_n(shape, rank, made.shape);
    TensorView checked = to_view(made, "view");
    int64_t stride = 1, bytes = strata_dtype_bytes(dtype);
    bool fits = true;
    for (int32_t i = rank - 1; i >= 0; --i) {
      checked.stride[i] = stride;
      fits = !__builtin_mul_overflow(stride, shape[i], &stride) && !__builtin_mul_overflow(bytes, shape[i], &bytes) && fits;
    }
    require(fits, "view: expected at most 2^63 - 1 bytes, is {}", checked);
    out = from_view(checked);
  });
}

strata_status strata_page_payload_bytes(strata_kv_format format, int64_t row_dim, int64_t page_size, int64_t* bytes) noexcept {
  return guarded([&] {
    int64_t& out = result(bytes, "bytes");
    const KvFormat checked = to_enum(format, KvFormat::state_f32, "format");
    constexpr int64_t kMost = int64_t{1} << 31;
    require(row_dim >= 0 && row_dim < kMost && page_size >= 0 && page_size < kMost,
            "row_dim and page_size: expected 0 to 2^31 - 1, are {} and {}", row_dim, page_size);
    int64_t payload = 0;
    require(!__builtin_mul_overflow(row_bytes(checked, row_dim), page_size, &payload), "expected at most 2^63 - 1 bytes, is {} rows of {}",
            page_size, row_bytes(checked, row_dim));
    out = payload;
  });
}
