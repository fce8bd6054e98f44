// The plot of `strata plan`: cache bytes by group and length of context.
#pragma once

#include <string>

#include "cache_plan.h"

namespace strata::cli {

struct CachePlot {
  std::string model;    // "v4-pro"
  std::string machine;  // whose caches: the device, and the rank's share
  BatchLimits limits;   // of the plan; the plot has lengths of its own
  int64_t bf16_bytes_of_position = 0;
  int64_t max_positions = 0;  // of the model
};

// The text of the SVG file: contexts of 8k to 1M positions, or to what the model has.
std::string plot_caches(const CachePlan& plan, const CachePlot& plot);

}  // namespace strata::cli
