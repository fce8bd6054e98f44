// The implementations of the index ops on CUDA.
#pragma once

#include "backends/cuda/runtime/implementation.h"
#include "strata/ops/indices.h"

namespace strata::cuda {

// "cuda/smxx".
Implementation<CombineTopkSwaParams> combine_topk_swa_smxx();
Implementation<CompressedIndicesParams> compressed_indices_smxx();
Implementation<ComputeGlobalTopkParams> compute_global_topk_smxx();
Implementation<ScatterBlockTablesParams> scatter_block_tables_smxx();
Implementation<SlotMappingParams> slot_mapping_smxx();
Implementation<SwaIndicesParams> swa_indices_smxx();

}  // namespace strata::cuda
