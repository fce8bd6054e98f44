#include "testkit/cases/registry.h"

#include <iterator>
#include <utility>

namespace strata::testkit {
namespace {

struct OpCases {
  void (*all)(CaseList&);
  void (*random)(CaseList&, Draw&);
};
constexpr OpCases kOps[] = {
    {add_linear, add_random_linear},
    {add_grouped_linear, add_random_grouped_linear},
    {add_rms_norm_pair, add_random_rms_norm_pair},
    {add_qnorm_rope_kv_insert, add_random_qnorm_rope_kv_insert},
    {add_quantize_and_insert_k, add_random_quantize_and_insert_k},
    {add_dequantize_and_gather_k, add_random_dequantize_and_gather_k},
    {add_save_partial_states, add_random_save_partial_states},
    {add_compress_norm_rope_store, add_random_compress_norm_rope_store},
    {add_indexer_query, add_random_indexer_query},
    {add_indexer_logits, add_random_indexer_logits},
    {add_topk_select, add_random_topk_select},
    {add_indexer_topk, add_random_indexer_topk},
    {add_scatter_block_tables, add_random_scatter_block_tables},
    {add_slot_mapping, add_random_slot_mapping},
    {add_swa_indices, add_random_swa_indices},
    {add_compressed_indices, add_random_compressed_indices},
    {add_compute_global_topk, add_random_compute_global_topk},
    {add_combine_topk_swa, add_random_combine_topk_swa},
    {add_sparse_attn_decode, add_random_sparse_attn_decode},
    {add_sparse_attn_prefill, add_random_sparse_attn_prefill},
    {add_merge_attn_states, add_random_merge_attn_states},
    {add_inverse_rope, add_random_inverse_rope},
    {add_inverse_rope_quant, add_random_inverse_rope_quant},
    {add_mla_rope_kv_insert, add_random_mla_rope_kv_insert},
    {add_indexer_key_insert, add_random_indexer_key_insert},
    {add_dense_attn_decode, add_random_dense_attn_decode},
    {add_dense_attn_prefill, add_random_dense_attn_prefill},
};

}  // namespace

CaseList all_cases() {
  CaseList list;
  for (const OpCases& op : kOps) op.all(list);
  add_prefill_attention(list);
  add_batch(list);
  add_layers(list);
  return list;
}

CaseList random_cases(uint64_t seed, int64_t number) {
  CaseList list;
  for (size_t place = 0; place < std::size(kOps); ++place) list.push_back(random_case(seed, number, place));
  return list;
}

std::unique_ptr<AnyCase> random_case(uint64_t seed, int64_t number, size_t place) {
  CaseList list;
  Draw draw(seed, number);
  kOps[place].random(list, draw);
  return std::move(list.front());
}

}  // namespace strata::testkit
