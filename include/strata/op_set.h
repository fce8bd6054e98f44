// Every op of the library with its implementations. A plain value: layers hold a copy, callers may change theirs.
#pragma once

#include "strata/op.h"
#include "strata/ops/compressor.h"
#include "strata/ops/dense_attention.h"
#include "strata/ops/indexer.h"
#include "strata/ops/indices.h"
#include "strata/ops/kv_insert.h"
#include "strata/ops/linear.h"
#include "strata/ops/mla.h"
#include "strata/ops/norm.h"
#include "strata/ops/rope.h"
#include "strata/ops/sparse_attention.h"

namespace strata {

struct OpSet {
  Op<LinearParams> linear;
  Op<GroupedLinearParams> grouped_linear;
  std::vector<WeightPacking> weight_packings;
  Op<RmsNormPairParams> rms_norm_pair;
  Op<QNormRopeKvInsertParams> qnorm_rope_kv_insert;
  Op<QuantizeAndInsertKParams> quantize_and_insert_k;
  Op<DequantizeAndGatherKParams> dequantize_and_gather_k;
  Op<SavePartialStatesParams> save_partial_states;
  Op<CompressNormRopeStoreParams> compress_norm_rope_store;
  Op<IndexerQueryParams> indexer_query;
  Op<IndexerLogitsParams> indexer_logits;
  Op<TopkSelectParams> topk_select;
  Op<IndexerTopkParams> indexer_topk;
  Op<ScatterBlockTablesParams> scatter_block_tables;
  Op<SlotMappingParams> slot_mapping;
  Op<SwaIndicesParams> swa_indices;
  Op<CompressedIndicesParams> compressed_indices;
  Op<ComputeGlobalTopkParams> compute_global_topk;
  Op<CombineTopkSwaParams> combine_topk_swa;
  Op<SparseAttnDecodeParams> sparse_attn_decode;
  Op<SparseAttnPrefillParams> sparse_attn_prefill;
  Op<MergeAttnStatesParams> merge_attn_states;
  Op<InverseRopeParams> inverse_rope;
  Op<InverseRopeQuantParams> inverse_rope_quant;
  Op<MlaRopeKvInsertParams> mla_rope_kv_insert;
  Op<IndexerKeyInsertParams> indexer_key_insert;
  Op<DenseAttnDecodeParams> dense_attn_decode;
  Op<DenseAttnPrefillParams> dense_attn_prefill;
};

// The ops with the implementations of every backend in this build.
[[nodiscard]] OpSet default_ops();

// Throws invalid_argument for a name in Config::force that is none of these ops', or none of its implementations': it would force nothing
// and say nothing. Layers do this when they are made; for ops on their own it is the caller's.
void check_forced(const OpSet& ops, const Config& config);

// Calls f(op) for every op, in the order above.
template <class Set, class F>
void for_each_op(Set& ops, F&& f) {
  f(ops.linear);
  f(ops.grouped_linear);
  f(ops.rms_norm_pair);
  f(ops.qnorm_rope_kv_insert);
  f(ops.quantize_and_insert_k);
  f(ops.dequantize_and_gather_k);
  f(ops.save_partial_states);
  f(ops.compress_norm_rope_store);
  f(ops.indexer_query);
  f(ops.indexer_logits);
  f(ops.topk_select);
  f(ops.indexer_topk);
  f(ops.scatter_block_tables);
  f(ops.slot_mapping);
  f(ops.swa_indices);
  f(ops.compressed_indices);
  f(ops.compute_global_topk);
  f(ops.combine_topk_swa);
  f(ops.sparse_attn_decode);
  f(ops.sparse_attn_prefill);
  f(ops.merge_attn_states);
  f(ops.inverse_rope);
  f(ops.inverse_rope_quant);
  f(ops.mla_rope_kv_insert);
  f(ops.indexer_key_insert);
  f(ops.dense_attn_decode);
  f(ops.dense_attn_prefill);
}

}  // namespace strata
