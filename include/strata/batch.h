// The metadata of one step, on the device, built once and shared by all layers. V4 specification 11, 12, 13 and 16.
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

// Sizes that are fixed at construction; every buffer and workspace is sized from them. All below 2^31.
struct BatchLimits {
  int64_t max_num_batched_tokens = 0;  // tokens of one step, padding included
  int64_t max_num_seqs = 0;            // requests of one step, padding included
  int64_t max_model_len = 0;           // positions of one request
  int32_t num_speculative_tokens = 0;  // decode requests have at most 1 + this many query tokens
};

// One request of a step. Requests keep the order given; the first one with more than 1 + num_speculative_tokens query tokens starts the
// prefill part, so decode requests should come first (decode_first_order).
struct BatchRequest {
  int64_t seq_len = 0;    // positions after this step, the new tokens included; 0 with query_len 0: a padding request
  int64_t query_len = 0;  // new tokens; may be 0
  // Block table of each group the builder was made with: PagedPool::block_tables, or spans over an engine's own. Entries past the complete
  // rows of seq_len positions, and of sliding groups those of blocks older than what the first new token reads, are not looked at and may
  // be -1; all others are pages in [0, num_pages). A page may be in several tables (a common prefix), and in one several times, as long as
  // the step writes no row of it: those of new positions, of the compressed entries that they complete and of their compressor states. That
  // is not checked; such rows hold what any of the writers left.
  BlockTables block_tables{};
  int64_t id = -1;  // the caller's, which errors name; -1: none, then the pool's
};

// Graph padding: the step runs with this many tokens and requests, real ones first. 0: no padding. Padding requests count as decodes
// in a step of decodes, as prefills behind prefills. A step of padding tokens only needs at least one padding request.
// A uniform step, every request with the same number q >= 1 of decode tokens and num_tokens = q * num_requests, has padding requests of q
// padding tokens and length 0. With max_seq_len given, everything a layer decides on the host is then the padding's, not the step's: a
// graph captured from such a step is good for every other with the same padding.
struct BatchPadding {
  int64_t num_tokens = 0;
  int64_t num_requests = 0;
  int64_t max_seq_len = 0;  // what Batch::max_seq_len says instead of the step's own; 0: the step's own
};

// Permutation that puts decode requests (query_len <= 1 + num_speculative_tokens) first, each part in the given order.
[[nodiscard]] std::vector<int64_t> decode_first_order(std::span<const BatchRequest> requests, int32_t num_speculative_tokens);

struct GroupMetadata {
  bool present = false;
  CacheGroupSpec spec;
  int64_t num_pages = 0;      // table entries are below it: every layer's cache of the group has as many pages, or more
  TensorView block_table{};   // i32 [R, max_blocks]: rows lie further apart than max_blocks; entries nobody needs hold any page
  TensorView slot_mapping{};  // i64 [T]: by position (ratio 1) or of the entry a boundary token completes; -1: no row
};

// One chunk of prefill requests that share a gathered workspace (V4 13).
struct PrefillChunk {
  int64_t first_request = 0;  // of the batch
  int64_t num_requests = 0;
  int64_t first_token = 0;  // of the batch
  int64_t num_tokens = 0;
  int64_t max_compressed = 0;  // N: rows of the compressed part
  int64_t max_rows = 0;        // M: N + the longest gather_len
};

struct Batch {
  int64_t num_tokens = 0;         // T, padding included
  int64_t num_actual_tokens = 0;  // decode tokens, then prefill tokens; rows behind are padding
  int64_t num_requests = 0;       // R, padding included
  int64_t num_decodes = 0;        // requests [0, num_decodes) are decode
  int64_t num_prefills = 0;
  int64_t num_decode_tokens = 0;   // rows [0, num_decode_tokens); of a uniform step the padding tokens too
  int64_t num_prefill_tokens = 0;  // rows behind them, up to num_actual_tokens
  // Rows from here on belong to no request: padding of a step that is not uniform.
  int64_t num_request_tokens() const { return num_decode_tokens + num_prefill_tokens; }
  int64_t max_query_len = 0;  // bounds of the requests' lengths
  int64_t max_seq_len = 0;
  BatchLimits limits;

  // Device memory.
  TensorView positions{};        // i64 [T]; 0 for padding
  TensorView query_start_loc{};  // i32 [R + 1]
  TensorView seq_lens{};         // i32 [R]
  TensorView token_to_req{};     // i32 [T]; 0 for padding of no request
  TensorView is_valid_token{};   // u8 [T]: window (or latent) slot >= 0
  std::array<GroupMetadata, kNumCacheGroups> groups;
  const GroupMetadata& operator[](CacheGroup g) const { return groups[static_cast<size_t>(g)]; }

