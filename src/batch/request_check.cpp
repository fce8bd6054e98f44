#include "batch/request_check.h"

#include <algorithm>
#include <limits>

#include "batch/group_spec.h"
#include "core/check.h"

namespace strata {
namespace {

constexpr int64_t kMaxI32 = std::numeric_limits<int32_t>::max();

void check_lengths(RequestName name, const BatchRequest& r, const BatchLimits& limits) {
  require(r.query_len >= 0, "batch: {}: query_len must not be negative, is {}", name, r.query_len);
  require(r.seq_len >= 0, "batch: {}: seq_len must not be negative, is {}", name, r.seq_len);
  require(r.seq_len >= r.query_len, "batch: {}: seq_len must be at least query_len = {}, is {}", name, r.query_len, r.seq_len);
  require(r.seq_len <= limits.max_model_len, "batch: {}: seq_len must be at most max_model_len = {}, is {}", name, limits.max_model_len,
          r.seq_len);
}

// Before any entry is read: tables of a pool's request that has changed may no longer exist.
void check_current(RequestName name, const BlockTables& tables) {
  if (const char* change = tables.outdated()) {
    fail(ErrorCode::invalid_argument,
         "batch: {}: block_tables must be those that the pool has of request {} now, are of before it was {} (call PagedPool::block_tables "
         "after the last extend)",
         name, *tables.pool_request(), change);
  }
}

void check_table(RequestName name, const BatchRequest& r, const CacheGroupSpec& spec, int64_t num_pages) {
  const std::span<const int32_t> table = r.block_tables[spec.group];
  const BlockRange blocks = addressed_blocks(spec, r.query_len, r.seq_len);
  if (blocks.size() == 0) return;
  require(std::ssize(table) >= blocks.end, "batch: {}: block_tables[{}] must have at least {} entries for seq_len {}, has {}", name,
          to_string(spec.group), blocks.end, r.seq_len, table.size());
  // Long contexts have thousands of entries: one branch-free pass decides whether any is wrong, and only then finds which.
  bool all = true;
  for (int64_t b = blocks.begin; b < blocks.end; ++b) {
    const int64_t page = table[static_cast<size_t>(b)];
    all = all & (page >= 0) & (page < num_pages);
  }
  for (int64_t b = blocks.begin; !all && b < blocks.end; ++b) {
    const int32_t page = table[static_cast<size_t>(b)];
    require(page >= 0 && page < num_pages, "batch: {}: block_tables[{}][{}] must be in [0, {}), is {}", name, to_string(spec.group), b,
            num_pages, page);
  }
}

// The padded size of the step: `wanted` if the caller pads.
int64_t padded(const char* name, int64_t actual, int64_t wanted, const char* limit_name, int64_t limit) {
  require(actual <= limit, "batch: the number of {} must be at most {} = {}, is {}", name, limit_name, limit, actual);
  if (wanted == 0) return actual;
  require(wanted >= actual, "batch: padding.num_{} must be 0 or at least the batch's {}, is {}", name, actual, wanted);
  require(wanted <= limit, "batch: padding.num_{} must be at most {} = {}, is {}", name, limit_name, limit, wanted);
  return wanted;
}

}  // namespace

int64_t id_of(const BatchRequest& request) { return request.id != -1 ? request.id : request.block_tables.pool_request().value_or(-1); }

void check_limits(const BatchLimits& limits) {
  const auto in_range = [](const char* name, int64_t value, int64_t low) {
    require(value >= low && value <= kMaxI32, "batch limits: {} must be in [{}, 2^31), is {}", name, low, value);
  };
  in_range("max_num_batched_tokens", limits.max_num_batched_tokens, 1);
  in_range("max_num_seqs", limits.max_num_seqs, 1);
  in_range("max_model_len", limits.max_model_len, 1);
  in_range("num_speculative_tokens", limits.num_speculative_tokens, 0);
}

StepSizes check_requests(std::span<const BatchRequest> requests, BatchPadding padding, const BatchLimits& limits,
                         std::span<const CacheGroupSpec> groups, std::span<const int64_t> num_pages) {
  StepSizes sizes;
  sizes.num_requests = padded("requests", std::ssize(requests), padding.num_requests, "max_num_seqs", limits.max_num_seqs);
  for (size_t i = 0; i < requests.size(); ++i) {
    check_lengths(name_of(i, requests[i]), requests[i], limits);
    sizes.num_actual_tokens += requests[i].query_len;
  }
  sizes.num_tokens = padded("tokens", sizes.num_actual_tokens, padding.num_tokens, "max_num_batched_tokens", limits.max_num_batched_tokens);
  // Padding tokens belong to request 0, so there must be one.
  require(sizes.num_tokens == 0 || sizes.num_requests > 0, "batch: padding.num_requests must be at least 1 for {} padding tokens, is 0",
          sizes.num_tokens);
  int64_t longest = 0, query_len = requests.empty() ? 0 : requests.front().query_len;
  for (const BatchRequest& r : requests) {
    longest = std::max(longest, r.seq_len);
    if (r.query_len != query_len) query_len = 0;
  }
  sizes.max_seq_len = longest;
  if (padding.max_seq_len != 0) {
    require(padding.max_seq_len >= longest && padding.max_seq_len <= limits.max_model_len,
            "batch: padding.max_seq_len must be 0 or in [the batch's {}, max_model_len = {}], is {}", longest, limits.max_model_len,
            padding.max_seq_len);
    sizes.max_seq_len = padding.max_seq_len;
  }
  // Without a real request the padding determines the tokens per request.
  if (requests.empty() && sizes.num_requests > 0) query_len = sizes.num_tokens / sizes.num_requests;
  if (query_len <= int64_t{1} + limits.num_speculative_tokens && query_len * sizes.num_requests == sizes.num_tokens) {
    sizes.uniform_query_len = query_len;
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestName name = name_of(i, requests[i]);
    check_current(name, requests[i].block_tables);
    for (size_t g = 0; g < groups.size(); ++g) check_table(name, requests[i], groups[g], num_pages[g]);
  }
  return sizes;
}

}  // namespace strata
