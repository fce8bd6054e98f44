// A file that appears under its name only when it is complete. Until then an existing file stays, and a failure leaves nothing.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace strata {

class NewFile {
 public:
  // A link is followed: the file that it names is replaced. What is not a regular file (a device, a pipe) is written directly. All
  // functions throw invalid_file when the file cannot be written.
  explicit NewFile(const std::filesystem::path& path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const void* data, size_t bytes);
  // Closes the file. Errors for lack of space are reported here at the latest.
  void close();
  // Closes the file and gives it its name, with the permissions of the file that it replaces.
  void commit();

 private:
  [[noreturn]] void fail_call(const std::string& path, const char* what) const;

  std::filesystem::path path_;
  std::string temporary_;  // a unique name; empty if path_ is written directly
  int file_ = -1;
};

}  // namespace strata
