// The lists of the index ops, fastest first.
#include "backends/cuda/indices/impls.h"

#include "backends/cuda/cuda_ops.h"

namespace strata::cuda {

std::vector<Implementation<CombineTopkSwaParams>> combine_topk_swa() { return {combine_topk_swa_smxx()}; }
std::vector<Implementation<CompressedIndicesParams>> compressed_indices() { return {compressed_indices_smxx()}; }
std::vector<Implementation<ComputeGlobalTopkParams>> compute_global_topk() { return {compute_global_topk_smxx()}; }
std::vector<Implementation<ScatterBlockTablesParams>> scatter_block_tables() { return {scatter_block_tables_smxx()}; }
std::vector<Implementation<SlotMappingParams>> slot_mapping() { return {slot_mapping_smxx()}; }
std::vector<Implementation<SwaIndicesParams>> swa_indices() { return {swa_indices_smxx()}; }

}  // namespace strata::cuda
