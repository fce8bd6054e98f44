#include <algorithm>

#include "checkpoint/file_names.h"
#include "checkpoint/new_file.h"
#include "checkpoint/random_values.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/tensor_plan.h"
#include "core/check.h"
#include "strata/checkpoint.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

// What is in memory at a time.
constexpr int64_t kBufferElements = int64_t{1} << 22;

// The config of the checkpoint that is written: fewer layers, other weights, the rest as it was.
ModelConfig adapt(ModelConfig config, const SynthesizeOptions& options) {
  require(options.num_layers >= 0 && options.num_layers <= config.num_hidden_layers,
          "synthesize: num_layers: expected 0 to num_hidden_layers = {}, is {}", config.num_hidden_layers, options.num_layers);
  if (options.num_layers > 0) {
    config.num_hidden_layers = options.num_layers;
    config.num_nextn_predict_layers = 0;
    if (config.family == ModelFamily::deepseek_v4) config.compress_ratios.resize(static_cast<size_t>(options.num_layers));
  }
  if (!options.fp8) {
    config.fp8_weights = false;
    config.scale_ue8m0 = false;
    config.weight_block_size = ModelConfig{}.weight_block_size;
  } else if (!config.fp8_weights) {
    config.fp8_weights = true;
    config.scale_ue8m0 = config.family == ModelFamily::deepseek_v4;
  }
  config.validate();
  return config;
}

// Refuses a directory that has a checkpoint, or any of its files: they may be somebody's only copy.
void check_vacant(const fs::path& directory, bool overwrite) {
  std::error_code ignored;
  const auto refuse = [&](const std::string& file, std::string_view how) {
    fail(ErrorCode::invalid_argument, "{}: expected no checkpoint, has {}{}", directory.string(), file, how);
  };
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool replaceable = name == kConfigFile || name == kSingleFile;
    if (replaceable && !entry.is_regular_file(ignored)) refuse(name, ", which is no regular file");
    if (replaceable && overwrite) continue;
    // What is written would contradict an index, and a model of many files took long to download.
    if (replaceable) refuse(name, ": set overwrite to replace it, or choose another directory");
    if (name == kIndexFile || (name.starts_with("model-") && name.ends_with(".safetensors"))) {
      refuse(name, ", which is never replaced: choose another directory");
    }
  }
}

// A directory, and those above it, that did not exist: gone again unless they are kept.
class NewDirectory {
 public:
  explicit NewDirectory(const fs::path& path) {
    std::error_code error;
    for (fs::path at = path; !at.empty() && !fs::exists(at, error); at = at.parent_path()) made_.push_back(at);
    fs::create_directories(path, error);
    if (error) fail(ErrorCode::invalid_file, "{}: cannot be created: {}", path.string(), error.message());
  }
  ~NewDirectory() {
    std::error_code ignored;
    for (const fs::path& path : made_) fs::remove(path, ignored);  // not where another process has put something there
  }
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;
  void keep() { made_.clear(); }

 private:
  std::vector<fs::path> made_;  // the innermost first
};

}  // namespace

void synthesize_checkpoint(const ModelConfig& model, const SynthesizeOptions& options, const fs::path& directory,
                           const std::function<void(size_t, size_t)>& progress) {
  model.validate();
  const ModelConfig config = adapt(model, options);
  check_vacant(directory, options.overwrite);
  const std::vector<PlannedTensor> plan = plan_tensors(config);
  std::vector<StoredTensor> layout;
  size_t total = 0;
  for (const PlannedTensor& tensor : plan) {
    layout.push_back(tensor.stored);
    total += tensor.stored.bytes;
  }
  NewDirectory made(directory);
  // Both files are complete before either has its name.
  NewFile config_file(directory / kConfigFile);
  const std::string json = config.to_json();
  config_file.write(json.data(), json.size());
  config_file.close();
  // V4 scales are powers of two in one byte; MLA ones are floats, powers of two where the config says so.
  const bool power_of_two_scales = config.family == ModelFamily::deepseek_v4 || config.scale_ue8m0;
  SafetensorsWriter writer(directory / kSingleFile, layout);
  std::vector<std::byte> buffer(static_cast<size_t>(kBufferElements) * sizeof(float));
  size_t written = 0;
  for (const PlannedTensor& tensor : plan) {
    const RandomTensor values(tensor, power_of_two_scales, options.seed);
    const int64_t numel = tensor.stored.numel();
    for (int64_t begin = 0; begin < numel; begin += kBufferElements) {
      const int64_t count = std::min(kBufferElements, numel - begin);
      const size_t bytes = static_cast<size_t>(count * tensor.stored.dtype.bits() / 8);
      values.generate(begin, count, buffer.data());
      writer.append(buffer.data(), bytes);
      written += bytes;
      if (progress) progress(written, total);
    }
  }
  writer.finish();
  config_file.commit();
  made.keep();
}

}  // namespace strata
