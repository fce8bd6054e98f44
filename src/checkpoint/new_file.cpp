#include "checkpoint/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.h"

namespace strata {
namespace {

// The permissions that a new file gets: those of the file that it replaces, or what the user's mask leaves.
mode_t permissions(const struct stat* replaced) {
  constexpr mode_t kAll = 07777;
  if (replaced != nullptr) return replaced->st_mode & kAll;
  const mode_t mask = umask(0);
  umask(mask);
  return 0666 & ~mask;
}

std::filesystem::path without_links(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_symlink(path, error)) return path;
  const std::filesystem::path target = std::filesystem::weakly_canonical(path, error);
  return error ? path : target;
}

}  // namespace

NewFile::NewFile(const std::filesystem::path& path) : path_(without_links(path)) {
  struct stat status {};
  const bool exists = stat(path_.c_str(), &status) == 0;
  if (exists && !S_ISREG(status.st_mode)) {
    file_ = open(path_.c_str(), O_WRONLY | O_CLOEXEC);
    if (file_ < 0) fail_call(path_.string(), "cannot be written");
    return;
  }
  temporary_ = path_.string() + ".partial-XXXXXX";
  file_ = mkostemp(temporary_.data(), O_CLOEXEC);
  if (file_ < 0) fail_call(std::exchange(temporary_, {}), "cannot be written");
  // A failure leaves mkostemp's mode, which lets nobody else in.
  static_cast<void>(fchmod(file_, permissions(exists ? &status : nullptr)));
}

NewFile::~NewFile() {
  if (file_ >= 0) ::close(file_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void NewFile::write(const void* data, size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::write(file_, at, bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_call(path_.string(), "cannot be written");
    at += count;
    bytes -= static_cast<size_t>(count);
  }
}

void NewFile::close() {
  // Some file systems report a full disk or quota only here.
  if (file_ >= 0 && ::close(std::exchange(file_, -1)) != 0) fail_call(path_.string(), "cannot be written");
}

void NewFile::commit() {
  close();
  if (temporary_.empty()) return;
  if (rename(temporary_.c_str(), path_.c_str()) != 0) fail_call(path_.string(), "cannot be put in place");
  temporary_.clear();
}

void NewFile::fail_call(const std::string& path, const char* what) const {
  fail(ErrorCode::invalid_file, "{}: {}: {}", path, what, std::strerror(errno));
}

}  // namespace strata
