// Writes a safetensors file incrementally. The file appears under its name only when it is complete.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/new_file.h"
#include "strata/checkpoint.h"

namespace strata {

class SafetensorsWriter {
 public:
  // Names, dtypes and shapes of `tensors` in file order; their data is ignored. Throws invalid_argument for an invalid list, and
  // invalid_file when the file cannot be written.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<StoredTensor>& tensors);

  // The next bytes of the data section.
  void append(const void* data, size_t bytes);
  // Throws invalid_argument unless everything was appended.
  void finish();

 private:
  std::string name_;
  std::string header_;  // made before the file, so that an invalid list leaves no file
  NewFile file_;
  size_t expected_ = 0;
  size_t written_ = 0;
};

}  // namespace strata
