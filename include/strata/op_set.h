// Every op of the library with its implementations. A plain value: layers hold a copy, and callers may change theirs.
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

// The ops, in the order in which for_each_op visits them. weight_packings belong to linear and grouped_linear.
struct OpSet {
  Op<LinearParams> linear;                                   // y = x W^T
  Op<GroupedLinearParams> grouped_linear;                    // y = x W^T per group of heads
  std::vector<WeightPacking> weight_packings;                // packed layouts of weights
  Op<RmsNormPairParams> rms_norm_pair;                       // RMSNorm of query latent and key-value latent
  Op<QNormRopeKvInsertParams> qnorm_rope_kv_insert;          // V4: norm and rotation of queries, rotation and insertion of keys
  Op<QuantizeAndInsertKParams> quantize_and_insert_k;        // rotated bf16 rows into a cache
  Op<DequantizeAndGatherKParams> dequantize_and_gather_k;    // rows of a cache as bf16
  Op<SavePartialStatesParams> save_partial_states;           // the compressor's inputs into its state
  Op<CompressNormRopeStoreParams> compress_norm_rope_store;  // pooled, normalised and rotated entries into a cache
  Op<IndexerQueryParams> indexer_query;                      // quantised indexer queries and folded head weights
  Op<IndexerLogitsParams> indexer_logits;                    // logits of every candidate
  Op<TopkSelectParams> topk_select;                          // the k largest logits of each row
  Op<IndexerTopkParams> indexer_topk;                        // indexer_logits and topk_select in one op
  Op<ScatterBlockTablesParams> scatter_block_tables;         // segments of block-table rows
  Op<SlotMappingParams> slot_mapping;                        // the slot of every token
  Op<SwaIndicesParams> swa_indices;                          // slots of the sliding window
  Op<CompressedIndicesParams> compressed_indices;            // complete compressed entries of every token
  Op<ComputeGlobalTopkParams> compute_global_topk;           // entry numbers to slots
  Op<CombineTopkSwaParams> combine_topk_swa;                 // rows of the gathered workspace
  Op<SparseAttnDecodeParams> sparse_attn_decode;             // attention to selected rows of paged caches
  Op<SparseAttnPrefillParams> sparse_attn_prefill;           // attention to selected gathered rows
  Op<MergeAttnStatesParams> merge_attn_states;               // one softmax from partial results
  Op<InverseRopeParams> inverse_rope;                        // attention output rotated back
  Op<InverseRopeQuantParams> inverse_rope_quant;             // inverse_rope, then quantisation to FP8
  Op<MlaRopeKvInsertParams> mla_rope_kv_insert;              // MLA: rotation, and the latent rows into a cache
  Op<IndexerKeyInsertParams> indexer_key_insert;             // keys of V3.2's indexer into a cache
  Op<DenseAttnDecodeParams> dense_attn_decode;               // attention to every row of a paged latent cache
  Op<DenseAttnPrefillParams> dense_attn_prefill;             // causal attention to keys in memory
};

// All ops, with the implementations of every backend in this build.
[[nodiscard]] OpSet default_ops();

// Throws invalid_argument for a name in Config::force that is neither an op's nor one of its implementations': such a name would have no
// effect. Layers call this when they are made; users of single ops call it themselves.
void check_forced(const OpSet& ops, const Config& config);

// Calls f(op) for every op, in the order of OpSet's members.
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
