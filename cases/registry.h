// All cases of all ops.
#pragma once

#include "case.h"

namespace strata::cases {

// Tests and benchmarks of every op. Callers append their own, for instance lambda cases.
CaseList all_cases();

// One per op, in cases/ops/.
void add_linear(CaseList& list);
void add_grouped_linear(CaseList& list);
void add_rms_norm_pair(CaseList& list);
void add_qnorm_rope_kv_insert(CaseList& list);
void add_quantize_and_insert_k(CaseList& list);
void add_dequantize_and_gather_k(CaseList& list);
void add_save_partial_states(CaseList& list);
void add_compress_norm_rope_store(CaseList& list);
void add_indexer_query(CaseList& list);
void add_indexer_logits(CaseList& list);
void add_topk_select(CaseList& list);
void add_indexer_topk(CaseList& list);
void add_scatter_block_tables(CaseList& list);
void add_slot_mapping(CaseList& list);
void add_swa_indices(CaseList& list);
void add_compressed_indices(CaseList& list);
void add_compute_global_topk(CaseList& list);
void add_combine_topk_swa(CaseList& list);
void add_sparse_attn_decode(CaseList& list);
void add_sparse_attn_prefill(CaseList& list);
void add_merge_attn_states(CaseList& list);
void add_inverse_rope(CaseList& list);
void add_inverse_rope_quant(CaseList& list);
void add_mla_rope_kv_insert(CaseList& list);
void add_indexer_key_insert(CaseList& list);
void add_dense_attn_decode(CaseList& list);
void add_dense_attn_prefill(CaseList& list);

// Whole layers and parts of them, benchmarks only.
void add_prefill_attention(CaseList& list);
void add_batch(CaseList& list);
void add_layers(CaseList& list);

}  // namespace strata::cases
