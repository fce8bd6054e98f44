#include "core/check.h"

#include <algorithm>
#include <limits>
#include <string>

#include "core/unread_host.h"

namespace strata {
namespace {

constexpr int64_t kMaxI32 = std::numeric_limits<int32_t>::max();

std::string list(std::initializer_list<int64_t> shape) {
  std::string text = "[";
  for (int64_t extent : shape) {
    if (text.size() > 1) text += ", ";
    text += extent == kAny ? "any" : std::to_string(extent);
  }
  return text + "]";
}

template <class Values>
std::string names(const Values& values) {
  std::string text;
  for (auto value : values) {
    if (!text.empty()) text += " or ";
    text += to_string(value);
  }
  return text;
}

}  // namespace

void ParamCheck::on_device(std::string_view name, DeviceId id) { require(id == device_, "{} must be on {}, is on {}", name, device_, id); }

void ParamCheck::view(std::string_view name, const TensorView& v, std::initializer_list<DType> dtypes,
                      std::initializer_list<int64_t> shape) {
  if (!v.present()) reject("{} is required: {} {}, is absent", name, names(dtypes), list(shape));
  require(v.rank <= kMaxRank, "{} must have at most {} dimensions, has {}", name, int{kMaxRank}, v.rank);
  if (std::find(dtypes.begin(), dtypes.end(), v.dtype) == dtypes.end()) reject("{} must be {}, is {}", name, names(dtypes), v);
  bool shape_ok = static_cast<size_t>(v.rank) == shape.size();
  for (size_t i = 0; shape_ok && i < shape.size(); ++i) {
    const int64_t want = shape.begin()[i];
    shape_ok = v.shape[i] >= 0 && (want == kAny || want == v.shape[i]);
  }
  if (!shape_ok) reject("{} must have shape {}, is {}", name, list(shape), v);
  require(v.rows_contiguous(), "{} must have stride 1 in its last dimension, has {}", name, v.stride[v.rank - 1]);
  bool empty = false, forward = true;
  for (int i = 0; i < v.rank; ++i) {
    empty = empty || v.shape[i] == 0;
    forward = forward && (v.stride[i] >= 0 || v.shape[i] <= 1);
  }
  if (!forward) reject("{} must have strides that are not negative, is {}", name, v);
  on_device(name, v.device);
  if (empty) return;
  require(v.data != nullptr, "{} must have memory, is {} with a null pointer", name, v);
  require(reinterpret_cast<uintptr_t>(v.data) % size_of(v.dtype) == 0, "{} must begin at a multiple of {} bytes, is at {}", name,
          size_of(v.dtype), v.data);
}

void ParamCheck::optional(std::string_view name, const TensorView& v, DType dtype, std::initializer_list<int64_t> shape) {
  if (v.present()) view(name, v, dtype, shape);
}

void ParamCheck::contiguous(std::string_view name, const TensorView& v) {
  require(!v.present() || v.is_contiguous(), "{} must be contiguous, is {}", name, v);
}

void ParamCheck::cache(std::string_view name, const PagedCache& c, std::initializer_list<KvFormat> formats, int64_t row_dim) {
  require(c.present(), "{} is required, is absent (page_size {})", name, c.page_size);
  if (std::find(formats.begin(), formats.end(), c.format) == formats.end()) {
    reject("{} must have format {}, has {}", name, names(formats), to_string(c.format));
  }
  require(row_dim == kAny || c.row_dim == row_dim, "{} must have row_dim {}, has {}", name, row_dim, c.row_dim);
  require(c.row_dim >= 1 && c.row_dim <= kMaxI32 / c.page_size, "{} must have a row_dim in [1, {}] with {} rows a page, has {}", name,
          kMaxI32 / c.page_size, c.page_size, c.row_dim);
  const int64_t payload = page_payload_bytes(c.format, c.row_dim, c.page_size);
  require(c.page_stride >= payload, "{} must have a page_stride of at least {} bytes for {} rows, has {}", name, payload, c.page_size,
          c.page_stride);
  require(c.num_pages >= 0 && c.num_pages <= std::numeric_limits<int64_t>::max() / c.page_stride,
          "{} must have num_pages >= 0 whose bytes fit 63 bits, has {} pages {} bytes apart", name, c.num_pages, c.page_stride);
  on_device(name, c.device);
  require(c.data != nullptr || c.num_pages == 0, "{} must have memory, has {} pages and a null pointer", name, c.num_pages);
}

void ParamCheck::values_in(std::string_view name, const TensorView& v, int64_t low, int64_t high, bool negative_skips) {
  if (!v.present() || v.data == nullptr || !is_readable(v.device)) return;
  for (int64_t i = 0; i < v.shape[0]; ++i) {
    const int64_t value = v.dtype == DType::i64 ? v.ptr<int64_t>()[i * v.stride[0]] : v.ptr<int32_t>()[i * v.stride[0]];
    if (negative_skips && value < 0) continue;
    require(value >= low && value < high, "{}[{}] must be in [{}, {}), is {}", name, i, low, high, value);
  }
}

}  // namespace strata
