#include "registry.h"

namespace strata::cases {

CaseList all_cases() {
  CaseList list;
  add_linear(list);
  add_grouped_linear(list);
  add_rms_norm_pair(list);
  add_qnorm_rope_kv_insert(list);
  add_quantize_and_insert_k(list);
  add_dequantize_and_gather_k(list);
  add_save_partial_states(list);
  add_compress_norm_rope_store(list);
  add_indexer_query(list);
  add_indexer_logits(list);
  add_topk_select(list);
  add_indexer_topk(list);
  add_scatter_block_tables(list);
  add_slot_mapping(list);
  add_swa_indices(list);
  add_compressed_indices(list);
  add_compute_global_topk(list);
  add_combine_topk_swa(list);
  add_sparse_attn_decode(list);
  add_sparse_attn_prefill(list);
  add_merge_attn_states(list);
  add_inverse_rope(list);
  add_inverse_rope_quant(list);
  add_mla_rope_kv_insert(list);
  add_indexer_key_insert(list);
  add_dense_attn_decode(list);
  add_dense_attn_prefill(list);
  add_prefill_attention(list);
  add_batch(list);
  add_layers(list);
  return list;
}

}  // namespace strata::cases
