// Reads and writes checkpoints in the official file format: safetensors, a single file or shards with an index.
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

// A tensor of an open file: a read-only host view into the mapping, valid as long as the file object. Row-major.
struct StoredTensor {
  std::string name;                 // "layers.0.attn.wq_a.weight"
  StoredDType dtype = DType::u8;    // of every element
  std::vector<int64_t> shape;       // elements
  const std::byte* data = nullptr;  // first byte; any alignment
  size_t bytes = 0;                 // size of the data
  // Number of elements.
  int64_t numel() const;
};

// One memory-mapped .safetensors file, with tensors of any dtype that the format defines. Throws invalid_file for a header that is not
// JSON, overlapping or decreasing offsets, sizes that contradict shape and dtype, an unknown dtype and a truncated file. A file of another
// kind (a git-lfs pointer, a web page, a pickle) is refused by the name of its kind.
class SafetensorsFile {
 public:
  // Maps the file and checks its header.
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  const std::vector<StoredTensor>& tensors() const;       // ascending by name
  const StoredTensor* find(std::string_view name) const;  // null: no such tensor
  // Advises the kernel that the tensor's pages are not needed again, so that loading does not double the resident memory.
  void release(const StoredTensor& tensor) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Writes tensors in host memory as one safetensors file: the header padded to 8 bytes, then the data in the given order. The file is
// replaced only when all of it is written; on failure it is as before. Throws invalid_argument for duplicate names, sizes that contradict
// shape and dtype, and null data; invalid_file when the file cannot be written.
void write_safetensors(const std::filesystem::path& path, const std::vector<StoredTensor>& tensors);

// A directory with config.json and model.safetensors, or with model.safetensors.index.json and its shards; or tensors that the caller
// loaded into memory. Layers copy what they need, so the checkpoint may be destroyed once they are made. Several threads may read one
// checkpoint at once.
// Shards without attention tensors are not opened, and any shard may be missing: a partial download is a checkpoint of the layers that it
// has.
class Checkpoint {
 public:
  // Throws invalid_file for malformed files, for a shard that lacks an attention tensor which the index expects there, and for a
  // model.safetensors that disagrees with an index.
  explicit Checkpoint(const std::filesystem::path& directory, const ConfigOptions& options = {});
  // Tensors in host memory, by official names, of the layers that the caller wants. The data is not copied: it must stay valid until the
  // layers are made. Throws invalid_file for an invalid config; invalid_argument for duplicate names, sizes that contradict shape and
  // dtype, and null data.
  Checkpoint(const ModelConfig& config, std::vector<StoredTensor> tensors);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  // The model's config.
  const ModelConfig& config() const;
  const std::filesystem::path& directory() const;  // "memory" for tensors in memory
  // Numbers of the layers that have attention tensors, ascending. MTP layer j is num_hidden_layers + j.
  std::vector<int64_t> attention_layers() const;
  // Names of a layer's attention tensors, sorted. Valid as long as the checkpoint.
  std::span<const std::string> attention_names(int64_t layer) const;
  // Names of all tensors; for shards, those that the index lists.
  std::vector<std::string> names() const;
  // Null when absent. Like the functions below, throws invalid_file for a tensor of the index whose shard is missing or unreadable.
  const StoredTensor* find(std::string_view name) const;
  // As SafetensorsFile::release.
  void release(const StoredTensor& tensor) const;

  // A tensor of layer `layer` by its official suffix ("wq_a.weight", "indexer.wq_b.scale"). Every tolerated spelling is tried (V4 4.1).
  // Null when absent.
  const StoredTensor* find(int64_t layer, std::string_view suffix) const;
  // As find, but throws invalid_file "missing tensor ..., tried ..." when absent.
  const StoredTensor& require(int64_t layer, std::string_view suffix) const;

  // k_scale of the layer: the scale that the checkpoint was calibrated with for per-tensor FP8 caches (PagedCache::scale); 1 when absent.
  // v_scale is not read, because cached rows are both keys and values. Throws invalid_file unless k_scale is one positive number.
  float kv_scale(int64_t layer) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What synthesize_checkpoint writes.
struct SynthesizeOptions {
  int64_t num_layers = 0;  // number of first layers to write; 0: all of the config, MTP layers included
  bool fp8 = true;         // FP8 weights with ue8m0 block scales where the official checkpoint has them; false: bf16
  uint64_t seed = 1;       // of the random weights
  // Replaces config.json and model.safetensors in the directory; false: existing files are refused. A checkpoint of several files is always
  // refused.
  bool overwrite = false;
};
// Writes a checkpoint in the official format with random weights, scaled so that activations keep their magnitude through a layer.
// `progress` (may be null) is called about every 16 MB with bytes written and bytes in all. An exception from `progress` stops the work and
// passes through. After any exception the directory's files are as before.
// Throws invalid_argument for a number of layers that the config does not have, and for a directory that has a checkpoint; invalid_file for
// an invalid config, and when files cannot be written.
void synthesize_checkpoint(const ModelConfig& config, const SynthesizeOptions& options, const std::filesystem::path& directory,
                           const std::function<void(size_t, size_t)>& progress = nullptr);

}  // namespace strata
