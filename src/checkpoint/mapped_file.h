// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <string>

namespace strata {

class MappedFile {
 public:
  // Throws invalid_file when it is not a regular file that can be read.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // Drops the pages of [begin, begin + bytes) from resident memory; reading them again reloads them.
  void release(const std::byte* begin, size_t bytes) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace strata
