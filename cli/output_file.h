// Files that a command writes when its work is done.
#pragma once

#include <string>
#include <string_view>

namespace strata::cli {

// Opened when it is made, before the work, so that what cannot be written is refused at once. A file that was there keeps its content until
// write(); one that was not is removed again when neither write() nor keep() was called. Every error is strata::Error (invalid_argument)
// and names the option, the path and the system's reason.
class OutputFile {
 public:
  // option: as the user types it, "--plot".
  OutputFile(std::string option, std::string path);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  const std::string& path() const { return path_; }
  // Makes `text` the whole content of the file and closes it. Once.
  void write(std::string_view text);
  // The file was written by other means, as by a writer that renames a file of its own to path(). Nothing is removed.
  void keep();

 private:
  [[noreturn]] void fail(const char* what, int error) const;
  void close() noexcept;

  std::string option_, path_;
  int file_ = -1;
  bool made_ = false;  // there was none before, and it has no content yet
};

}  // namespace strata::cli
