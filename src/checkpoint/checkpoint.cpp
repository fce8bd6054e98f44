#include "strata/checkpoint.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "checkpoint/file_names.h"
#include "checkpoint/json.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/shard_file.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/tensor_names.h"
#include "core/check.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxIndexBytes = 100'000'000;

}  // namespace

struct Checkpoint::Impl {
  struct Location {
    const ShardFile* shard;      // null: memory of the caller's
    const StoredTensor* tensor;  // null: in `shard`, which was not opened for it yet
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
  };

  fs::path directory;
  ModelConfig config;
  std::vector<std::unique_ptr<ShardFile>> shards;
  std::vector<StoredTensor> given;  // without files
  std::unordered_map<std::string, Location, Hash, std::equal_to<>> tensors;
  std::map<int64_t, std::vector<std::string>> layers;  // the names of each layer's attention tensors

  void sort_layers() {
    for (const auto& [name, location] : tensors) {
      if (const auto layer = attention_layer_of(config, name)) layers[*layer].push_back(name);
    }
    for (auto& [layer, names] : layers) std::sort(names.begin(), names.end());
  }

  bool is_attention(std::string_view name) const { return attention_layer_of(config, name).has_value(); }

  void open_single(const fs::path& path) {
    const ShardFile& shard = *shards.emplace_back(std::make_unique<ShardFile>(path));
    for (const StoredTensor& tensor : shard.file().tensors()) tensors.emplace(tensor.name, Location{&shard, &tensor});
  }

  // Files that have attention are opened and checked where they are there; what is missing, and every other file, matters when one of its
  // tensors is read.
  void open_sharded(const ShardIndex& index) {
    std::map<std::string_view, const ShardFile*> by_name;
    for (const auto& [name, file] : index) {
      const ShardFile*& shard = by_name[file];
      if (shard == nullptr) shard = shards.emplace_back(std::make_unique<ShardFile>(directory / file)).get();
      const bool check = is_attention(name) && shard->exists();
      tensors.emplace(name, Location{shard, check ? &shard->require(name) : nullptr});
    }
    for (const auto& [file, shard] : by_name) {
      if (shard->opened()) check_index(index, std::string(file), shard->file());
    }
  }

  // Every attention tensor of a shard is in the index, and there by this shard's name.
  void check_index(const ShardIndex& index, const std::string& file, const SafetensorsFile& shard) const {
    for (const StoredTensor& tensor : shard.tensors()) {
      const auto entry = index.find(tensor.name);
      if (!is_attention(tensor.name) || (entry != index.end() && entry->second == file)) continue;
      fail(ErrorCode::invalid_file, "{}: {}: tensor {}: expected in shard {}, where it is, {}", directory.string(), kIndexFile,
           brief(nlohmann::json(tensor.name)), brief(nlohmann::json(file)),
           entry == index.end() ? "is missing" : fmt::format("is in {}", brief(nlohmann::json(entry->second))));
    }
  }

  // Of a directory with both, model.safetensors is read. The index must then say nothing else: every tensor it names is in that file,
  // every attention tensor of the file is named, and no shard holds a second copy, whose values could be others.
  void check_agreement(const ShardIndex& index) const {
    const auto disagree = [&](std::string_view what) {
      fail(ErrorCode::invalid_file, "{}: {} and {}: expected to agree, {}; remove the one that is out of date", directory.string(),
           kSingleFile, kIndexFile, what);
    };
    std::set<std::string_view> files;
    for (const auto& [name, file] : index) {
      if (!tensors.contains(name)) disagree(fmt::format("tensor {} is only in the index", brief(nlohmann::json(name))));
      files.insert(file);
    }
    for (const std::string_view file : files) {
      if (file == kSingleFile) continue;
      if (ShardFile(directory / file).exists()) disagree(fmt::format("the index's shard {} is there too", brief(nlohmann::json(file))));
    }
    for (const auto& [name, location] : tensors) {
      if (is_attention(name) && !index.contains(name)) {
        disagree(fmt::format("tensor {} is not in the index", brief(nlohmann::json(name))));
      }
    }
  }
};

