// Batch builders, and what the functions of batches and layers share.
#pragma once

#include <memory>

#include "c_api/cache.h"
#include "strata/batch.h"
#include "strata/c/batch.h"

namespace strata::c_api {

// What a handle of a batch builder names.
struct Builder {
  std::shared_ptr<Device> device;
  BatchBuilder builder;
  const Batch* batch = nullptr;  // of the last build; null: none yet, or it failed midway
  // The batch. Throws invalid_argument where there is none.
  const Batch& built() const;
};

BatchLimits to_limits(const strata_batch_limits* limits, const char* field);

}  // namespace strata::c_api
