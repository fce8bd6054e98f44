// All cases of all ops.
#pragma once

#include "testkit/harness/case.h"
#include "testkit/harness/draw.h"

namespace strata::testkit {

// Tests and benchmarks of every op. Callers append their own, for instance lambda cases.
CaseList all_cases();

// Case `number` of `seed` of every op, in the order of all_cases().
CaseList random_cases(uint64_t seed, int64_t number);
// Only entry number `place`.
std::unique_ptr<AnyCase> random_case(uint64_t seed, int64_t number, size_t place);

// Of every op, in a file of this folder: its list, and a case whose shape is drawn from what its contract allows.
void add_linear(CaseList& list);
void add_random_linear(CaseList& list, Draw& draw);
void add_grouped_linear(CaseList& list);
void add_random_grouped_linear(CaseList& list, Draw& draw);
void add_rms_norm_pair(CaseList& list);
void add_random_rms_norm_pair(CaseList& list, Draw& draw);
void add_qnorm_rope_kv_insert(CaseList& list);
void add_random_qnorm_rope_kv_insert(CaseList& list, Draw& draw);
void add_quantize_and_insert_k(CaseList& list);
void add_random_quantize_and_insert_k(CaseList& list, Draw& draw);
void add_dequantize_and_gather_k(CaseList& list);
void add_random_dequantize_and_gather_k(CaseList& list, Draw& draw);
void add_save_partial_states(CaseList& list);
void add_random_save_partial_states(CaseList& list, Draw& draw);
void add_compress_norm_rope_store(CaseList& list);
void add_random_compress_norm_rope_store(CaseList& list, Draw& draw);
void add_indexer_query(CaseList& list);
void add_random_indexer_query(CaseList& list, Draw& draw);
void add_indexer_logits(CaseList& list);
void add_random_indexer_logits(CaseList& list, Draw& draw);
void add_topk_select(CaseList& list);
void add_random_topk_select(CaseList& list, Draw& draw);
void add_indexer_topk(CaseList& list);
void add_random_indexer_topk(CaseList& list, Draw& draw);
void add_scatter_block_tables(CaseList& list);
void add_random_scatter_block_tables(CaseList& list, Draw& draw);
void add_slot_mapping(CaseList& list);
void add_random_slot_mapping(CaseList& list, Draw& draw);
void add_swa_indices(CaseList& list);
void add_random_swa_indices(CaseList& list, Draw& draw);
void add_compressed_indices(CaseList& list);
void add_random_compressed_indices(CaseList& list, Draw& draw);
void add_compute_global_topk(CaseList& list);
void add_random_compute_global_topk(CaseList& list, Draw& draw);
void add_combine_topk_swa(CaseList& list);
void add_random_combine_topk_swa(CaseList& list, Draw& draw);
void add_sparse_attn_decode(CaseList& list);
void add_random_sparse_attn_decode(CaseList& list, Draw& draw);
void add_sparse_attn_prefill(CaseList& list);
void add_random_sparse_attn_prefill(CaseList& list, Draw& draw);
void add_merge_attn_states(CaseList& list);
void add_random_merge_attn_states(CaseList& list, Draw& draw);
void add_inverse_rope(CaseList& list);
void add_random_inverse_rope(CaseList& list, Draw& draw);
void add_inverse_rope_quant(CaseList& list);
void add_random_inverse_rope_quant(CaseList& list, Draw& draw);
void add_mla_rope_kv_insert(CaseList& list);
void add_random_mla_rope_kv_insert(CaseList& list, Draw& draw);
void add_indexer_key_insert(CaseList& list);
void add_random_indexer_key_insert(CaseList& list, Draw& draw);
void add_dense_attn_decode(CaseList& list);
void add_random_dense_attn_decode(CaseList& list, Draw& draw);
void add_dense_attn_prefill(CaseList& list);
void add_random_dense_attn_prefill(CaseList& list, Draw& draw);

// Whole layers and their ops, benchmarks only.
void add_prefill_attention(CaseList& list);
void add_batch(CaseList& list);
void add_layers(CaseList& list);
// The layer of this name, if it says a layer's shape (layer_shape.h) and no entry has it. Throws for a name that is like a layer's and is
// none, and for a layer that cannot be made.
void add_layer_of(CaseList& list, const std::string& name);

}  // namespace strata::testkit
