// Reading and writing checkpoints in the official file format: safetensors, single file or sharded by an index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "strata/dtype.h"
#include "strata/model_config.h"
#include "strata/tensor.h"

namespace strata {

// A tensor of an open file: a read-only host view into the mapping, valid as long as the file object.
struct StoredTensor {
  std::string name;
  DType dtype = DType::u8;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  size_t bytes = 0;
  int64_t numel() const;
};

// One .safetensors file by mmap. Throws invalid_file for a header that is truncated, not JSON, larger than the file, with overlapping,
// decreasing or out-of-file offsets, with sizes that contradict shape and dtype, or with an unknown dtype.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  const std::vector<StoredTensor>& tensors() const;       // by name, ascending
  const StoredTensor* find(std::string_view name) const;  // null: not there
  // Tells the kernel that the pages of a tensor are not needed again, so that loading does not double the resident memory.
  void release(const StoredTensor& tensor) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Writes tensors (host memory) as one safetensors file: header padded to 8 bytes, data in the order given. The file is there when all of
// it is written, or as it was. Throws invalid_argument for names given twice, sizes that contradict shape and dtype, null data;
// invalid_file when it cannot be written.
void write_safetensors(const std::filesystem::path& path, const std::vector<StoredTensor>& tensors);

// A directory with config.json and model.safetensors, or model.safetensors.index.json and its shards; or what a loader of the caller's
// has brought to memory. Layers copy what they need: it may go when they are made. Several threads may read one at once.
class Checkpoint {
 public:
  // Throws invalid_file for files that are missing or cannot be what they claim to be.
  explicit Checkpoint(const std::filesystem::path& directory, const ConfigOptions& options = {});
  // Tensors in host memory by their official names, those of the layers that are wanted. Their data is not copied: it stays where it is
  // until the layers are made. Throws invalid_file for a config that cannot be; invalid_argument for names given twice, bytes that
  // contradict shape and dtype, null data.
  Checkpoint(const ModelConfig& config, std::vector<StoredTensor> tensors);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  const ModelConfig& config() const;
  const std::filesystem::path& directory() const;  // "memory" without one
  // Layer numbers that have attention tensors, ascending; MTP layer j is num_hidden_layers + j.
  std::vector<int64_t> attention_layers() const;
  // Every tensor's name.
  std::vector<std::string> names() const;
  const StoredTensor* find(std::string_view name) const;
  void release(const StoredTensor& tensor) const;

  // A tensor of layer i by its official suffix ("wq_a.weight", "indexer.wq_b.scale"), trying every tolerated spelling (V4 4.1).
  // nullptr when absent.
  const StoredTensor* find(int64_t layer, std::string_view suffix) const;
  // The same, but throws invalid_file "missing tensor ..., tried ..." .
  const StoredTensor& require(int64_t layer, std::string_view suffix) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct SynthesizeOptions {
  int64_t num_layers = 0;  // 0: all of the config, MTP layers included; N: its first N layers
  bool fp8 = true;         // FP8 weights with ue8m0 block scales where the official checkpoint has them; false: bf16
  uint64_t seed = 1;
};
// A checkpoint in the official format with random weights, scaled so that activations keep their size through a layer.
// `progress` (may be null) is called with bytes written and bytes in all. Throws invalid_argument for a number of layers that the config
// does not have, invalid_file for a config that cannot be and when files cannot be written.
void synthesize_checkpoint(const ModelConfig& config, const SynthesizeOptions& options, const std::filesystem::path& directory,
                           const std::function<void(size_t, size_t)>& progress = nullptr);

}  // namespace strata
