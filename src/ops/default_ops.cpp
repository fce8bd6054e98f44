#include "ops/factories.h"

namespace strata {

OpSet default_ops() {
  return OpSet{
      .linear = ops::make_linear(),
      .grouped_linear = ops::make_grouped_linear(),
      .weight_packings = ops::make_weight_packings(),
      .rms_norm_pair = ops::make_rms_norm_pair(),
      .qnorm_rope_kv_insert = ops::make_qnorm_rope_kv_insert(),
      .quantize_and_insert_k = ops::make_quantize_and_insert_k(),
      .dequantize_and_gather_k = ops::make_dequantize_and_gather_k(),
      .save_partial_states = ops::make_save_partial_states(),
      .compress_norm_rope_store = ops::make_compress_norm_rope_store(),
      .indexer_query = ops::make_indexer_query(),
      .indexer_logits = ops::make_indexer_logits(),
      .topk_select = ops::make_topk_select(),
      .indexer_topk = ops::make_indexer_topk(),
      .scatter_block_tables = ops::make_scatter_block_tables(),
      .slot_mapping = ops::make_slot_mapping(),
      .swa_indices = ops::make_swa_indices(),
      .compressed_indices = ops::make_compressed_indices(),
      .compute_global_topk = ops::make_compute_global_topk(),
      .combine_topk_swa = ops::make_combine_topk_swa(),
      .sparse_attn_decode = ops::make_sparse_attn_decode(),
      .sparse_attn_prefill = ops::make_sparse_attn_prefill(),
      .merge_attn_states = ops::make_merge_attn_states(),
      .inverse_rope = ops::make_inverse_rope(),
      .inverse_rope_quant = ops::make_inverse_rope_quant(),
      .mla_rope_kv_insert = ops::make_mla_rope_kv_insert(),
      .indexer_key_insert = ops::make_indexer_key_insert(),
      .dense_attn_decode = ops::make_dense_attn_decode(),
      .dense_attn_prefill = ops::make_dense_attn_prefill(),
  };
}

}  // namespace strata
