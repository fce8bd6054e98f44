// One file of a checkpoint, opened when one of its tensors is first read: most files of a model have experts and no attention.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string_view>

#include "strata/checkpoint.h"

namespace strata {

// Whether the file exists. Throws invalid_file for a dangling link, as an incomplete download leaves.
bool is_there(const std::filesystem::path& path);

class ShardFile {
 public:
  explicit ShardFile(std::filesystem::path path) : path_(std::move(path)) {}

  const std::filesystem::path& path() const { return path_; }
  bool exists() const;
  bool opened() const;  // by a call of file() or require() before
  // Throws invalid_file, at every call, if the file is missing or not a safetensors file.
  const SafetensorsFile& file() const;
  // The tensor, which the index assigns to this file. Throws invalid_file naming it if the file is missing or lacks the tensor.
  const StoredTensor& require(std::string_view name) const;

 private:
  std::filesystem::path path_;
  mutable std::once_flag opening_;  // several threads may load layers at once
  mutable std::unique_ptr<SafetensorsFile> file_;
};

}  // namespace strata
