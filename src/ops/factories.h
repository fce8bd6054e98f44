// One maker per op: its name, its check and its ordered list of implementations, in src/ops/<op>/.
#pragma once

#include <vector>

#include "contracts/dense_decode_schedule.h"
#include "contracts/sparse_decode_schedule.h"
#include "core/join.h"
#include "strata/op_set.h"

namespace strata::ops {

Op<LinearParams> make_linear();
Op<GroupedLinearParams> make_grouped_linear();
std::vector<WeightPacking> make_weight_packings();
Op<RmsNormPairParams> make_rms_norm_pair();
Op<QNormRopeKvInsertParams> make_qnorm_rope_kv_insert();
Op<QuantizeAndInsertKParams> make_quantize_and_insert_k();
Op<DequantizeAndGatherKParams> make_dequantize_and_gather_k();
Op<SavePartialStatesParams> make_save_partial_states();
Op<CompressNormRopeStoreParams> make_compress_norm_rope_store();
Op<IndexerQueryParams> make_indexer_query();
Op<IndexerLogitsParams> make_indexer_logits();
Op<TopkSelectParams> make_topk_select();
Op<IndexerTopkParams> make_indexer_topk();
Op<ScatterBlockTablesParams> make_scatter_block_tables();
Op<SlotMappingParams> make_slot_mapping();
Op<SwaIndicesParams> make_swa_indices();
Op<CompressedIndicesParams> make_compressed_indices();
Op<ComputeGlobalTopkParams> make_compute_global_topk();
Op<CombineTopkSwaParams> make_combine_topk_swa();
Op<SparseAttnDecodeParams> make_sparse_attn_decode();
Op<SparseAttnPrefillParams> make_sparse_attn_prefill();
Op<MergeAttnStatesParams> make_merge_attn_states();
Op<InverseRopeParams> make_inverse_rope();
Op<InverseRopeQuantParams> make_inverse_rope_quant();
Op<MlaRopeKvInsertParams> make_mla_rope_kv_insert();
Op<IndexerKeyInsertParams> make_indexer_key_insert();
Op<DenseAttnDecodeParams> make_dense_attn_decode();
Op<DenseAttnPrefillParams> make_dense_attn_prefill();

// The planners of all backends.
std::vector<SparseDecodePlanner> make_sparse_decode_planners();
std::vector<DenseDecodePlanner> make_dense_decode_planners();

}  // namespace strata::ops
