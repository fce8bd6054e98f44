// Small checkpoints on disk, well-formed and not, and expecting a refusal that says what is wrong.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "strata/checkpoint.h"
#include "strata/error.h"

namespace strata::test {

// A directory of its own, removed at the end.
class TempDir {
 public:
  TempDir() {
    static std::atomic<int> counter{0};
    path_ = std::filesystem::path(::testing::TempDir()) / ("strata_" + std::to_string(getpid()) + "_" + std::to_string(counter++));
    std::filesystem::create_directories(path_);
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

// A safetensors file with this header text, whatever it says, followed by this many data bytes.
inline std::string safetensors_bytes(const std::string& header, size_t data_bytes) {
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  out += header;
  for (size_t i = 0; i < data_bytes; ++i) out += static_cast<char>(i);
  return out;
}

// Tensors with their data, to be written as a file.
class TensorList {
 public:
  template <class T>
  void add(const std::string& name, StoredDType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
    auto& bytes = data_.emplace_back(values.size() * sizeof(T));
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    tensors_.push_back({.name = name, .dtype = dtype, .shape = std::move(shape), .data = nullptr, .bytes = bytes.size()});
  }
  StoredDType dtype(const std::string& name) const {
    for (const StoredTensor& tensor : tensors_) {
      if (tensor.name == name) return tensor.dtype;
    }
    ADD_FAILURE() << name;
    return DType::u8;
  }
  void write(const std::filesystem::path& path) {
    for (size_t i = 0; i < tensors_.size(); ++i) tensors_[i].data = data_[i].data();
    write_safetensors(path, tensors_);
  }

 private:
  std::vector<std::vector<std::byte>> data_;
  std::vector<StoredTensor> tensors_;
};

// Calls f and returns the message of the strata::Error that it must throw with this code.
template <class F>
std::string message_of(ErrorCode code, F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(to_string(e.code()), std::string(to_string(code))) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error was thrown, expected " << to_string(code);
  return {};
}

inline void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_THAT(message, ::testing::HasSubstr(part));
}

}  // namespace strata::test
