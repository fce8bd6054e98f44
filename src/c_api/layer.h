// What a handle of a layer names.
#pragma once

#include <memory>
#include <string>

#include "c_api/objects.h"
#include "strata/c/layer.h"

namespace strata::c_api {

struct Layer {
  std::shared_ptr<Device> device;
  std::unique_ptr<AttentionLayer> layer;
  std::string kind;  // of strata_layer_info
};

}  // namespace strata::c_api
