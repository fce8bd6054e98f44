// Files that a command writes when its work is done.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace strata::cli {

// What a command reads, with the option that names it: a file, or the directory of a checkpoint, whose config.json, index and weights
// count. An empty path is no input.
struct InputPath {
  std::string option, path;
};
// Throws strata::Error (invalid_argument) when `path` is one of these files, by this name or by another.
void check_no_input(const std::string& option, const std::string& path, const std::vector<InputPath>& inputs);

// Opened when it is made, before the work, so that what cannot be written is refused at once. A file that was there keeps its content until
// write(); one that was not is there only from write() on, so that an interrupt leaves none. Every error is strata::Error
// (invalid_argument) and names the option, the path and the system's reason.
class OutputFile {
 public:
  // option: as the user types it, "--plot". inputs: what the command reads, which it must not replace.
  OutputFile(std::string option, std::string path, const std::vector<InputPath>& inputs = {});
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  const std::string& path() const { return path_; }
  // Makes `text` the whole content of the file and closes it. Once.
  void write(std::string_view text);

 private:
  [[noreturn]] void fail(const char* what, int error) const;
  void open_made();
  void close() noexcept;

  std::string option_, path_;
  int file_ = -1;
  bool made_ = false;  // by this object, and without its content yet
};

}  // namespace strata::cli
