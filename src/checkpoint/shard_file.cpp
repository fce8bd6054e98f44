#include "checkpoint/shard_file.h"

#include "checkpoint/json.h"
#include "core/check.h"

namespace strata {

bool ShardFile::exists() const {
  std::error_code ignored;
  return std::filesystem::exists(path_, ignored);
}

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
