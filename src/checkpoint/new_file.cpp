#include "checkpoint/new_file.h"

#include "core/check.h"

namespace strata {

NewFile::NewFile(const std::filesystem::path& path) : path_(path), temporary_(path.string() + ".partial") {
  out_.open(temporary_, std::ios::binary | std::ios::trunc);
  fail_if_bad();
}

NewFile::~NewFile() {
  if (committed_) return;
  out_.close();
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
}

void NewFile::write(const void* data, size_t bytes) {
  out_.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  fail_if_bad();
}

void NewFile::close() {
  if (closed_) return;
  out_.close();
  fail_if_bad();
  closed_ = true;
}

void NewFile::commit() {
  close();
  std::error_code error;
  std::filesystem::rename(temporary_, path_, error);
  if (error) fail(ErrorCode::invalid_file, "{}: cannot be put in place: {}", path_.string(), error.message());
  committed_ = true;
}

void NewFile::fail_if_bad() const {
  if (!out_) fail(ErrorCode::invalid_file, "{}: cannot be written (missing directory, permission or full disk)", temporary_.string());
}

}  // namespace strata
