// Replaces the backend in a build without CUDA: no implementations, and no devices.
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/peer.h"
#include "core/check.h"

namespace strata::cuda {

std::shared_ptr<Device> make_device(DeviceId id, const Config&) {
  fail(ErrorCode::unsupported, "device {}: this build has no CUDA backend", to_string(id));
}

std::shared_ptr<Collectives> make_peer_communicator(std::shared_ptr<Collectives>, std::shared_ptr<Device>, double) {
  fail(ErrorCode::unsupported, "a communicator over peer memory needs the CUDA backend, which this build does not have");
}

std::vector<Implementation<LinearParams>> linear() { return {}; }
std::vector<Implementation<GroupedLinearParams>> grouped_linear() { return {}; }
std::vector<Implementation<ops::QuantizeRowsParams>> quantize_rows() { return {}; }
std::vector<Implementation<RmsNormPairParams>> rms_norm_pair() { return {}; }
std::vector<Implementation<QNormRopeKvInsertParams>> qnorm_rope_kv_insert() { return {}; }
std::vector<Implementation<QuantizeAndInsertKParams>> quantize_and_insert_k() { return {}; }
std::vector<Implementation<DequantizeAndGatherKParams>> dequantize_and_gather_k() { return {}; }
std::vector<Implementation<SavePartialStatesParams>> save_partial_states() { return {}; }
std::vector<Implementation<CompressNormRopeStoreParams>> compress_norm_rope_store() { return {}; }
std::vector<Implementation<IndexerQueryParams>> indexer_query() { return {}; }
std::vector<Implementation<IndexerLogitsParams>> indexer_logits() { return {}; }
std::vector<Implementation<TopkSelectParams>> topk_select() { return {}; }
std::vector<Implementation<IndexerTopkParams>> indexer_topk() { return {}; }
std::vector<Implementation<ScatterBlockTablesParams>> scatter_block_tables() { return {}; }
std::vector<Implementation<SlotMappingParams>> slot_mapping() { return {}; }
std::vector<Implementation<SwaIndicesParams>> swa_indices() { return {}; }
std::vector<Implementation<CompressedIndicesParams>> compressed_indices() { return {}; }
std::vector<Implementation<ComputeGlobalTopkParams>> compute_global_topk() { return {}; }
std::vector<Implementation<CombineTopkSwaParams>> combine_topk_swa() { return {}; }
std::vector<Implementation<SparseAttnDecodeParams>> sparse_attn_decode() { return {}; }
std::vector<Implementation<SparseAttnPrefillParams>> sparse_attn_prefill() { return {}; }
std::vector<Implementation<MergeAttnStatesParams>> merge_attn_states() { return {}; }
std::vector<Implementation<InverseRopeParams>> inverse_rope() { return {}; }
std::vector<Implementation<InverseRopeQuantParams>> inverse_rope_quant() { return {}; }
std::vector<Implementation<MlaRopeKvInsertParams>> mla_rope_kv_insert() { return {}; }
std::vector<Implementation<IndexerKeyInsertParams>> indexer_key_insert() { return {}; }
std::vector<Implementation<DenseAttnDecodeParams>> dense_attn_decode() { return {}; }
std::vector<Implementation<DenseAttnPrefillParams>> dense_attn_prefill() { return {}; }
std::vector<WeightPacking> weight_packings() { return {}; }
std::vector<ops::SparseDecodePlanner> sparse_decode_planners() { return {}; }
std::vector<ops::DenseDecodePlanner> dense_decode_planners() { return {}; }

bool paged_prefill_is_faster(const PrefillWork&, const Device&) { return false; }

}  // namespace strata::cuda
