#include "checkpoint/safetensors_writer.h"

#include "checkpoint/safetensors_header.h"
#include "core/check.h"

namespace strata {

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, const std::vector<StoredTensor>& tensors)
    : path_(path), temporary_(path.string() + ".partial") {
  const std::string header = make_safetensors_header(tensors, path.string());
  for (const StoredTensor& tensor : tensors) expected_ += tensor.bytes;
  out_.open(temporary_, std::ios::binary | std::ios::trunc);
  out_.write(header.data(), static_cast<std::streamsize>(header.size()));
  fail_if_bad();
}

SafetensorsWriter::~SafetensorsWriter() {
  if (finished_) return;
  out_.close();
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
}

void SafetensorsWriter::append(const void* data, size_t bytes) {
  require(bytes <= expected_ - written_, "{}: data: expected {} bytes, got at least {}", path_.string(), expected_, written_ + bytes);
  if (bytes == 0) return;
  require(data != nullptr, "{}: data: expected memory for {} bytes, is null", path_.string(), bytes);
  out_.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  fail_if_bad();
  written_ += bytes;
}

void SafetensorsWriter::finish() {
  require(written_ == expected_, "{}: data: expected {} bytes, got {}", path_.string(), expected_, written_);
  out_.close();
  fail_if_bad();
  std::error_code error;
  std::filesystem::rename(temporary_, path_, error);
  if (error) fail(ErrorCode::invalid_file, "{}: cannot be put in place: {}", path_.string(), error.message());
  finished_ = true;
}

void SafetensorsWriter::fail_if_bad() const {
  if (!out_) fail(ErrorCode::invalid_file, "{}: cannot be written (missing directory, permission or full disk)", temporary_.string());
}

}  // namespace strata
