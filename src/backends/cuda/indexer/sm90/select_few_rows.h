// The selection of a few short rows (select_few_rows.cuh).
#pragma once

#include "backends/cuda/indexer/select_args.h"
#include "backends/cuda/runtime/cuda_device.h"

namespace strata::cuda::sm90 {

// Whether the kernel takes such rows, one CTA each. whole_quads: they are 16-byte aligned and can be read in quads to their end.
bool few_rows_fit(bool whole_quads, int64_t columns);
void launch_select_few_rows(const SelectArgs& args, int64_t num_tokens, int64_t columns, const ExecutionContext& context);

}  // namespace strata::cuda::sm90
