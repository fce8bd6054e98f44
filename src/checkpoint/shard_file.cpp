#include "checkpoint/shard_file.h"

#include "checkpoint/json.h"
#include "core/check.h"

namespace strata {

bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) return true;
  if (!std::filesystem::is_symlink(path, error)) return false;
  fail(ErrorCode::invalid_file, "{}: expected a file, is a link to {}, which does not exist or is a link to itself", path.string(),
       std::filesystem::read_symlink(path, error).string());
}

bool ShardFile::exists() const { return is_there(path_); }
bool ShardFile::opened() const { return file_ != nullptr; }

const SafetensorsFile& ShardFile::file() const {
  std::call_once(opening_, [&] { file_ = std::make_unique<SafetensorsFile>(path_); });
  return *file_;
}

const StoredTensor& ShardFile::require(std::string_view name) const {
  const auto text = [](std::string_view s) { return brief(nlohmann::json(s)); };
  const std::string directory = path_.parent_path().string();
  const std::string shard = path_.filename().string();
  if (!exists()) {
    fail(ErrorCode::invalid_file, "{}: tensor {}: expected in shard {}, as the index says, which is missing: download it", directory,
         text(name), text(shard));
  }
  const StoredTensor* tensor = file().find(name);
  if (tensor == nullptr) {
    fail(ErrorCode::invalid_file, "{}: tensor {}: expected in shard {}, as the index says, is not there", directory, text(name),
         text(shard));
  }
  return *tensor;
}

}  // namespace strata
