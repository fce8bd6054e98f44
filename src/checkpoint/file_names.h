// The files of a checkpoint's directory.
#pragma once

namespace strata {

inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kSingleFile = "model.safetensors";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";

}  // namespace strata
