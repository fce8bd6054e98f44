// What benchmarks find in the caches of positions that were never computed.
#pragma once

#include "testkit/harness/random.h"
#include "strata/cache.h"
#include "strata/device.h"

namespace strata::testkit {

// Random records in every row of every cache of a layer; returns when they are there. Rows repeat after several thousand, page by page:
// quantising millions would take longer than what is measured.
void fill_caches(const LayerCaches& caches, Device& device, Rng& rng);

}  // namespace strata::testkit
