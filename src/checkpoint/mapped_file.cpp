#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/check.h"

namespace strata {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

[[noreturn]] void fail_call(const std::string& path, const char* call) {
  fail(ErrorCode::invalid_file, "{}: {}: {}", path, call, std::strerror(errno));
}

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  return S_ISSOCK(mode) ? "a socket" : "a device";
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  // O_NONBLOCK: a pipe is refused below, and not waited for here.
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) fail_call(path, "open");
  struct stat status {};
  if (fstat(file.fd, &status) != 0) fail_call(path, "fstat");
  if (!S_ISREG(status.st_mode)) fail(ErrorCode::invalid_file, "{}: expected a regular file, is {}", path, kind_of(status.st_mode));
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;
  void* data = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) fail_call(path, "mmap");
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::release(const std::byte* begin, size_t bytes) const {
  if (bytes == 0) return;
  // Whole pages, outward: a neighbour that shares a page only has to fault it in again.
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t address = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t first = address / page * page;
  const uintptr_t last = (address + bytes + page - 1) / page * page;
  madvise(const_cast<std::byte*>(begin) - (address - first), last - first, MADV_DONTNEED);  // advice: a failure changes nothing
}

}  // namespace strata
