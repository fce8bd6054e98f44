// The reference backend: readable scalar code, float64 accumulation, every op, always built. It is the executable specification: the oracle
// of every other implementation, and the last of every list. It runs on host memory.
#pragma once

#include <vector>

#include "core/check.h"
#include "contracts/quantize_rows.h"
#include "strata/op_set.h"

namespace strata::reference {

// An implementation named "reference" that takes every call on host memory and needs no workspace.
template <class Params>
std::vector<Implementation<Params>> always(void (*run)(const Params&)) {
  Implementation<Params> impl;
  impl.name = "reference";
  impl.supports = [](const Params&, const Device& device) {
    return device.id().kind == DeviceKind::cpu ? Support::yes() : Support::no("runs on host memory only");
  };
  impl.workspace_bytes = [](const Params&, const Device&) -> size_t { return 0; };
  impl.run = [run](const Params& params, const ExecutionContext&) { run(params); };
  return {std::move(impl)};
}

std::vector<Implementation<LinearParams>> linear();
std::vector<Implementation<GroupedLinearParams>> grouped_linear();
std::vector<Implementation<ops::QuantizeRowsParams>> quantize_rows();
std::vector<Implementation<RmsNormPairParams>> rms_norm_pair();
std::vector<Implementation<QNormRopeKvInsertParams>> qnorm_rope_kv_insert();
std::vector<Implementation<QuantizeAndInsertKParams>> quantize_and_insert_k();
std::vector<Implementation<DequantizeAndGatherKParams>> dequantize_and_gather_k();
std::vector<Implementation<SavePartialStatesParams>> save_partial_states();
std::vector<Implementation<CompressNormRopeStoreParams>> compress_norm_rope_store();
std::vector<Implementation<IndexerQueryParams>> indexer_query();
std::vector<Implementation<IndexerLogitsParams>> indexer_logits();
std::vector<Implementation<TopkSelectParams>> topk_select();
std::vector<Implementation<IndexerTopkParams>> indexer_topk();
std::vector<Implementation<ScatterBlockTablesParams>> scatter_block_tables();
std::vector<Implementation<SlotMappingParams>> slot_mapping();
std::vector<Implementation<SwaIndicesParams>> swa_indices();
std::vector<Implementation<CompressedIndicesParams>> compressed_indices();
std::vector<Implementation<ComputeGlobalTopkParams>> compute_global_topk();
std::vector<Implementation<CombineTopkSwaParams>> combine_topk_swa();
std::vector<Implementation<SparseAttnDecodeParams>> sparse_attn_decode();
std::vector<Implementation<SparseAttnPrefillParams>> sparse_attn_prefill();
std::vector<Implementation<MergeAttnStatesParams>> merge_attn_states();
std::vector<Implementation<InverseRopeParams>> inverse_rope();
std::vector<Implementation<InverseRopeQuantParams>> inverse_rope_quant();
std::vector<Implementation<MlaRopeKvInsertParams>> mla_rope_kv_insert();
std::vector<Implementation<IndexerKeyInsertParams>> indexer_key_insert();
std::vector<Implementation<DenseAttnDecodeParams>> dense_attn_decode();
std::vector<Implementation<DenseAttnPrefillParams>> dense_attn_prefill();

}  // namespace strata::reference
