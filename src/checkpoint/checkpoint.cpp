#include "strata/checkpoint.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "checkpoint/json.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/tensor_names.h"
#include "core/check.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxIndexBytes = 100'000'000;
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

}  // namespace

struct Checkpoint::Impl {
  struct Location {
    const StoredTensor* tensor;
    const SafetensorsFile* file;  // null: memory of the caller's
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
  };

  fs::path directory;
  ModelConfig config;
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  std::vector<StoredTensor> given;  // without files
  std::unordered_map<std::string, Location, Hash, std::equal_to<>> tensors;

  void open_single(const fs::path& path) {
    files.push_back(std::make_unique<SafetensorsFile>(path));
    for (const StoredTensor& tensor : files.back()->tensors()) tensors.emplace(tensor.name, Location{&tensor, files.back().get()});
  }

  void open_sharded(const fs::path& index) {
    const auto shards = parse_shard_index(read_text_file(index.string(), kMaxIndexBytes), index.string());
    std::map<std::string, const SafetensorsFile*> opened;
    for (const auto& [name, shard] : shards) {
      const SafetensorsFile*& file = opened[shard];
      if (file == nullptr) {
        const fs::path path = directory / shard;
        std::error_code ignored;
        if (!fs::exists(path, ignored)) {
          fail(ErrorCode::invalid_file, "{}: shard {}: expected beside the index, is missing", index.string(),
               brief(nlohmann::json(shard)));
        }
        file = files.emplace_back(std::make_unique<SafetensorsFile>(path)).get();
      }
      const StoredTensor* tensor = file->find(name);
      if (tensor == nullptr) {
        fail(ErrorCode::invalid_file, "{}: tensor {}: expected in shard {}, is not there", index.string(), brief(nlohmann::json(name)),
             brief(nlohmann::json(shard)));
      }
      tensors.emplace(name, Location{tensor, file});
    }
  }
};

Checkpoint::Checkpoint(const fs::path& directory, const ConfigOptions& options) : impl_(std::make_unique<Impl>()) {
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) {
    fail(ErrorCode::invalid_file, "{}: expected a directory with config.json and {} or {}, is {}", directory.string(), kSingleFile,
         kIndexFile, fs::exists(directory, ignored) ? "a file" : "missing");
  }
  impl_->directory = directory;
  impl_->config = ModelConfig::load(directory, options);
  if (fs::exists(directory / kSingleFile, ignored)) {
    impl_->open_single(directory / kSingleFile);
  } else if (fs::exists(directory / kIndexFile, ignored)) {
    impl_->open_sharded(directory / kIndexFile);
  } else {
    fail(ErrorCode::invalid_file, "{}: expected {} or {}, has neither", directory.string(), kSingleFile, kIndexFile);
  }
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
    impl_->tensors.emplace(tensor.name, Impl::Location{&tensor, nullptr});
  }
}

Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

const ModelConfig& Checkpoint::config() const { return impl_->config; }
const fs::path& Checkpoint::directory() const { return impl_->directory; }

std::vector<int64_t> Checkpoint::attention_layers() const {
  std::set<int64_t> layers;
  for (const auto& [name, location] : impl_->tensors) {
    if (const auto layer = attention_layer_of(impl_->config, name)) layers.insert(*layer);
  }
  return {layers.begin(), layers.end()};
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, location] : impl_->tensors) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

const StoredTensor* Checkpoint::find(std::string_view name) const {
  const auto it = impl_->tensors.find(name);
  return it == impl_->tensors.end() ? nullptr : it->second.tensor;
}

void Checkpoint::release(const StoredTensor& tensor) const {
  const auto it = impl_->tensors.find(tensor.name);
  if (it != impl_->tensors.end() && it->second.file != nullptr) it->second.file->release(tensor);
}

const StoredTensor* Checkpoint::find(int64_t layer, std::string_view suffix) const {
  for (const std::string& name : tensor_spellings(impl_->config, layer, suffix)) {
    if (const StoredTensor* tensor = find(name)) return tensor;
  }
  return nullptr;
}

const StoredTensor& Checkpoint::require(int64_t layer, std::string_view suffix) const {
  if (const StoredTensor* tensor = find(layer, suffix)) return *tensor;
  const std::vector<std::string> tried = tensor_spellings(impl_->config, layer, suffix);
  fail(ErrorCode::invalid_file, "{}: tensor {}: expected in the checkpoint, is missing; tried {}", impl_->directory.string(), tried.front(),
       fmt::join(tried, ", "));
}

}  // namespace strata
