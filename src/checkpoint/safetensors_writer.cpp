#include "checkpoint/safetensors_writer.h"

#include "checkpoint/safetensors_header.h"
#include "core/check.h"

namespace strata {

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, const std::vector<StoredTensor>& tensors)
    : name_(path.string()), header_(make_safetensors_header(tensors, name_)), file_(path) {
  for (const StoredTensor& tensor : tensors) expected_ += tensor.bytes;
  file_.write(header_.data(), header_.size());
}

void SafetensorsWriter::append(const void* data, size_t bytes) {
  require(bytes <= expected_ - written_, "{}: data: expected {} bytes, got at least {}", name_, expected_, written_ + bytes);
  if (bytes == 0) return;
  require(data != nullptr, "{}: data: expected memory for {} bytes, is null", name_, bytes);
  file_.write(data, bytes);
  written_ += bytes;
}

void SafetensorsWriter::finish() {
  require(written_ == expected_, "{}: data: expected {} bytes, got {}", name_, expected_, written_);
  file_.commit();
}

}  // namespace strata
