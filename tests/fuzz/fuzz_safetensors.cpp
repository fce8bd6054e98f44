// Any bytes as a safetensors file: refused with invalid_file, or tensors that lie in the data, cover it, and can be written back.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "checkpoint/safetensors_header.h"

namespace {

void check(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* file = reinterpret_cast<const std::byte*>(data);
  std::vector<strata::StoredTensor> tensors;
  try {
    tensors = strata::parse_safetensors(file, size, "fuzz");
  } catch (const strata::Error& e) {
    check(e.code() == strata::ErrorCode::invalid_file);
    return 0;
  }
  size_t total = 0;
  unsigned sum = 0;
  for (const strata::StoredTensor& t : tensors) {
    check(t.data >= file && t.data + t.bytes <= file + size);
    check(t.bytes * 8 == static_cast<size_t>(t.numel() * t.dtype.bits()));
    if (t.bytes > 0) sum += std::to_integer<unsigned>(t.data[0]) + std::to_integer<unsigned>(t.data[t.bytes - 1]);
    total += t.bytes;
  }
  check(total <= size && sum <= 510 * tensors.size());
  // Written in the order of their data they are the same tensors again.
  std::vector<strata::StoredTensor> by_data = tensors;
  std::stable_sort(by_data.begin(), by_data.end(), [](const auto& a, const auto& b) { return a.data < b.data; });
  std::string copy = strata::make_safetensors_header(by_data, "fuzz");
  for (const strata::StoredTensor& t : by_data) copy.append(reinterpret_cast<const char*>(t.data), t.bytes);
  const auto again = strata::parse_safetensors(reinterpret_cast<const std::byte*>(copy.data()), copy.size(), "copy");
  check(again.size() == tensors.size());
  for (size_t i = 0; i < again.size(); ++i) {
    check(again[i].name == tensors[i].name && again[i].dtype == tensors[i].dtype && again[i].shape == tensors[i].shape);
    check(std::equal(again[i].data, again[i].data + again[i].bytes, tensors[i].data));
  }
  return 0;
}
