#include <algorithm>

#include "batch/group_spec.h"
#include "batch/request_check.h"
#include "core/check.h"
#include "strata/batch.h"

namespace strata {
namespace {

// Pages that `requests` runs of `rows` positions in all touch at most, when each run may begin, or end, `borders` times within a page.
int64_t pages_of_runs(int64_t rows, int64_t requests, int64_t borders, int64_t span) {
  return std::max<int64_t>(rows - requests * borders, 0) / span + requests * borders;
}

int64_t most_pages(const CacheGroupSpec& spec, const BatchLimits& limits, int64_t cached_positions) {
  const int64_t requests = limits.max_num_seqs, span = spec.positions_per_page();
  int64_t pages = requests * spec.pages_for(limits.max_model_len);
  if (cached_positions > 0) pages = std::min(pages, pages_of_runs(cached_positions, requests, 1, span));
  // A request keeps `retained` positions in front of its new tokens, from anywhere within a page to anywhere within a page.
  if (spec.retained > 0) {
    pages = std::min(pages, pages_of_runs(requests * spec.retained + limits.max_num_batched_tokens, requests, 2, span));
  }
  return pages;
}

}  // namespace

std::map<CacheGroup, int64_t> plan_pages(std::span<const std::vector<CacheGroupSpec>> layer_groups, const BatchLimits& limits,
                                         int64_t cached_positions) {
  check_limits(limits);
  require(cached_positions >= 0, "plan_pages: cached_positions must not be negative, is {}", cached_positions);
  std::map<CacheGroup, int64_t> pages;
  for (const std::vector<CacheGroupSpec>& of_layer : layer_groups) {
    for (const CacheGroupSpec& spec : of_layer) {
      check_group_spec("plan_pages", spec, 1);
      pages[spec.group] = most_pages(spec, limits, cached_positions);
    }
  }
  return pages;
}

}  // namespace strata
