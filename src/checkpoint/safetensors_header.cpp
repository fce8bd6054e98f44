#include "checkpoint/safetensors_header.h"

#include <algorithm>
#include <set>
#include <utility>

#include "checkpoint/file_kind.h"
#include "checkpoint/json.h"
#include "core/check.h"

namespace strata {
namespace {

using nlohmann::json;

constexpr const char* kMetadata = "__metadata__";
constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr const char* kTruncated = " (truncated: download the file again)";

// The description of one tensor while it is read.
class Entry {
 public:
  Entry(const std::string& origin, const std::string& name, const json& object) : origin_(origin), name_(name), object_(object) {
    if (!object.is_object()) reject("description", "an object", brief(object));
    for (const auto& [key, value] : object.items()) {
      if (key != "dtype" && key != "shape" && key != "data_offsets") reject("keys", "dtype, shape and data_offsets", brief(json(key)));
    }
  }

  [[noreturn]] void reject(std::string_view what, std::string_view expected, std::string_view actual) const {
    fail(ErrorCode::invalid_file, "{}: tensor {}: {}: expected {}, is {}", origin_, brief(json(name_)), what, expected, actual);
  }

  StoredDType dtype() const {
    const json& value = need("dtype");
    if (value.is_string()) {
      if (const auto dtype = StoredDType::from_name(value.get_ref<const std::string&>())) return *dtype;
    }
    std::vector<std::string_view> known;
    for (int64_t i = 0; i < StoredDType::kCount; ++i) known.push_back(StoredDType(static_cast<StoredDType::Value>(i)).name());
    reject("dtype", fmt::format("one of {}", fmt::join(known, ", ")), brief(value));
  }

  std::vector<int64_t> shape() const { return numbers("shape", "an array of integers >= 0"); }

  std::pair<size_t, size_t> offsets() const {
    const std::vector<int64_t> pair = numbers("data_offsets", "two integers >= 0");
    if (pair.size() != 2) reject("data_offsets", "two integers >= 0", brief(object_["data_offsets"]));
    return {static_cast<size_t>(pair[0]), static_cast<size_t>(pair[1])};
  }

 private:
  const json& need(const char* key) const {
    const auto it = object_.find(key);
    if (it == object_.end()) reject(key, "a value", "missing");
    return *it;
  }
  std::vector<int64_t> numbers(const char* key, std::string_view expected) const {
    const json& list = need(key);
    if (!list.is_array()) reject(key, expected, brief(list));
    std::vector<int64_t> values;
    for (const json& value : list) {
      if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) reject(key, expected, brief(list));
      values.push_back(static_cast<int64_t>(value.get<uint64_t>()));
    }
    return values;
  }

  const std::string& origin_;
  const std::string& name_;
  const json& object_;
};

void check_metadata(const json& metadata, const std::string& origin) {
  const bool strings = metadata.is_object() && std::all_of(metadata.begin(), metadata.end(), [](const json& v) { return v.is_string(); });
  if (!strings) fail(ErrorCode::invalid_file, "{}: {}: expected an object of strings, is {}", origin, kMetadata, brief(metadata));
}

std::vector<StoredTensor> parse_header(std::string_view text, const std::byte* data, size_t data_bytes, const std::string& origin) {
  if (text.empty() || text.front() != '{') {
    fail(ErrorCode::invalid_file, "{}: header: expected to begin with '{{', {}", origin,
         text.empty() ? std::string("is empty") : fmt::format("begins with byte {:#04x}", static_cast<unsigned char>(text.front())));
  }
  const json header = parse_json(text, origin + ": header");
  struct Range {
    size_t begin;
    size_t end;
    size_t tensor;
  };
  std::vector<StoredTensor> tensors;
  std::vector<Range> ranges;
  for (const auto& [name, object] : header.get_ref<const json::object_t&>()) {
    if (name == kMetadata) {
      check_metadata(object, origin);
      continue;
    }
    const Entry entry(origin, name, object);
    const auto [begin, end] = entry.offsets();
    if (begin > end) entry.reject("data_offsets", "begin <= end", fmt::format("[{}, {}]", begin, end));
    StoredTensor tensor{.name = name, .dtype = entry.dtype(), .shape = entry.shape(), .bytes = end - begin};
    const size_t expected = stored_bytes(origin, name, tensor.dtype, tensor.shape, ErrorCode::invalid_file);
    if (expected != tensor.bytes) {
      entry.reject("data_offsets", fmt::format("{} bytes for {}[{}]", expected, tensor.dtype.name(), fmt::join(tensor.shape, ", ")),
                   fmt::format("{} bytes", tensor.bytes));
    }
    ranges.push_back({begin, end, tensors.size()});
    tensors.push_back(std::move(tensor));
  }
  // The format has no holes: a byte belongs to one tensor. That also makes an overlap a gap of negative size.
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  size_t end = 0;
  for (const Range& range : ranges) {
    if (range.begin != end) {
      fail(ErrorCode::invalid_file, "{}: tensor {}: data_offsets: expected to begin at {}, where the tensor before it ends, is {} ({})",
           origin, brief(json(tensors[range.tensor].name)), end, range.begin, range.begin < end ? "overlap" : "hole");
    }
    end = range.end;
  }
  if (end != data_bytes) {
    fail(ErrorCode::invalid_file, "{}: data: expected {} bytes, as the header describes, is {}{}", origin, end, data_bytes,
         end > data_bytes ? kTruncated : "");
  }
  for (const Range& range : ranges) tensors[range.tensor].data = data + range.begin;
  return tensors;  // an object's keys are in ascending order
}

}  // namespace

