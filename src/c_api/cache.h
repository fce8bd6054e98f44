// Pools, and what the functions of caches, batches and layers share.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "c_api/objects.h"
#include "c_api/structs.h"
#include "strata/c/cache.h"
#include "strata/paged_pool.h"

namespace strata::c_api {

STRATA_STRUCT(strata_cache_group_spec, 56);
STRATA_STRUCT(strata_layer_groups, 32);

// What a handle of a pool names.
struct Pool {
  PagedPool pool;
};

CacheGroup to_group(strata_cache_group group, const char* field);
std::vector<CacheGroupSpec> to_specs(const strata_cache_group_spec* specs, int64_t count, const char* field);
std::vector<std::vector<CacheGroupSpec>> to_layer_groups(const strata_layer_groups* groups, const char* field);
// An array by group.
std::map<CacheGroup, int64_t> to_pages(const int64_t* pages, int64_t num_groups);

// As many specs as fit, and their number.
void write_specs(std::span<const CacheGroupSpec> specs, strata_cache_group_spec* results, int64_t capacity, int64_t* count);

}  // namespace strata::c_api
