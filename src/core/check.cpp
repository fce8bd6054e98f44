#include "core/check.h"

#include <string>

namespace strata {
namespace {

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

void ParamCheck::on_device(std::string_view name, DeviceId id) {
  require(id == device_, "{} must be on {}, is on {}", name, to_string(device_), to_string(id));
}

void ParamCheck::view(std::string_view name, const TensorView& v, std::initializer_list<DType> dtypes,
                      std::initializer_list<int64_t> shape) {
  require(v.present(), "{} is required: {} {}, is absent", name, names(dtypes), list(shape));
  bool dtype_ok = false;
  for (DType t : dtypes) dtype_ok = dtype_ok || t == v.dtype;
  require(dtype_ok, "{} must be {}, is {}", name, names(dtypes), v.describe());
  bool shape_ok = static_cast<size_t>(v.rank) == shape.size();
  for (size_t i = 0; shape_ok && i < shape.size(); ++i) {
    const int64_t want = shape.begin()[i];
    shape_ok = v.shape[i] >= 0 && (want == kAny || want == v.shape[i]);
  }
  require(shape_ok, "{} must have shape {}, is {}", name, list(shape), v.describe());
  require(v.rows_contiguous(), "{} must have stride 1 in its last dimension, has {}", name, v.stride[v.rank - 1]);
  on_device(name, v.device);
  require(v.data != nullptr || v.numel() == 0, "{} must have memory, is {} with a null pointer", name, v.describe());
}

void ParamCheck::optional(std::string_view name, const TensorView& v, DType dtype, std::initializer_list<int64_t> shape) {
  if (v.present()) view(name, v, dtype, shape);
}

void ParamCheck::contiguous(std::string_view name, const TensorView& v) {
  require(!v.present() || v.is_contiguous(), "{} must be contiguous, is {}", name, v.describe());
}

void ParamCheck::cache(std::string_view name, const PagedCache& c, std::initializer_list<KvFormat> formats, int64_t row_dim) {
  require(c.present(), "{} is required, is absent (page_size {})", name, c.page_size);
  bool format_ok = false;
  for (KvFormat f : formats) format_ok = format_ok || f == c.format;
  require(format_ok, "{} must have format {}, has {}", name, names(formats), to_string(c.format));
  require(row_dim == kAny || c.row_dim == row_dim, "{} must have row_dim {}, has {}", name, row_dim, c.row_dim);
  const int64_t payload = page_payload_bytes(c.format, c.row_dim, c.page_size);
  require(c.page_stride >= payload, "{} must have a page_stride of at least {} bytes for {} rows, has {}", name, payload, c.page_size,
          c.page_stride);
  require(c.num_pages >= 0, "{} must have num_pages >= 0, has {}", name, c.num_pages);
  on_device(name, c.device);
  require(c.data != nullptr || c.num_pages == 0, "{} must have memory, has {} pages and a null pointer", name, c.num_pages);
}

void ParamCheck::values_in(std::string_view name, const TensorView& v, int64_t low, int64_t high, bool negative_skips) {
  if (!v.present() || v.data == nullptr || v.device.kind != DeviceKind::cpu) return;
  for (int64_t i = 0; i < v.shape[0]; ++i) {
    const int64_t value = v.dtype == DType::i64 ? v.ptr<int64_t>()[i * v.stride[0]] : v.ptr<int32_t>()[i * v.stride[0]];
    if (negative_skips && value < 0) continue;
    require(value >= low && value < high, "{}[{}] must be in [{}, {}), is {}", name, i, low, high, value);
  }
}

}  // namespace strata
