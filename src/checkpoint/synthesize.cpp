#include <algorithm>
#include <fstream>

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

void write_config(const ModelConfig& config, const fs::path& path) {
  const fs::path temporary = path.string() + ".partial";
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  out << config.to_json();
  out.close();
  std::error_code error;
  if (out) fs::rename(temporary, path, error);
  if (out && !error) return;
  fs::remove(temporary, error);
  fail(ErrorCode::invalid_file, "{}: cannot be written", path.string());
}

}  // namespace

void synthesize_checkpoint(const ModelConfig& model, const SynthesizeOptions& options, const fs::path& directory,
                           const std::function<void(size_t, size_t)>& progress) {
  model.validate();
  const ModelConfig config = adapt(model, options);
  const std::vector<PlannedTensor> plan = plan_tensors(config);
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) fail(ErrorCode::invalid_file, "{}: cannot be created: {}", directory.string(), error.message());

  std::vector<StoredTensor> layout;
  size_t total = 0;
  for (const PlannedTensor& tensor : plan) {
    layout.push_back(tensor.stored);
    total += tensor.stored.bytes;
  }
  // V4 scales are powers of two in one byte; MLA ones are floats, powers of two where the config says so.
  const bool power_of_two_scales = config.family == ModelFamily::deepseek_v4 || config.scale_ue8m0;
  SafetensorsWriter writer(directory / "model.safetensors", layout);
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
  write_config(config, directory / "config.json");
}

}  // namespace strata
