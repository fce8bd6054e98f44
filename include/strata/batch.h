// Metadata of one step on the device, built once per step and shared by all layers. V4 specification 11, 12, 13 and 16.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "strata/op_set.h"
#include "strata/paged_pool.h"
#include "strata/tensor.h"

namespace strata {

// Sizes fixed at construction. Every buffer and workspace is sized from them. Each is below 2^31.
struct BatchLimits {
  int64_t max_num_batched_tokens = 0;  // tokens of one step, padding included
  int64_t max_num_seqs = 0;            // requests of one step, padding included
  int64_t max_model_len = 0;           // positions of one request
  int32_t num_speculative_tokens = 0;  // decode requests have at most 1 + this many query tokens
};

// One request of a step. Requests keep the order given. The first request with more than 1 + num_speculative_tokens query tokens starts the
// prefill requests, so decode requests should come first (decode_first_order).
struct BatchRequest {
  int64_t seq_len = 0;    // positions after this step, the new tokens included; 0 with query_len 0: a padding request
  int64_t query_len = 0;  // new tokens; may be 0
  // Block table of each of the builder's groups: PagedPool::block_tables, or spans over an engine's own tables.
  // Two kinds of entry are ignored and may be -1: those past the complete rows of seq_len positions, and in sliding groups those of blocks
  // older than what the first new token reads. All other entries are pages in [0, num_pages).
  // A page may be in several tables (a common prefix) or several times in one table, provided that the step writes none of its rows. The
  // step writes the rows of new positions, of the compressed entries that these complete and of their compressor states. This is not
  // checked; a row with several writers holds the value of any one of them.
  BlockTables block_tables{};
  int64_t id = -1;  // the caller's id, named in errors; -1: none, then the pool's id is named
};

// Graph padding: the step has this many tokens and requests, the real ones first. 0: no padding. Padding requests count as decodes in a
// step of decodes only, otherwise as prefills after the prefills. A step of padding tokens only needs at least one padding request.
// A uniform step has the same number q >= 1 of decode tokens in every request and num_tokens = q * num_requests. Its padding requests have
// q padding tokens and length 0. With max_seq_len given, all host-side decisions of a layer then depend on the padding alone. A graph
// captured from such a step is valid for every other step with the same padding.
struct BatchPadding {
  int64_t num_tokens = 0;    // tokens of the padded step
  int64_t num_requests = 0;  // requests of the padded step
  int64_t max_seq_len = 0;   // replaces the step's own maximum in Batch::max_seq_len; 0: no replacement
};

// The permutation that puts decode requests (query_len <= 1 + num_speculative_tokens) before the others. Both keep the given order.
[[nodiscard]] std::vector<int64_t> decode_first_order(std::span<const BatchRequest> requests, int32_t num_speculative_tokens);

// One cache group's metadata in a step. T: tokens, R: requests.
struct GroupMetadata {
  bool present = false;       // false: the builder does not have the group
  CacheGroupSpec spec;        // its geometry
  int64_t num_pages = 0;      // upper bound of table entries: every layer's cache of the group has at least as many pages
  TensorView block_table{};   // i32 [R, max_blocks], row stride >= max_blocks; unneeded entries hold any valid page
  TensorView slot_mapping{};  // i64 [T]: slot of the token's row (ratio 1), or of the entry that a boundary token completes; -1: no row
};

// A chunk of prefill requests that share one gathered workspace (V4 13).
struct PrefillChunk {
  int64_t first_request = 0;   // of the batch
  int64_t num_requests = 0;    // consecutive
  int64_t first_token = 0;     // of the batch
  int64_t num_tokens = 0;      // consecutive
  int64_t max_compressed = 0;  // N: compressed rows of a request
  int64_t max_rows = 0;        // M: N + the longest gather_len
};

// The metadata of a step. T: tokens, R: requests, W: the window.
struct Batch {
  int64_t num_tokens = 0;          // T, padding included
  int64_t num_actual_tokens = 0;   // decode tokens, then prefill tokens; later rows are padding
  int64_t num_requests = 0;        // R, padding included
  int64_t num_decodes = 0;         // requests [0, num_decodes) are decode
  int64_t num_prefills = 0;        // the requests after them
  int64_t num_decode_tokens = 0;   // rows [0, num_decode_tokens); in a uniform step they include the padding tokens
  int64_t num_prefill_tokens = 0;  // the next rows, up to num_actual_tokens
  // Tokens of requests. Rows from here on are padding of a step that is not uniform.
  int64_t num_request_tokens() const { return num_decode_tokens + num_prefill_tokens; }
  int64_t max_query_len = 0;  // upper bound of the requests' query lengths
  int64_t max_seq_len = 0;    // upper bound of the requests' sequence lengths
  BatchLimits limits;         // the builder's

  // Device memory, valid until the next build.
  TensorView positions{};                             // i64 [T]; 0 for padding
  TensorView query_start_loc{};                       // i32 [R + 1]
  TensorView seq_lens{};                              // i32 [R]
  TensorView token_to_req{};                          // i32 [T]; 0 for padding outside every request
  TensorView is_valid_token{};                        // u8 [T]: 1 where the window (or latent) slot is >= 0
  std::array<GroupMetadata, kNumCacheGroups> groups;  // by CacheGroup
  // Metadata of a group.
  const GroupMetadata& operator[](CacheGroup g) const { return groups[static_cast<size_t>(g)]; }

