// Where the tests' data is: recorded runs, configs.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace strata::test {

// The folder tests/ of the source tree. From the environment, so that no compile line has a path of one machine: ctest sets it.
inline std::filesystem::path data_folder() {
  const char* const folder = std::getenv("STRATA_TEST_DATA");
  if (folder == nullptr) throw std::runtime_error("STRATA_TEST_DATA: expected the path of the folder tests/, is not set; ctest sets it");
  return folder;
}

// A recorded model: the folder tests/golden/`model`.
inline std::filesystem::path golden_folder(const std::string& model) { return data_folder() / "golden" / model; }

}  // namespace strata::test
