// Reading and writing checkpoints in the official file format: safetensors, single file or sharded by an index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/model_config.h"
#include "strata/stored_dtype.h"
#include "strata/tensor.h"

namespace strata {

// A tensor of an open file: a read-only host view into the mapping, valid as long as the file object.
struct StoredTensor {
  std::string name;
  StoredDType dtype = DType::u8;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  size_t bytes = 0;
  int64_t numel() const;
};

// One .safetensors file by mmap, with tensors of any dtype that the format defines. Throws invalid_file for a header that is not JSON, for
// overlapping or decreasing offsets, sizes that contradict shape and dtype, an unknown dtype, a truncated file, and for what is no such
// file at all (a git-lfs pointer, a web page, a pickle), by name.
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
//
// Shards without attention are not opened, and any shard may be missing: a partial download is a checkpoint of the layers that it has.
class Checkpoint {
 public:
  // Throws invalid_file for files that cannot be what they claim to be, for a shard that lacks an attention tensor which the index
  // expects there, and for model.safetensors and an index that disagree.
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
  // The names of a layer's attention tensors, sorted. Valid as long as the checkpoint is there.
  std::span<const std::string> attention_names(int64_t layer) const;
  // Every tensor's name; of shards, what the index says.
  std::vector<std::string> names() const;
  // nullptr when absent. Throws invalid_file for a tensor of the index whose shard is missing or cannot be read, here and below.
  const StoredTensor* find(std::string_view name) const;
  void release(const StoredTensor& tensor) const;

  // A tensor of layer i by its official suffix ("wq_a.weight", "indexer.wq_b.scale"), trying every tolerated spelling (V4 4.1).
  // nullptr when absent.
  const StoredTensor* find(int64_t layer, std::string_view suffix) const;
  // The same, but throws invalid_file "missing tensor ..., tried ..." .
  const StoredTensor& require(int64_t layer, std::string_view suffix) const;

  // The scale of the layer's per-tensor FP8 caches (PagedCache::scale) that the checkpoint was calibrated for, its k_scale; 1 without one.
  // v_scale is not read: the cached rows are keys and values at once. Throws invalid_file unless k_scale is one positive number.
  float kv_scale(int64_t layer) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct SynthesizeOptions {
  int64_t num_layers = 0;  // 0: all of the config, MTP layers included; N: its first N layers
  bool fp8 = true;         // FP8 weights with ue8m0 block scales where the official checkpoint has them; false: bf16
  uint64_t seed = 1;
  // Replaces config.json and model.safetensors where they are in the directory; false: they are refused. A checkpoint of several files is
  // refused in any case.
  bool overwrite = false;
};
// A checkpoint in the official format with random weights, scaled so that activations keep their size through a layer. `progress` (may be
// null) is called with bytes written and bytes in all, every 16 MB or so; what it throws stops the work and reaches the caller. Whatever is
// thrown, the directory's files are as they were. Throws invalid_argument for a number of layers that the config does not have and for a
// directory that has a checkpoint, invalid_file for a config that cannot be and when files cannot be written.
void synthesize_checkpoint(const ModelConfig& config, const SynthesizeOptions& options, const std::filesystem::path& directory,
                           const std::function<void(size_t, size_t)>& progress = nullptr);

}  // namespace strata
