// The selection of few rows with long bounds (select_by_length.cuh).
#pragma once

#include "backends/cuda/indexer/select_args.h"
#include "backends/cuda/runtime/cuda_device.h"

namespace strata::cuda::sm90 {

// Whether the kernel takes such rows: registers hold them, or their maxima were noted. whole_quads: as in select_few_rows.h.
bool by_length_suits(bool whole_quads, bool maxima, int64_t num_tokens, int64_t columns, int num_sms);
void launch_select_by_length(const SelectArgs& args, int64_t num_tokens, int64_t columns, const ExecutionContext& context);

}  // namespace strata::cuda::sm90
