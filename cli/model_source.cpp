#include "model_source.h"

#include <fmt/format.h>

#include <filesystem>

#include "common.h"
#include "strata/error.h"

namespace strata::cli {
namespace {

bool has_tensors(const std::filesystem::path& model) {
  std::error_code ignored;
  return std::filesystem::exists(model / "model.safetensors", ignored) ||
         std::filesystem::exists(model / "model.safetensors.index.json", ignored);
}

runner::PlannedModel open_unchecked(const ModelSource& source, const std::shared_ptr<Device>& device) {
  if (!source.preset.empty()) return {find_preset(source.preset), device};
  if (has_tensors(source.path)) return {Checkpoint(source.path, source.config), device};
  return {ModelConfig::load(source.path, source.config), device};
}

}  // namespace

runner::PlannedModel open_model(const ModelSource& source, const std::shared_ptr<Device>& device) {
  runner::PlannedModel model = open_unchecked(source, device);
  if (model.layers().empty()) throw Error(ErrorCode::invalid_file, fmt::format("{}: no attention layer in it", source.path));
  check_accept_keys(model.config(), source.config);
  return model;
}

std::string model_name(const ModelSource& source) {
  if (!source.preset.empty()) return source.preset;
  std::filesystem::path path = std::filesystem::absolute(source.path).lexically_normal();
  if (!path.has_filename() || path.filename() == "config.json") path = path.parent_path();
  return path.filename().string();
}

}  // namespace strata::cli
