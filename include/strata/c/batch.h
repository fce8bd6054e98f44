// Metadata of one step on the device, built once per step and shared by all layers. V4 specification 11, 12, 13 and 16.
#ifndef STRATA_C_BATCH_H
#define STRATA_C_BATCH_H

#include "strata/c/cache.h"

#if defined(__cplusplus)
extern "C" {
#endif

// Sizes fixed at construction. Every buffer and workspace is sized from them. Each is below 2^31.
typedef struct strata_batch_limits {
  size_t struct_size;              // sizeof(strata_batch_limits)
  int64_t max_num_batched_tokens;  // tokens of one step, padding included; at least 1
  int64_t max_num_seqs;            // requests of one step, padding included; at least 1
  int64_t max_model_len;           // positions of one request; at least 1
  int32_t num_speculative_tokens;  // decode requests have at most 1 + this many query tokens
} strata_batch_limits;
// A struct of zeros but struct_size.
static inline strata_batch_limits strata_batch_limits_default(void) {
  strata_batch_limits limits;
  memset(&limits, 0, sizeof limits);
  limits.struct_size = sizeof limits;
  return limits;
}

// One request of a step. Requests keep the order given. The first request with more than 1 + num_speculative_tokens query tokens starts the
// prefill requests, so decode requests should come first (strata_decode_first_order).
// The request's pages come from a pool, or from the engine's own tables, or from neither where the request has no positions.
// Two kinds of table entry are ignored and may be -1: those past the complete rows of seq_len positions, and in sliding groups those of
// blocks older than what the first new token reads. All other entries are pages in [0, num_pages).
// A page may be in several tables (a common prefix) or several times in one table, provided that the step writes none of its rows. The step
// writes the rows of new positions, of the compressed entries that these complete and of their compressor states. This is not checked; a
// row with several writers holds the value of any one of them.
typedef struct strata_batch_request {
  size_t struct_size;    // sizeof(strata_batch_request)
  int64_t seq_len;       // positions after this step, the new tokens included; 0 with query_len 0: a padding request
  int64_t query_len;     // new tokens; may be 0
  strata_pool pool;      // the pool that has the request; null: the tables below
  int64_t pool_request;  // its id in the pool; not read without a pool
  // The engine's own tables, by group [num_block_tables]: block_tables[g] is i32 [block_table_lens[g]], in host memory. An entry of no use
  // (a group that the builder does not have) may be null with length 0. They are read before strata_batch_build returns.
  const int32_t* const* block_tables;
  const int64_t* block_table_lens;  // entries of each table
  int64_t num_block_tables;         // 0: none
  int64_t id;                       // the caller's id, named in errors; -1: none, then the pool's id is named
} strata_batch_request;
// A struct with id -1 and otherwise zeros.
static inline strata_batch_request strata_batch_request_default(void) {
  strata_batch_request request;
  memset(&request, 0, sizeof request);
  request.struct_size = sizeof request;
  request.id = -1;
  return request;
}

// Graph padding: the step has this many tokens and requests, the real ones first. 0: no padding. Padding requests count as decodes in a
// step of decodes only, otherwise as prefills after the prefills. A step of padding tokens only needs at least one padding request.
// A uniform step has the same number q >= 1 of decode tokens in every request and num_tokens = q * num_requests. Its padding requests have
// q padding tokens and length 0. With max_seq_len given, all host-side decisions of a layer then depend on the padding alone. A graph
// captured from such a step is valid for every other step with the same padding.
typedef struct strata_batch_padding {
  size_t struct_size;    // sizeof(strata_batch_padding)
  int64_t num_tokens;    // tokens of the padded step
  int64_t num_requests;  // requests of the padded step
  int64_t max_seq_len;   // replaces the step's own maximum in strata_batch_info; 0: no replacement
} strata_batch_padding;
// A struct of zeros but struct_size.
static inline strata_batch_padding strata_batch_padding_default(void) {
  strata_batch_padding padding;
  memset(&padding, 0, sizeof padding);
  padding.struct_size = sizeof padding;
  return padding;
}

// The permutation that puts decode requests (query_len <= 1 + num_speculative_tokens) before the others: order[i] is the number of the
// request that comes at i. Both kinds keep the given order. Of requests [num_requests] only query_len is read; all have the struct_size of
// the first.
STRATA_API strata_status strata_decode_first_order(const strata_batch_request* requests, int64_t num_requests,
                                                   int32_t num_speculative_tokens, int64_t* order) STRATA_NOEXCEPT;

// Rows of the gathered-prefill workspace of a layer of this ratio: 4 * (ceil(max_model_len / ratio) + window + max_num_batched_tokens),
// without the first term for ratio 1. Every chunk of every plan fits (V4 13, adaptive plan). Errors: STRATA_INVALID_ARGUMENT for another
// ratio than 1, 4 and 128, and for invalid limits or windows.
STRATA_API strata_status strata_prefill_workspace_rows(const strata_batch_limits* limits, int32_t ratio, int64_t window,
                                                       int64_t* rows) STRATA_NOEXCEPT;
// Columns of the 128:1 index rows of requests with at most `positions` positions: ceil(positions / 128) rounded up to a multiple of 128 (V4
// 12.4). Errors: STRATA_INVALID_ARGUMENT for positions outside [0, 2^31).
STRATA_API strata_status strata_c128_width(int64_t positions, int64_t* width) STRATA_NOEXCEPT;

// Pages of each group with which a pool never runs out of pages. The guarantee holds within the limits, while the requests hold at most
// cached_positions positions in total. 0: max_num_seqs * max_model_len. Positions of a shared prefix count once.
// Before each step the caller first calls strata_pool_mark_computed for every request, which returns the pages that left its windows, and
// then extends every request.
// pages: by group [num_groups]; 0 for a group that no layer has. Errors: STRATA_INVALID_ARGUMENT where num_groups leaves a layer's group
// out.
STRATA_API strata_status strata_plan_pages(const strata_layer_groups* layer_groups, const strata_batch_limits* limits,
                                           int64_t cached_positions, int64_t* pages, int64_t num_groups) STRATA_NOEXCEPT;

// What strata_plan_pages_within finds besides the pages.
typedef struct strata_page_plan {
  size_t struct_size;        // sizeof(strata_page_plan)
  int64_t cached_positions;  // most positions that the requests may hold in total for the pool never to run out of pages
  int64_t bytes;             // bytes of the pages of all layers
} strata_page_plan;
// A struct of zeros but struct_size.
static inline strata_page_plan strata_page_plan_default(void) {
  strata_page_plan plan;
  memset(&plan, 0, sizeof plan);
  plan.struct_size = sizeof plan;
  return plan;
}
// The largest plan of strata_plan_pages that fits into `bytes` bytes: cached_positions is maximal, at most max_num_seqs * max_model_len.
// plan may be null, otherwise its struct_size is given, as strata_page_plan_default() sets it. Errors: STRATA_INVALID_ARGUMENT, naming the
// bytes of the smallest plan, where not even one position fits.
STRATA_API strata_status strata_plan_pages_within(int64_t bytes, const strata_layer_groups* layer_groups, const strata_batch_limits* limits,
                                                  int64_t* pages, int64_t num_groups, strata_page_plan* plan) STRATA_NOEXCEPT;

// What a batch builder is made from. The groups come from a pool or from `groups`.
typedef struct strata_batch_builder_params {
  size_t struct_size;                     // sizeof(strata_batch_builder_params)
  const strata_batch_limits* limits;      // required
  strata_pool pool;                       // takes groups and numbers of pages from it; null: the fields below
  const strata_cache_group_spec* groups;  // [num_groups]: every cache group of the model once, all of the struct_size of the first
  const int64_t* num_pages;               // [num_groups]: pages of each layer's cache of groups[i]
  int64_t num_groups;                     // 0 with a pool
  int64_t window;                         // the config's sliding_window; 0: the model has none
} strata_batch_builder_params;
// A struct of zeros but struct_size.
static inline strata_batch_builder_params strata_batch_builder_params_default(void) {
  strata_batch_builder_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  return params;
}
// A builder of the metadata of each step, in fixed device buffers. It does not need the pool afterwards. One call runs at a time for each
// builder, forwards with its batch included. Errors: STRATA_INVALID_ARGUMENT for limits, groups and numbers of pages that are not valid.
STRATA_API strata_status strata_batch_builder_create(strata_device device, const strata_batch_builder_params* params,
                                                     strata_batch_builder* builder) STRATA_NOEXCEPT;
// Gives the handle back, and the buffers when no call uses them. Work on streams that reads the device buffers may go on: their memory is
// not used again before that work is done. The call waits for the last build's copy from the builder's pinned host memory, and so for the
// earlier work of that build's stream. The host memory of strata_batch_info goes with the builder. A graph that reads the buffers must not
// be launched afterwards.
STRATA_API strata_status strata_batch_builder_destroy(strata_batch_builder builder) STRATA_NOEXCEPT;
// Bytes of the device buffers.
STRATA_API strata_status strata_batch_builder_allocated_bytes(strata_batch_builder builder, int64_t* bytes) STRATA_NOEXCEPT;

// Fills the device buffers (fixed addresses, one host-to-device copy). The step is the builder's batch until the next build. Requests, all
// of the struct_size of the first, and tables are read before the call returns; of a pool's request, its tables at the time of the call.
// padding may be null. No requests and no padding make a step of no tokens.
// The next build overwrites the buffers, so its work on its stream must come after all readers. On the same stream it does.
// Errors: STRATA_INVALID_ARGUMENT for seq_len < query_len, seq_len > max_model_len, more tokens or requests than the limits, a request that
// the pool does not know (any more), block tables that are too short or name pages outside [0, num_pages), padding smaller than the batch;
// nothing is written then, and the last batch stays, as it does where a handle or a struct is refused. Errors name the request's number in
// the step and its id. After other errors the builder has no batch.
STRATA_API strata_status strata_batch_build(strata_batch_builder builder, const strata_batch_request* requests, int64_t num_requests,
                                            const strata_batch_padding* padding, strata_stream stream) STRATA_NOEXCEPT;

// The counts of a batch. T: tokens, R: requests. Pointers are valid until the next build.
typedef struct strata_batch_info {
  size_t struct_size;          // sizeof(strata_batch_info)
  int64_t num_tokens;          // T, padding included
  int64_t num_actual_tokens;   // decode tokens, then prefill tokens; later rows are padding
  int64_t num_requests;        // R, padding included
  int64_t num_decodes;         // requests [0, num_decodes) are decode
  int64_t num_prefills;        // the requests after them
  int64_t num_decode_tokens;   // rows [0, num_decode_tokens); in a uniform step they include the padding tokens
  int64_t num_prefill_tokens;  // the next rows, up to num_actual_tokens
  int64_t max_query_len;       // upper bound of the requests' query lengths
  int64_t max_seq_len;         // upper bound of the requests' sequence lengths

  // Host memory, for planning.
  const int32_t* query_start_loc_host;  // i32 [R + 1]: as STRATA_BATCH_QUERY_START_LOC
  const int32_t* seq_lens_host;         // i32 [R]: as STRATA_BATCH_SEQ_LENS
  const int64_t* request_ids_host;      // i64 [num_request_ids]: ids of the requests that are not padding; -1: none
  int64_t num_request_ids;              // requests that are not padding
} strata_batch_info;
// A struct of zeros but struct_size.
static inline strata_batch_info strata_batch_info_default(void) {
  strata_batch_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  return info;
}
// The counts of the builder's batch. Fills *info, whose struct_size is given, as strata_batch_info_default() sets it. Errors of this and
// the functions below: STRATA_INVALID_ARGUMENT for a builder that has built no step.
STRATA_API strata_status strata_batch_get_info(strata_batch_builder builder, strata_batch_info* info) STRATA_NOEXCEPT;

// The tensors of a batch, in device memory. T: tokens, R: requests, W: the window.
typedef int32_t strata_batch_tensor;
enum {
  STRATA_BATCH_POSITIONS = 0,        // i64 [T]; 0 for padding
  STRATA_BATCH_QUERY_START_LOC = 1,  // i32 [R + 1]
  STRATA_BATCH_SEQ_LENS = 2,         // i32 [R]
  STRATA_BATCH_TOKEN_TO_REQ = 3,     // i32 [T]; 0 for padding outside every request
  STRATA_BATCH_IS_VALID_TOKEN = 4,   // u8 [T]: 1 where the window (or latent) slot is >= 0
  // The rest is for all tokens, and absent where the builder does not have the group.
  STRATA_BATCH_SWA_INDICES = 5,     // i32 [T, W]: window slots
  STRATA_BATCH_SWA_LENS = 6,        // i32 [T]
  STRATA_BATCH_C4_LENS = 7,         // i32 [T]: (p + 1) / 4; 0 for padding
  STRATA_BATCH_C128_SLOTS = 8,      // i32 [T, c128_width(max_seq_len)]: slots of complete 128:1 entries; row stride may be larger
  STRATA_BATCH_C128_LOCAL = 9,      // i32 [T, c128_width(max_seq_len)]: their entry numbers; row stride may be larger
  STRATA_BATCH_C128_LENS = 10,      // i32 [T]
  STRATA_BATCH_C128_SCHEDULE = 11,  // u8 [bytes]: schedule of sparse_attn_decode, of the decode tokens' attention to the window and all
                                    // 128:1 entries. Absent where no implementation takes a schedule or a schedule would not be faster.
                                    // Presence and size are the same for all uniform steps with the same padding and max_seq_len
  STRATA_BATCH_MLA_SCHEDULE = 12,   // u8 [bytes]: schedule of dense_attn_decode, of the decode requests' attention to all latent rows.
                                    // Absent where no implementation takes a schedule. The size is the same for all uniform steps with the
                                    // same padding and max_seq_len
  STRATA_BATCH_MLA_LENS = 13,       // i32 [T]: V3.2, number of keys that the token's indexer sees: p + 1; 0 for padding
  STRATA_BATCH_GATHER_LENS = 14,    // i32 [R]: query_len + min(seq_len - query_len, W - 1)
  STRATA_BATCH_C4_SEQ_LENS = 15,    // i32 [R]: seq_len / 4
  STRATA_BATCH_C128_SEQ_LENS = 16   // i32 [R]: seq_len / 128
};
// A tensor of the builder's batch, all zero where it is absent. Its memory is valid until the next build.
STRATA_API strata_status strata_batch_get_tensor(strata_batch_builder builder, strata_batch_tensor tensor,
                                                 strata_tensor_view* view) STRATA_NOEXCEPT;

// One cache group's metadata in a step. T: tokens, R: requests.
typedef struct strata_group_metadata {
  size_t struct_size;               // sizeof(strata_group_metadata)
  int32_t present;                  // 0: the builder does not have the group
  int64_t num_pages;                // upper bound of table entries: every layer's cache of the group has at least as many pages
  strata_tensor_view block_table;   // i32 [R, max_blocks], row stride >= max_blocks; unneeded entries hold any valid page
  strata_tensor_view slot_mapping;  // i64 [T]: slot of the token's row (ratio 1), or of the entry that a boundary token completes; -1: no
                                    // row
} strata_group_metadata;
// A struct of zeros but struct_size.
static inline strata_group_metadata strata_group_metadata_default(void) {
  strata_group_metadata metadata;
  memset(&metadata, 0, sizeof metadata);
  metadata.struct_size = sizeof metadata;
  return metadata;
}
// Metadata of a group in the builder's batch. Fills *metadata, whose struct_size is given, as strata_group_metadata_default() sets it. Its
// memory is valid until the next build.
STRATA_API strata_status strata_batch_get_group(strata_batch_builder builder, strata_cache_group group,
                                                strata_group_metadata* metadata) STRATA_NOEXCEPT;

// A chunk of prefill requests that share one gathered workspace (V4 13).
typedef struct strata_prefill_chunk {
  size_t struct_size;      // sizeof(strata_prefill_chunk)
  int64_t first_request;   // of the batch
  int64_t num_requests;    // consecutive
  int64_t first_token;     // of the batch
  int64_t num_tokens;      // consecutive
  int64_t max_compressed;  // N: compressed rows of a request
  int64_t max_rows;        // M: N + the longest gather_len
} strata_prefill_chunk;
// A struct of zeros but struct_size.
static inline strata_prefill_chunk strata_prefill_chunk_default(void) {
  strata_prefill_chunk chunk;
  memset(&chunk, 0, sizeof chunk);
  chunk.struct_size = sizeof chunk;
  return chunk;
}
// Chunks of the prefill requests that have tokens, for ratio 1, 4 or 128. At most `capacity` chunks are written; where capacity > 0,
// chunks[0].struct_size is given (strata_prefill_chunk_default() sets it) and holds for all of them. *count (may be null) is their number.
// Errors: STRATA_INVALID_ARGUMENT for another ratio.
STRATA_API strata_status strata_batch_prefill_chunks(strata_batch_builder builder, int32_t ratio, strata_prefill_chunk* chunks,
                                                     int64_t capacity, int64_t* count) STRATA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif
