// The rule of PrefillMode::automatic: gather bf16 rows and attend to them, or attend to the paged caches.
#pragma once

#include "contracts/prefill_work.h"
#include "strata/device.h"

namespace strata::ops {

// By the measured rule of the device's backend. Without a rule V4's rows are gathered, and MLA's are not.
bool paged_prefill_is_faster(const PrefillWork& work, const Device& device);

}  // namespace strata::ops