size_t stored_bytes(const std::string& origin, const std::string& name, StoredDType dtype, const std::vector<int64_t>& shape,
                    ErrorCode code) {
  int64_t bits = dtype.bits();
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bits, extent, &bits)) {
      fail(code, "{}: tensor {}: shape: expected extents >= 0 whose size fits 63 bits, is [{}]", origin, brief(json(name)),
           fmt::join(shape, ", "));
    }
  }
  if (bits % 8 != 0) {
    fail(code, "{}: tensor {}: shape: expected a whole number of bytes of {}, is [{}]", origin, brief(json(name)), dtype.name(),
         fmt::join(shape, ", "));
  }
  return static_cast<size_t>(bits / 8);
}

std::vector<StoredTensor> parse_safetensors(const std::byte* file, size_t bytes, const std::string& origin) {
  if (const auto kind = file_kind({reinterpret_cast<const char*>(file), std::min(bytes, kFileKindBytes)})) {
    fail(ErrorCode::invalid_file, "{}: expected a safetensors file, is {}", origin, *kind);
  }
  if (bytes < kLengthBytes) {
    fail(ErrorCode::invalid_file, "{}: size: expected at least {} bytes, is {}{}", origin, kLengthBytes, bytes,
         bytes == 0 ? " (an empty file)" : "");
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<uint64_t>(file[i]) << (8 * i);
  if (length > kMaxHeader) {
    fail(ErrorCode::invalid_file, "{}: header length: expected at most {} bytes, is {}", origin, kMaxHeader, length);
  }
  const size_t rest = bytes - kLengthBytes;
  if (length > rest) {
    fail(ErrorCode::invalid_file, "{}: header length: expected at most the {} bytes that follow it, is {}{}", origin, rest, length,
         kTruncated);
  }
  const std::byte* header = file + kLengthBytes;
  return parse_header({reinterpret_cast<const char*>(header), length}, header + length, rest - length, origin);
}

void check_tensors(const std::vector<StoredTensor>& tensors, const std::string& origin) {
  std::set<std::string_view> names;
  for (const StoredTensor& tensor : tensors) {
    require(tensor.name != kMetadata && names.insert(tensor.name).second, "{}: tensor names: expected unique ones, {} is {}", origin,
            brief(json(tensor.name)), tensor.name == kMetadata ? "reserved" : "given twice");
    const size_t bytes = stored_bytes(origin, tensor.name, tensor.dtype, tensor.shape, ErrorCode::invalid_argument);
    require(tensor.bytes == bytes, "{}: tensor {}: bytes: expected {} for {}[{}], is {}", origin, brief(json(tensor.name)), bytes,
            tensor.dtype.name(), fmt::join(tensor.shape, ", "), tensor.bytes);
  }
}

std::string make_safetensors_header(const std::vector<StoredTensor>& tensors, const std::string& origin) {
  check_tensors(tensors, origin);
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  size_t offset = 0;
  for (const StoredTensor& tensor : tensors) {
    nlohmann::ordered_json& entry = header[tensor.name];
    entry["dtype"] = tensor.dtype.name();
    entry["shape"] = tensor.shape;
    entry["data_offsets"] = {offset, offset + tensor.bytes};
    offset += tensor.bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception& e) {
    fail(ErrorCode::invalid_argument, "{}: tensor names: expected UTF-8: {}", origin, e.what());
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  require(text.size() <= kMaxHeader, "{}: header: expected at most {} bytes, is {}", origin, kMaxHeader, text.size());
  std::string out(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) out[i] = static_cast<char>(text.size() >> (8 * i));
  return out + text;
}

}  // namespace strata
