// The OpenCL backend, for Intel GPUs and every device with shared virtual memory that takes SPIR-V, PTX or LLVM bitcode. Each function
// returns its op's implementations, fastest first. All are empty in a build without OpenCL (stubs.cpp).
#pragma once

#include <memory>
#include <vector>

#include "contracts/quantize_rows.h"
#include "strata/op_set.h"

namespace strata::opencl {

// Opens opencl:N. Throws unsupported, with the reason, if this build has no OpenCL backend or the machine has no such device.
std::shared_ptr<Device> make_device(DeviceId id, const Config& config);

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

}  // namespace strata::opencl