namespace {

// What is in a directory without either file, to say what is wrong with it.
std::string other_weights(const fs::path& directory) {
  std::set<std::string> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".safetensors" || extension == ".bin" || extension == ".pt" || extension == ".pth" || extension == ".gguf") {
      found.insert(entry.path().filename().string());
    }
  }
  if (found.empty()) return "neither";
  const std::string first = *found.begin();
  const std::string others = found.size() == 1 ? "" : fmt::format(" and {} more", found.size() - 1);
  return fmt::format("only {}{}: {}", brief(nlohmann::json(first)), others,
                     first.ends_with(".safetensors") ? "an index is missing" : "convert to safetensors");
}

}  // namespace

Checkpoint::Checkpoint(const fs::path& directory, const ConfigOptions& options) : impl_(std::make_unique<Impl>()) {
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) {
    fail(ErrorCode::invalid_file, "{}: expected a directory with config.json and {} or {}, is {}", directory.string(), kSingleFile,
         kIndexFile, fs::exists(directory, ignored) ? "a file" : "missing");
  }
  impl_->directory = directory;
  impl_->config = ModelConfig::load(directory, options);
  const bool single = is_there(directory / kSingleFile);
  const fs::path index_path = directory / kIndexFile;
  std::optional<ShardIndex> index;
  if (is_there(index_path)) index = parse_shard_index(read_text_file(index_path.string(), kMaxIndexBytes), index_path.string());
  if (single) {
    impl_->open_single(directory / kSingleFile);
    if (index) impl_->check_agreement(*index);
  } else if (index) {
    impl_->open_sharded(*index);
  } else {
    fail(ErrorCode::invalid_file, "{}: expected {} or {}, has {}", directory.string(), kSingleFile, kIndexFile, other_weights(directory));
  }
  impl_->sort_layers();
}

Checkpoint::Checkpoint(const ModelConfig& config, std::vector<StoredTensor> tensors) : impl_(std::make_unique<Impl>()) {
  impl_->directory = "memory";
  config.validate();
  check_tensors(tensors, impl_->directory.string());
  impl_->config = config;
  impl_->given = std::move(tensors);
  for (const StoredTensor& tensor : impl_->given) {
    strata::require(tensor.data != nullptr || tensor.bytes == 0, "memory: tensor {}: data: expected memory for {} bytes, is null",
                    tensor.name, tensor.bytes);
    impl_->tensors.emplace(tensor.name, Impl::Location{nullptr, &tensor});
  }
  impl_->sort_layers();
}

Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

const ModelConfig& Checkpoint::config() const { return impl_->config; }
const fs::path& Checkpoint::directory() const { return impl_->directory; }

std::vector<int64_t> Checkpoint::attention_layers() const {
  std::vector<int64_t> layers;
  for (const auto& [layer, names] : impl_->layers) layers.push_back(layer);
  return layers;
}

std::span<const std::string> Checkpoint::attention_names(int64_t layer) const {
  const auto found = impl_->layers.find(layer);
  if (found == impl_->layers.end()) return {};
  return found->second;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, location] : impl_->tensors) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

const StoredTensor* Checkpoint::find(std::string_view name) const {
  const auto it = impl_->tensors.find(name);
  if (it == impl_->tensors.end()) return nullptr;
  const auto& [shard, tensor] = it->second;
  return tensor != nullptr ? tensor : &shard->require(name);
}

void Checkpoint::release(const StoredTensor& tensor) const {
  const auto it = impl_->tensors.find(tensor.name);
  if (it != impl_->tensors.end() && it->second.shard != nullptr) it->second.shard->file().release(tensor);
}

const StoredTensor* Checkpoint::find(int64_t layer, std::string_view suffix) const {
  const StoredTensor* found = nullptr;
  for (const std::string& name : tensor_spellings(impl_->config, layer, suffix)) {
    if (!impl_->tensors.contains(name)) continue;
    if (found != nullptr) {
      fail(ErrorCode::invalid_file, "{}: tensor {}: expected under one name, {} is there too", impl_->directory.string(), found->name,
           name);
    }
    found = find(name);
  }
  return found;
}

const StoredTensor& Checkpoint::require(int64_t layer, std::string_view suffix) const {
  if (const StoredTensor* tensor = find(layer, suffix)) return *tensor;
  const std::vector<std::string> tried = tensor_spellings(impl_->config, layer, suffix);
  fail(ErrorCode::invalid_file, "{}: tensor {}: expected in the checkpoint, is missing; tried {}", impl_->directory.string(), tried.front(),
       fmt::join(tried, ", "));
}

}  // namespace strata
