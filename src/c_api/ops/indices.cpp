#include "strata/c/ops/indices.h"

#include "c_api/op_call.h"

namespace strata::c_api {

STRATA_STRUCT(strata_scatter_block_tables_params, 272);
STRATA_STRUCT(strata_slot_mapping_params, 456);
STRATA_STRUCT(strata_swa_indices_params, 544);
STRATA_STRUCT(strata_compressed_indices_params, 544);
STRATA_STRUCT(strata_compute_global_topk_params, 544);
STRATA_STRUCT(strata_combine_topk_swa_params, 568);

ScatterBlockTablesParams to_params(const strata_scatter_block_tables_params& c, CallReader& in) {
  return {.entries = in.view(c.entries, "entries"),
          .segments = in.view(c.segments, "segments"),
          .block_table = in.view(c.block_table, "block_table")};
}

SlotMappingParams to_params(const strata_slot_mapping_params& c, CallReader& in) {
  return {.positions = in.view(c.positions, "positions"),
          .token_to_req = in.view(c.token_to_req, "token_to_req"),
          .is_valid_token = in.view(c.is_valid_token, "is_valid_token"),
          .block_table = in.view(c.block_table, "block_table"),
          .page_size = c.page_size,
          .ratio = c.ratio,
          .slot_mapping = in.view(c.slot_mapping, "slot_mapping")};
}

SwaIndicesParams to_params(const strata_swa_indices_params& c, CallReader& in) {
  return {.positions = in.view(c.positions, "positions"),
          .token_to_req = in.view(c.token_to_req, "token_to_req"),
          .is_valid_token = in.view(c.is_valid_token, "is_valid_token"),
          .block_table = in.view(c.block_table, "block_table"),
          .page_size = c.page_size,
          .window = c.window,
          .indices = in.view(c.indices, "indices"),
          .lens = in.view(c.lens, "lens")};
}

CompressedIndicesParams to_params(const strata_compressed_indices_params& c, CallReader& in) {
  return {.positions = in.view(c.positions, "positions"),
          .token_to_req = in.view(c.token_to_req, "token_to_req"),
          .is_valid_token = in.view(c.is_valid_token, "is_valid_token"),
          .block_table = in.view(c.block_table, "block_table"),
          .page_size = c.page_size,
          .ratio = c.ratio,
          .indices = in.view(c.indices, "indices"),
          .lens = in.view(c.lens, "lens")};
}

ComputeGlobalTopkParams to_params(const strata_compute_global_topk_params& c, CallReader& in) {
  return {.topk_indices = in.view(c.topk_indices, "topk_indices"),
          .token_to_req = in.view(c.token_to_req, "token_to_req"),
          .is_valid_token = in.view(c.is_valid_token, "is_valid_token"),
          .block_table = in.view(c.block_table, "block_table"),
          .page_size = c.page_size,
          .global_indices = in.view(c.global_indices, "global_indices"),
          .lens = in.view(c.lens, "lens")};
}

CombineTopkSwaParams to_params(const strata_combine_topk_swa_params& c, CallReader& in) {
  return {.topk_indices = in.view(c.topk_indices, "topk_indices"),
          .query_start_loc = in.view(c.query_start_loc, "query_start_loc"),
          .seq_lens = in.view(c.seq_lens, "seq_lens"),
          .gather_lens = in.view(c.gather_lens, "gather_lens"),
          .window = c.window,
          .ratio = c.ratio,
          .top_k = c.top_k,
          .m = c.m,
          .n = c.n,
          .combined_indices = in.view(c.combined_indices, "combined_indices"),
          .combined_lens = in.view(c.combined_lens, "combined_lens")};
}

}  // namespace strata::c_api

STRATA_C_OP(scatter_block_tables);
STRATA_C_OP(slot_mapping);
STRATA_C_OP(swa_indices);
STRATA_C_OP(compressed_indices);
STRATA_C_OP(compute_global_topk);
STRATA_C_OP(combine_topk_swa);
