// Index generation: which rows each token attends to, as numbers. V4 specification 9.2, 11, 12 and 13.
// Errors of all ops: invalid_argument for shapes, dtypes, devices, and sizes below their minimum. On host-visible memory also for positions
// below 0, requests outside the table, and table entries, among those that a valid token needs, that are missing or not pages (such as -1).
// Other entries are never read.
// On other memory the caller guarantees these properties; kernels do not check them.
#pragma once

#include "strata/tensor.h"

namespace strata {

// scatter_block_tables: writes the segments of block-table rows that a step needs from one packed array. For i < count:
//   block_table[row, column + i] = entries[first + i].
// Other table entries are unchanged. Segments must not overlap in the table. On host-visible memory invalid_argument also for segments
// outside the table or the entries.
struct ScatterBlockTablesParams {
  TensorView entries{};      // i32 [N]
  TensorView segments{};     // i32 [S, 4], contiguous: row, column, first, count
  TensorView block_table{};  // i32 [R, width], rows contiguous
};

// slot_mapping: the slot of every token in one cache group. V4 9.2 and 11.
// ratio 1: table[req][p / B] * B + p % B. ratio r > 1 (compressed groups): the slot of entry p / r for boundary tokens, (p + 1) % r == 0,
// and -1 for others. -1 where is_valid_token is 0.
struct SlotMappingParams {
  TensorView positions{};       // i64 [T]
  TensorView token_to_req{};    // i32 [T]
  TensorView is_valid_token{};  // u8 [T]; absent: all valid
  TensorView block_table{};     // i32 [R, max_blocks]
  int32_t page_size = 0;        // B, rows per page
  int32_t ratio = 1;            // r, positions per row
  TensorView slot_mapping{};    // i64 [T]
};

// swa_indices: sliding-window slots of every token, oldest first. V4 12.2. Invalid tokens: length 0, row all -1.
struct SwaIndicesParams {
  TensorView positions{};       // i64 [T]
  TensorView token_to_req{};    // i32 [T]
  TensorView is_valid_token{};  // u8 [T]; absent: all valid
  TensorView block_table{};     // i32 [R, max_blocks] of the window group
  int32_t page_size = 0;        // B, rows per page
  int32_t window = 128;         // W, including the query token
  TensorView indices{};         // i32 [T, W]
  TensorView lens{};            // i32 [T]
};

// compressed_indices: every complete compressed entry of each token, min((p + 1) / ratio, width) entries. With a block table slots (V4
// 12.4), without one local entry numbers (V4 12.5). The remaining columns are -1. Invalid tokens: length 0, row all -1.
struct CompressedIndicesParams {
  TensorView positions{};       // i64 [T]
  TensorView token_to_req{};    // i32 [T]; may be absent without a block table
  TensorView is_valid_token{};  // u8 [T]; absent: all valid
  TensorView block_table{};     // i32 [R, max_blocks] of the compressed group; absent: local entry numbers
  int32_t page_size = 0;        // B, rows per page; ignored without a block table
  int32_t ratio = 128;          // positions per entry
  TensorView indices{};         // i32 [T, width]
  TensorView lens{};            // i32 [T]
};

// compute_global_topk: converts local entry numbers to slots. V4 12.3 (compute_global_topk_indices_and_lens).
// out[t, i] = local >= 0 ? slot : -1, in the same column. lens[t] = count(local >= 0). Entries whose block is past the table become -1 (MLA
// 13). Invalid tokens: length 0, row all -1.
struct ComputeGlobalTopkParams {
  TensorView topk_indices{};    // i32 [T, k]
  TensorView token_to_req{};    // i32 [T]
  TensorView is_valid_token{};  // u8 [T]; absent: all valid
  TensorView block_table{};     // i32 [R, max_blocks]
  int32_t page_size = 0;        // rows per page
  TensorView global_indices{};  // i32 [T, k]; may be topk_indices itself
  TensorView lens{};            // i32 [T]
};

// combine_topk_swa: rows of the gathered workspace for one prefill chunk. V4 13 (combine_topk_swa_indices).
//   nt = min((p + 1) / ratio, top_k) (0 when top_k is 0), ns = min(p + 1, window), gather_start = seq_lens[c] - gather_lens[c]
//   row[0 .. nt) = topk_indices[t][..] + c*M;  row[nt .. nt+ns) = c*M + N + (p - ns + 1 - gather_start) + i;  then -1;  lens[t] = nt + ns
// Token t of the chunk belongs to chunk-local request c by query_start_loc minus its first entry. On host-visible memory invalid_argument
// also for rows that were not gathered, and for selected entries that the token cannot see.
struct CombineTopkSwaParams {
  TensorView topk_indices{};      // i32 [T, top_k]; absent when top_k is 0
  TensorView query_start_loc{};   // i32 [R + 1], global token numbers of the chunk's requests
  TensorView seq_lens{};          // i32 [R]
  TensorView gather_lens{};       // i32 [R]
  int32_t window = 128;           // positions of the window, including the query token
  int32_t ratio = 1;              // positions per compressed entry
  int32_t top_k = 0;              // columns of topk_indices; 0: window rows only
  int64_t m = 0;                  // M, workspace rows per request
  int64_t n = 0;                  // N, first window row of a request
  TensorView combined_indices{};  // i32 [T, width], width >= top_k + window
  TensorView combined_lens{};     // i32 [T]
};

}  // namespace strata
