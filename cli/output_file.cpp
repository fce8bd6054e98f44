#include "output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "strata/error.h"

namespace strata::cli {

OutputFile::OutputFile(std::string option, std::string path) : option_(std::move(option)), path_(std::move(path)) {
  constexpr mode_t kMode = 0666;  // less what the user's mask takes
  file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
  made_ = file_ >= 0;
  if (!made_ && errno == EEXIST) file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, kMode);
  if (file_ < 0) fail("cannot be opened for writing", errno);
}

OutputFile::~OutputFile() {
  close();
  if (made_) unlink(path_.c_str());
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : option_(std::move(other.option_)),
      path_(std::move(other.path_)),
      file_(std::exchange(other.file_, -1)),
      made_(std::exchange(other.made_, false)) {}

void OutputFile::fail(const char* what, int error) const {
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: '{}' {}: {}", option_, path_, what, std::strerror(error)));
}

void OutputFile::close() noexcept {
  if (file_ >= 0) ::close(std::exchange(file_, -1));
}

void OutputFile::write(std::string_view text) {
  struct stat status {};
  // Terminals, pipes and devices have no length.
  if (fstat(file_, &status) == 0 && S_ISREG(status.st_mode) && ftruncate(file_, 0) != 0) fail("cannot be written", errno);
  while (!text.empty()) {
    const ssize_t count = ::write(file_, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("cannot be written", errno);
    text.remove_prefix(static_cast<size_t>(count));
  }
  // Some file systems report a full disk or quota only here.
  if (::close(std::exchange(file_, -1)) != 0) fail("cannot be written", errno);
  made_ = false;
}

void OutputFile::keep() {
  close();
  made_ = false;
}

}  // namespace strata::cli
