// The lightning indexer as config.json describes it: V4 specification 10, MLA specification 11 and 12.
#pragma once

#include "checkpoint/config_fields.h"
#include "strata/model_config.h"

namespace strata {

// Reads the index_* keys into `c`, whose family, names and numbers of layers are already set. Throws invalid_file for a model with only
// some of the keys, and for forms of the schedule that contradict each other.
void read_indexer(ModelConfig& c, const ConfigFields& f);

}  // namespace strata
