// The model of `info` and `plan`: a checkpoint or a config, whose weights are not loaded, or a preset.
#pragma once

#include <memory>
#include <string>

#include "runner/model_plan.h"
#include "strata/model_config.h"

namespace strata::cli {

struct ModelSource {
  std::string path;    // checkpoint directory or config.json; empty: the preset
  std::string preset;  // empty: the path
  ConfigOptions config;

  bool given() const { return !path.empty() || !preset.empty(); }
};

// The layers of a checkpoint's tensors; without tensors those of the config. Throws strata::Error where there is none.
runner::PlannedModel open_model(const ModelSource& source, const std::shared_ptr<Device>& device);
// The model's name as the user knows it: the last name of a path that is not config.json.
std::string model_name(const ModelSource& source);

}  // namespace strata::cli