  // All tokens. Absent when the builder has no such group.
  TensorView swa_indices{};  // i32 [T, W] window slots
  TensorView swa_lens{};     // i32 [T]
  TensorView c4_lens{};      // i32 [T]: (p + 1) / 4, 0 for padding
  TensorView c128_slots{};   // i32 [T, c128_width(max_seq_len)] slots of complete 128:1 entries; rows lie further apart
  TensorView c128_local{};   // i32 [T, c128_width(max_seq_len)] entry numbers, likewise
  TensorView c128_lens{};    // i32 [T]
  // u8 [bytes]: SparseAttnDecodeParams::schedule of the decode tokens' attention to the window and all 128:1 entries. Absent where no
  // implementation takes one, or where it would not be faster. Uniform steps with the same padding and BatchPadding::max_seq_len all have
  // a schedule of the same size, or none of them has one.
  TensorView c128_schedule{};
  // u8 [bytes]: DenseAttnDecodeParams::schedule of the decode requests' attention to all latent rows. Absent where no implementation takes
  // one. Uniform steps with the same padding and max_seq_len have the same size.
  TensorView mla_schedule{};
  TensorView mla_lens{};       // i32 [T]: V3.2, keys that the token's indexer sees: p + 1, 0 for padding
  TensorView gather_lens{};    // i32 [R]: query_len + min(seq_len - query_len, W - 1)
  TensorView c4_seq_lens{};    // i32 [R]: seq_len / 4
  TensorView c128_seq_lens{};  // i32 [R]: seq_len / 128

  // Host memory, for planning.
  std::vector<int32_t> query_start_loc_host;
  std::vector<int32_t> seq_lens_host;
  std::vector<int64_t> request_ids_host;  // of the requests that are no padding; -1: none
  // Chunk plan of the prefill requests that have tokens, for ratio 1, 4 and 128.
  const std::vector<PrefillChunk>& prefill_chunks(int32_t ratio) const;
  std::array<std::vector<PrefillChunk>, 3> chunks;
};

// Rows of the gathered-prefill workspace for a layer of this ratio: 4 * (ceil(max_model_len / ratio) + W + max_num_batched_tokens), without
// the compressed term for ratio 1. Every chunk of every plan fits (V4 13, adaptive plan). Throws invalid_argument for another ratio, and
// for limits and windows that cannot be.
[[nodiscard]] int64_t prefill_workspace_rows(const BatchLimits& limits, int32_t ratio, int64_t window);

// Columns of the 128:1 index rows of requests of at most `positions` positions: ceil(positions / 128) rounded up to 128 (V4 12.4). Throws
// invalid_argument outside [0, 2^31).
[[nodiscard]] int64_t c128_width(int64_t positions);

// Pages of each group for a PagedPool that never refuses: within the limits, while its requests hold at most `cached_positions` positions
// together (0: max_num_seqs * max_model_len; those of a shared prefix count once), and when before each step every request is marked as
// computed (mark_computed gives the pages that its windows have left back), and then extended by its new tokens. layer_groups[l]:
// cache_groups() of layer l.
[[nodiscard]] std::map<CacheGroup, int64_t> plan_pages(std::span<const std::vector<CacheGroupSpec>> layer_groups, const BatchLimits& limits,
                                                       int64_t cached_positions = 0);

struct PagePlan {
  std::map<CacheGroup, int64_t> pages;
  int64_t cached_positions = 0;  // the most that the requests may hold together, so that the pool never refuses
  int64_t bytes = 0;             // of the pages of all layers
};
// The most that fits into `bytes` bytes: plan_pages with the largest cached_positions, at most max_num_seqs * max_model_len, whose pages
// fit. Throws invalid_argument naming the bytes of the smallest plan where not one position fits.
[[nodiscard]] PagePlan plan_pages_within(int64_t bytes, std::span<const std::vector<CacheGroupSpec>> layer_groups,
                                         const BatchLimits& limits);

// Not for several threads at once.
class BatchBuilder {
 public:
  // `groups`: every cache group of the model once; num_pages[i]: pages of each layer's cache of groups[i]; window: the config's
  // sliding_window (0: the model has none).
  BatchBuilder(std::shared_ptr<Device> device, const OpSet& ops, const BatchLimits& limits, std::vector<CacheGroupSpec> groups,
               std::vector<int64_t> num_pages, int64_t window);
  // For the groups and pages of a pool.
  BatchBuilder(std::shared_ptr<Device> device, const OpSet& ops, const BatchLimits& limits, const PagedPool& pool, int64_t window);
  ~BatchBuilder();
  BatchBuilder(BatchBuilder&&) noexcept;

  // Fills the device buffers (fixed addresses, one host-to-device copy) and returns the step's metadata, valid until the next build, whose
  // work on its stream must come after all that reads them: on the same stream it does. Requests and tables are read before it returns. No
  // requests without padding are a step of no tokens.
  // Throws invalid_argument before touching anything: seq_len < query_len, seq_len > max_model_len, more tokens or requests than the
  // limits, block tables that are too short or name pages outside [0, num_pages), block tables of a pool that are of before the request was
  // extended or removed, padding smaller than the batch. Errors name the request by its number in the step and its id.
  [[nodiscard]] const Batch& build(std::span<const BatchRequest> requests, BatchPadding padding = {}, Stream stream = {});

  [[nodiscard]] int64_t allocated_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata
