// The selection of a few short rows (select_few_rows.cuh).
#pragma once

#include "backends/cuda/indexer/select_args.h"
#include "backends/cuda/runtime/cuda_device.h"

namespace strata::cuda::sm90 {

// Whether it does such rows: a block each, all at once.
bool few_rows_fit(const SelectArgs& a, int64_t num_tokens, int64_t columns, int num_sms);
void launch_select_few_rows(const SelectArgs& args, int64_t num_tokens, int64_t columns, const ExecutionContext& context);

}  // namespace strata::cuda::sm90