  // For all tokens. Absent when the builder does not have the group.
  TensorView swa_indices{};  // i32 [T, W]: window slots
  TensorView swa_lens{};     // i32 [T]
  TensorView c4_lens{};      // i32 [T]: (p + 1) / 4; 0 for padding
  TensorView c128_slots{};   // i32 [T, c128_width(max_seq_len)]: slots of complete 128:1 entries; row stride may be larger
  TensorView c128_local{};   // i32 [T, c128_width(max_seq_len)]: their entry numbers; row stride may be larger
  TensorView c128_lens{};    // i32 [T]
  // u8 [bytes]: SparseAttnDecodeParams::schedule of the decode tokens' attention to the window and all 128:1 entries. Absent where no
  // implementation takes a schedule or a schedule would not be faster. Presence and size are the same for all uniform steps with the same
  // padding and BatchPadding::max_seq_len.
  TensorView c128_schedule{};
  // u8 [bytes]: DenseAttnDecodeParams::schedule of the decode requests' attention to all latent rows. Absent where no implementation takes
  // a schedule. The size is the same for all uniform steps with the same padding and max_seq_len.
  TensorView mla_schedule{};
  TensorView mla_lens{};       // i32 [T]: V3.2, number of keys that the token's indexer sees: p + 1; 0 for padding
  TensorView gather_lens{};    // i32 [R]: query_len + min(seq_len - query_len, W - 1)
  TensorView c4_seq_lens{};    // i32 [R]: seq_len / 4
  TensorView c128_seq_lens{};  // i32 [R]: seq_len / 128

  // Host memory, for planning.
  std::vector<int32_t> query_start_loc_host;  // as query_start_loc
  std::vector<int32_t> seq_lens_host;         // as seq_lens
  std::vector<int64_t> request_ids_host;      // ids of the requests that are not padding; -1: none
  // Chunks of the prefill requests that have tokens, for ratio 1, 4 or 128. Throws invalid_argument for another ratio.
  const std::vector<PrefillChunk>& prefill_chunks(int32_t ratio) const;
  std::array<std::vector<PrefillChunk>, 3> chunks;  // of ratio 1, 4 and 128
};

// Rows of the gathered-prefill workspace of a layer of this ratio: 4 * (ceil(max_model_len / ratio) + W + max_num_batched_tokens), without
// the first term for ratio 1. Every chunk of every plan fits (V4 13, adaptive plan). Throws invalid_argument for another ratio, and for
// invalid limits or windows.
[[nodiscard]] int64_t prefill_workspace_rows(const BatchLimits& limits, int32_t ratio, int64_t window);

// Columns of the 128:1 index rows of requests with at most `positions` positions: ceil(positions / 128) rounded up to a multiple of 128 (V4
// 12.4). Throws invalid_argument for positions outside [0, 2^31).
[[nodiscard]] int64_t c128_width(int64_t positions);

// Pages of each group with which a PagedPool never runs out of pages. The guarantee holds within the limits, while the requests hold at
// most `cached_positions` positions in total. 0: max_num_seqs * max_model_len. Positions of a shared prefix count once.
// Before each step the caller first calls mark_computed for every request, which returns the pages that left its windows, and then extends
// every request.
// layer_groups[l]: cache_groups() of layer l.
[[nodiscard]] std::map<CacheGroup, int64_t> plan_pages(std::span<const std::vector<CacheGroupSpec>> layer_groups, const BatchLimits& limits,
                                                       int64_t cached_positions = 0);

// Pages of each group for a memory budget.
struct PagePlan {
  std::map<CacheGroup, int64_t> pages;  // for PagedPool
  int64_t cached_positions = 0;         // most positions that the requests may hold in total for the pool never to run out of pages
  int64_t bytes = 0;                    // bytes of the pages of all layers
};
// The largest plan_pages plan that fits into `bytes` bytes: cached_positions is maximal, at most max_num_seqs * max_model_len. Throws
// invalid_argument, naming the bytes of the smallest plan, where not even one position fits.
[[nodiscard]] PagePlan plan_pages_within(int64_t bytes, std::span<const std::vector<CacheGroupSpec>> layer_groups,
                                         const BatchLimits& limits);

// Builds the metadata of each step in fixed device buffers. Not thread-safe.
class BatchBuilder {
 public:
  // `groups`: every cache group of the model once. num_pages[i]: pages of each layer's cache of groups[i]. window: the config's
  // sliding_window; 0: the model has none. Throws invalid_argument for limits, groups and numbers of pages that are not valid.
  BatchBuilder(std::shared_ptr<Device> device, const OpSet& ops, const BatchLimits& limits, std::vector<CacheGroupSpec> groups,
               std::vector<int64_t> num_pages, int64_t window);
  // Takes the groups and numbers of pages from a pool.
  BatchBuilder(std::shared_ptr<Device> device, const OpSet& ops, const BatchLimits& limits, const PagedPool& pool, int64_t window);
  ~BatchBuilder();
  BatchBuilder(BatchBuilder&&) noexcept;

  // Fills the device buffers (fixed addresses, one host-to-device copy) and returns the step's metadata, valid until the next build.
  // Requests and tables are read before build() returns. No requests and no padding make a step of no tokens.
  // The next build overwrites the buffers, so its work on its stream must come after all readers. On the same stream it does.
  // Throws invalid_argument before any write: seq_len < query_len, seq_len > max_model_len, more tokens or requests than the limits, block
  // tables that are too short or name pages outside [0, num_pages), a pool's block tables from before the request was extended or removed,
  // padding smaller than the batch. Errors name the request's number in the step and its id.
  [[nodiscard]] const Batch& build(std::span<const BatchRequest> requests, BatchPadding padding = {}, Stream stream = {});

  // Bytes of the device buffers.
  [[nodiscard]] int64_t allocated_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata
