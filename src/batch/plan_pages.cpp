#include <algorithm>
#include <limits>
#include <utility>

#include "batch/group_spec.h"
#include "batch/request_check.h"
#include "core/check.h"
#include "strata/batch.h"

namespace strata {
namespace {

// Upper bound of the pages that `requests` runs of `rows` positions in total touch, when each run has `borders` ends within a page.
int64_t pages_of_runs(int64_t rows, int64_t requests, int64_t borders, int64_t span) {
  return std::min(rows, std::max<int64_t>(rows - requests * borders, 0) / span + requests * borders);
}

int64_t most_pages(const CacheGroupSpec& spec, const BatchLimits& limits, int64_t cached_positions) {
  const int64_t requests = limits.max_num_seqs, span = spec.positions_per_page();
  int64_t pages = requests * spec.pages_for(limits.max_model_len);
  if (cached_positions > 0) pages = std::min(pages, pages_of_runs(cached_positions, requests, 1, span));
  // A request keeps `retained` positions before its new tokens; both ends may lie anywhere within a page.
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

PagePlan plan_pages_within(int64_t bytes, std::span<const std::vector<CacheGroupSpec>> layer_groups, const BatchLimits& limits) {
  check_limits(limits);
  std::map<CacheGroup, int64_t> page_bytes;  // a page of all layers
  for (const std::vector<CacheGroupSpec>& of_layer : layer_groups) {
    for (const CacheGroupSpec& spec : of_layer) {
      require(spec.page_bytes > 0, "plan_pages_within: {}.page_bytes must be positive, is {}", to_string(spec.group), spec.page_bytes);
      page_bytes[spec.group] += spec.page_bytes;
    }
  }
  constexpr int64_t kTooMany = std::numeric_limits<int64_t>::max();  // no budget has room for these
  const auto fits = [&](const PagePlan& p) { return p.bytes <= bytes && p.bytes < kTooMany; };
  const auto plan = [&](int64_t cached_positions) {
    PagePlan p{.pages = plan_pages(layer_groups, limits, cached_positions), .cached_positions = cached_positions};
    for (const auto& [group, count] : p.pages) {
      int64_t of_group = 0;  // an overflowing sum exceeds any budget
      if (__builtin_mul_overflow(count, page_bytes.at(group), &of_group) || __builtin_add_overflow(p.bytes, of_group, &p.bytes)) {
        p.bytes = kTooMany;
        break;
      }
    }
    return p;
  };
  PagePlan best = plan(1);
  require(fits(best), "plan_pages_within: bytes must be at least {}, the pages of one position within the limits, are {}", best.bytes,
          bytes);
  // best fits; what needs more positions than `most` is outside the limits or does not fit.
  for (int64_t most = limits.max_num_seqs * limits.max_model_len; best.cached_positions < most;) {
    PagePlan middle = plan(best.cached_positions + (most - best.cached_positions + 1) / 2);
    if (fits(middle)) {
      best = std::move(middle);
    } else {
      most = middle.cached_positions - 1;
    }
  }
  return best;
}

}  // namespace strata
