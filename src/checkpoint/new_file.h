// A file that appears under its name when it is complete: until then what had the name stays, and a failure leaves nothing.
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>

namespace strata {

class NewFile {
 public:
  // Throws invalid_file when it cannot be written, as every function does.
  explicit NewFile(const std::filesystem::path& path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const void* data, size_t bytes);
  // Everything is on its way to the disk: what can fail for lack of space has not.
  void close();
  // Closes it and gives it its name.
  void commit();

 private:
  void fail_if_bad() const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::ofstream out_;
  bool closed_ = false;
  bool committed_ = false;
};

}  // namespace strata
