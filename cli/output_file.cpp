#include "output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "strata/error.h"

namespace strata::cli {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kMode = 0666;  // less what the user's mask takes

// The files that an index names; none where it cannot be read, which the command says itself.
std::vector<fs::path> shards_of(const fs::path& directory, const fs::path& index) {
  std::vector<fs::path> shards;
  std::ifstream file(index);
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("weight_map")) return shards;
  for (const auto& name : json["weight_map"]) {
    if (name.is_string()) shards.push_back(directory / name.get<std::string>());
  }
  return shards;
}

std::vector<fs::path> files_of(const fs::path& input) {
  std::error_code ignored;
  if (!fs::is_directory(input, ignored)) return {input};
  const fs::path index = input / "model.safetensors.index.json";
  std::vector<fs::path> files = shards_of(input, index);
  files.insert(files.end(), {input / "config.json", input / "model.safetensors", index});
  return files;
}

}  // namespace

void check_no_input(const std::string& option, const std::string& path, const std::vector<InputPath>& inputs) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return;
  for (const InputPath& input : inputs) {
    if (input.path.empty()) continue;
    for (const fs::path& file : files_of(input.path)) {
      if (!fs::equivalent(path, file, ignored)) continue;
      throw Error(ErrorCode::invalid_argument, fmt::format("{}: '{}' must be a file that the command does not read, is '{}' of {}", option,
                                                           path, file.string(), input.option));
    }
  }
}

OutputFile::OutputFile(std::string option, std::string path, const std::vector<InputPath>& inputs)
    : option_(std::move(option)), path_(std::move(path)) {
  check_no_input(option_, path_, inputs);
  std::error_code ignored;
  const bool link_to_nothing = fs::is_symlink(path_, ignored) && !fs::exists(path_, ignored);
  file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
  const bool made = file_ >= 0 || link_to_nothing;
  if (file_ < 0 && errno == EEXIST) file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, kMode);
  if (file_ < 0) fail("cannot be opened for writing", errno);
  if (!made) return;
  unlink(fs::canonical(path_, ignored).c_str());
  close();
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

void OutputFile::open_made() {
  file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, kMode);
  if (file_ < 0) fail("cannot be opened for writing", errno);
  made_ = true;
}

void OutputFile::write(std::string_view text) {
  if (file_ < 0) open_made();
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

}  // namespace strata::cli
