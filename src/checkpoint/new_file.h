// A file that appears under its name when it is complete: until then what had the name stays, and a failure leaves nothing.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace strata {

class NewFile {
 public:
  // A link is followed: the file that it names is replaced. What is no regular file (a device, a pipe) is written to as it is.
  // Throws invalid_file when the file cannot be written, as every function does.
  explicit NewFile(const std::filesystem::path& path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const void* data, size_t bytes);
  // Everything is on its way to the disk: what can fail for lack of space has not.
  void close();
  // Closes the file and gives it its name, with the permissions of the file that it replaces.
  void commit();

 private:
  [[noreturn]] void fail_call(const std::string& path, const char* what) const;

  std::filesystem::path path_;
  std::string temporary_;  // of a name that nothing else has; empty where path_ is written to as it is
  int file_ = -1;
};

}  // namespace strata
