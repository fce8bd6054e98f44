// Index generation: which rows each token attends to, as numbers. V4 specification 9.2, 11, 12 and 13.
// Errors of all ops: STRATA_INVALID_ARGUMENT for shapes, dtypes, devices, and sizes below their minimum. On host-visible memory also for
// positions below 0, requests outside the table, and table entries, among those that a valid token needs, that are missing or not pages
// (such as -1). Other entries are never read.
// On other memory the caller guarantees these properties; kernels do not check them.
#ifndef STRATA_C_OPS_INDICES_H
#define STRATA_C_OPS_INDICES_H

#include "strata/c/op.h"

#if defined(__cplusplus)
extern "C" {
#endif

// scatter_block_tables: writes the segments of block-table rows that a step needs from one packed array. For i < count:
//   block_table[row, column + i] = entries[first + i].
// Other table entries are unchanged. Segments must not overlap in the table. On host-visible memory STRATA_INVALID_ARGUMENT also for
// segments outside the table or the entries.
typedef struct strata_scatter_block_tables_params {
  size_t struct_size;              // sizeof(strata_scatter_block_tables_params)
  strata_tensor_view entries;      // i32 [N]
  strata_tensor_view segments;     // i32 [S, 4], contiguous: row, column, first, count
  strata_tensor_view block_table;  // i32 [R, width], rows contiguous
} strata_scatter_block_tables_params;
// A struct of zeros but struct_size.
static inline strata_scatter_block_tables_params strata_scatter_block_tables_params_default(void) {
  strata_scatter_block_tables_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  return params;
}
// Runs scatter_block_tables.
STRATA_API strata_status strata_scatter_block_tables(strata_device device, const strata_scatter_block_tables_params* params,
                                                     const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_scatter_block_tables needs.
STRATA_API strata_status strata_scatter_block_tables_workspace_bytes(strata_device device, const strata_scatter_block_tables_params* params,
                                                                     int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_scatter_block_tables selects.
STRATA_API strata_status strata_scatter_block_tables_implementation(strata_device device, const strata_scatter_block_tables_params* params,
                                                                    const char** name) STRATA_NOEXCEPT;

// slot_mapping: the slot of every token in one cache group. V4 9.2 and 11.
// ratio 1: table[req][p / B] * B + p % B. ratio r > 1 (compressed groups): the slot of entry p / r for boundary tokens, (p + 1) % r == 0,
// and -1 for others. -1 where is_valid_token is 0.
typedef struct strata_slot_mapping_params {
  size_t struct_size;                 // sizeof(strata_slot_mapping_params)
  strata_tensor_view positions;       // i64 [T]
  strata_tensor_view token_to_req;    // i32 [T]
  strata_tensor_view is_valid_token;  // u8 [T]; absent: all valid
  strata_tensor_view block_table;     // i32 [R, max_blocks]
  int32_t page_size;                  // B, rows per page
  int32_t ratio;                      // r, positions per row
  strata_tensor_view slot_mapping;    // i64 [T]
} strata_slot_mapping_params;
// The defaults: ratio 1; otherwise zeros.
static inline strata_slot_mapping_params strata_slot_mapping_params_default(void) {
  strata_slot_mapping_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  params.ratio = 1;
  return params;
}
// Runs slot_mapping.
STRATA_API strata_status strata_slot_mapping(strata_device device, const strata_slot_mapping_params* params,
                                             const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_slot_mapping needs.
STRATA_API strata_status strata_slot_mapping_workspace_bytes(strata_device device, const strata_slot_mapping_params* params,
                                                             int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_slot_mapping selects.
STRATA_API strata_status strata_slot_mapping_implementation(strata_device device, const strata_slot_mapping_params* params,
                                                            const char** name) STRATA_NOEXCEPT;

// swa_indices: sliding-window slots of every token, oldest first. V4 12.2. Invalid tokens: length 0, row all -1.
typedef struct strata_swa_indices_params {
  size_t struct_size;                 // sizeof(strata_swa_indices_params)
  strata_tensor_view positions;       // i64 [T]
  strata_tensor_view token_to_req;    // i32 [T]
  strata_tensor_view is_valid_token;  // u8 [T]; absent: all valid
  strata_tensor_view block_table;     // i32 [R, max_blocks] of the window group
  int32_t page_size;                  // B, rows per page
  int32_t window;                     // W, including the query token
  strata_tensor_view indices;         // i32 [T, W]
  strata_tensor_view lens;            // i32 [T]
} strata_swa_indices_params;
// The defaults: window 128; otherwise zeros.
static inline strata_swa_indices_params strata_swa_indices_params_default(void) {
  strata_swa_indices_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  params.window = 128;
  return params;
}
// Runs swa_indices.
STRATA_API strata_status strata_swa_indices(strata_device device, const strata_swa_indices_params* params,
                                            const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_swa_indices needs.
STRATA_API strata_status strata_swa_indices_workspace_bytes(strata_device device, const strata_swa_indices_params* params,
                                                            int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_swa_indices selects.
STRATA_API strata_status strata_swa_indices_implementation(strata_device device, const strata_swa_indices_params* params,
                                                           const char** name) STRATA_NOEXCEPT;

// compressed_indices: every complete compressed entry of each token, min((p + 1) / ratio, width) entries. With a block table slots (V4
// 12.4), without one local entry numbers (V4 12.5). The remaining columns are -1. Invalid tokens: length 0, row all -1.
typedef struct strata_compressed_indices_params {
  size_t struct_size;                 // sizeof(strata_compressed_indices_params)
  strata_tensor_view positions;       // i64 [T]
  strata_tensor_view token_to_req;    // i32 [T]; may be absent without a block table
  strata_tensor_view is_valid_token;  // u8 [T]; absent: all valid
  strata_tensor_view block_table;     // i32 [R, max_blocks] of the compressed group; absent: local entry numbers
  int32_t page_size;                  // B, rows per page; ignored without a block table
  int32_t ratio;                      // positions per entry
  strata_tensor_view indices;         // i32 [T, width]
  strata_tensor_view lens;            // i32 [T]
} strata_compressed_indices_params;
// The defaults: ratio 128; otherwise zeros.
static inline strata_compressed_indices_params strata_compressed_indices_params_default(void) {
  strata_compressed_indices_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  params.ratio = 128;
  return params;
}
// Runs compressed_indices.
STRATA_API strata_status strata_compressed_indices(strata_device device, const strata_compressed_indices_params* params,
                                                   const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_compressed_indices needs.
STRATA_API strata_status strata_compressed_indices_workspace_bytes(strata_device device, const strata_compressed_indices_params* params,
                                                                   int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_compressed_indices selects.
STRATA_API strata_status strata_compressed_indices_implementation(strata_device device, const strata_compressed_indices_params* params,
                                                                  const char** name) STRATA_NOEXCEPT;

// compute_global_topk: converts local entry numbers to slots. V4 12.3 (compute_global_topk_indices_and_lens).
// out[t, i] = local >= 0 ? slot : -1, in the same column. lens[t] = count(local >= 0). Entries whose block is past the table become -1 (MLA
// 13). Invalid tokens: length 0, row all -1.
typedef struct strata_compute_global_topk_params {
  size_t struct_size;                 // sizeof(strata_compute_global_topk_params)
  strata_tensor_view topk_indices;    // i32 [T, k]
  strata_tensor_view token_to_req;    // i32 [T]
  strata_tensor_view is_valid_token;  // u8 [T]; absent: all valid
  strata_tensor_view block_table;     // i32 [R, max_blocks]
  int32_t page_size;                  // rows per page
  strata_tensor_view global_indices;  // i32 [T, k]; may be topk_indices itself
  strata_tensor_view lens;            // i32 [T]
} strata_compute_global_topk_params;
// A struct of zeros but struct_size.
static inline strata_compute_global_topk_params strata_compute_global_topk_params_default(void) {
  strata_compute_global_topk_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  return params;
}
// Runs compute_global_topk.
STRATA_API strata_status strata_compute_global_topk(strata_device device, const strata_compute_global_topk_params* params,
                                                    const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_compute_global_topk needs.
STRATA_API strata_status strata_compute_global_topk_workspace_bytes(strata_device device, const strata_compute_global_topk_params* params,
                                                                    int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_compute_global_topk selects.
STRATA_API strata_status strata_compute_global_topk_implementation(strata_device device, const strata_compute_global_topk_params* params,
                                                                   const char** name) STRATA_NOEXCEPT;

// combine_topk_swa: rows of the gathered workspace for one prefill chunk. V4 13 (combine_topk_swa_indices).
//   nt = min((p + 1) / ratio, top_k) (0 when top_k is 0), ns = min(p + 1, window), gather_start = seq_lens[c] - gather_lens[c]
//   row[0 .. nt) = topk_indices[t][..] + c*M;  row[nt .. nt+ns) = c*M + N + (p - ns + 1 - gather_start) + i;  then -1;  lens[t] = nt + ns
// Token t of the chunk belongs to chunk-local request c by query_start_loc minus its first entry. On host-visible memory
// STRATA_INVALID_ARGUMENT also for rows that were not gathered, and for selected entries that the token cannot see.
typedef struct strata_combine_topk_swa_params {
  size_t struct_size;                   // sizeof(strata_combine_topk_swa_params)
  strata_tensor_view topk_indices;      // i32 [T, top_k]; absent when top_k is 0
  strata_tensor_view query_start_loc;   // i32 [R + 1], global token numbers of the chunk's requests
  strata_tensor_view seq_lens;          // i32 [R]
  strata_tensor_view gather_lens;       // i32 [R]
  int32_t window;                       // positions of the window, including the query token
  int32_t ratio;                        // positions per compressed entry
  int32_t top_k;                        // columns of topk_indices; 0: window rows only
  int64_t m;                            // M, workspace rows per request
  int64_t n;                            // N, first window row of a request
  strata_tensor_view combined_indices;  // i32 [T, width], width >= top_k + window
  strata_tensor_view combined_lens;     // i32 [T]
} strata_combine_topk_swa_params;
// The defaults: window 128, ratio 1; otherwise zeros.
static inline strata_combine_topk_swa_params strata_combine_topk_swa_params_default(void) {
  strata_combine_topk_swa_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  params.window = 128;
  params.ratio = 1;
  return params;
}
// Runs combine_topk_swa.
STRATA_API strata_status strata_combine_topk_swa(strata_device device, const strata_combine_topk_swa_params* params,
                                                 const strata_execution* execution) STRATA_NOEXCEPT;
// The workspace that strata_combine_topk_swa needs.
STRATA_API strata_status strata_combine_topk_swa_workspace_bytes(strata_device device, const strata_combine_topk_swa_params* params,
                                                                 int64_t* bytes) STRATA_NOEXCEPT;
// The implementation that strata_combine_topk_swa selects.
STRATA_API strata_status strata_combine_topk_swa_implementation(strata_device device, const strata_combine_topk_swa_params* params,
                                                                const char** name) STRATA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif
