#include <algorithm>

#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/safetensors_writer.h"
#include "strata/checkpoint.h"

namespace strata {

int64_t StoredTensor::numel() const {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

struct SafetensorsFile::Impl {
  MappedFile file;
  std::vector<StoredTensor> tensors;
};

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) {
  MappedFile file(path.string());
  auto tensors = parse_safetensors(file.data(), file.size(), path.string());
  impl_ = std::make_unique<Impl>(Impl{std::move(file), std::move(tensors)});
}

SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

const std::vector<StoredTensor>& SafetensorsFile::tensors() const { return impl_->tensors; }

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto it = std::lower_bound(impl_->tensors.begin(), impl_->tensors.end(), name,
                                   [](const StoredTensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return it != impl_->tensors.end() && it->name == name ? &*it : nullptr;
}

void SafetensorsFile::release(const StoredTensor& tensor) const {
  // Only what is in this mapping: the pages of anything else are not ours to drop.
  const std::byte* begin = impl_->file.data();
  if (tensor.data >= begin && tensor.data + tensor.bytes <= begin + impl_->file.size()) impl_->file.release(tensor.data, tensor.bytes);
}

void write_safetensors(const std::filesystem::path& path, const std::vector<StoredTensor>& tensors) {
  SafetensorsWriter writer(path, tensors);
  for (const StoredTensor& tensor : tensors) writer.append(tensor.data, tensor.bytes);
  writer.finish();
}

}  // namespace strata
