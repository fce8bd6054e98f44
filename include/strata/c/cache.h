// Cache groups, and pools of pages: what an engine allocates for each layer, and how it passes its block tables. V4 specification 6 and 11.
#ifndef STRATA_C_CACHE_H
#define STRATA_C_CACHE_H

#include "strata/c/device.h"

#if defined(__cplusplus)
extern "C" {
#endif

// A cache group: layers whose pages follow the same block table. Each layer has its own page storage; page numbers are shared.
typedef int32_t strata_cache_group;
enum {
  STRATA_GROUP_WINDOW = 0,            // sliding-window keys of every V4 layer
  STRATA_GROUP_C4_COMPRESSED = 1,     // 4:1 compressed keys
  STRATA_GROUP_C4_INDEXER = 2,        // indexer keys of 4:1 layers
  STRATA_GROUP_C4_STATE = 3,          // compressor state of 4:1 layers
  STRATA_GROUP_C4_INDEXER_STATE = 4,  // indexer compressor state of 4:1 layers
  STRATA_GROUP_C128_COMPRESSED = 5,   // 128:1 compressed keys
  STRATA_GROUP_C128_STATE = 6,        // compressor state of 128:1 layers
  STRATA_GROUP_MLA_LATENT = 7,        // latent rows of MLA layers
  STRATA_GROUP_MLA_INDEXER = 8        // indexer keys of V3.2 layers
};
// Number of cache groups of this release. Arrays "by group" have a length of their own, so that later releases may have more.
#define STRATA_NUM_CACHE_GROUPS 9
// The name of a group: "c4_compressed"; null for a number that is no group. Valid as long as the library is loaded.
STRATA_API const char* strata_cache_group_name(strata_cache_group group) STRATA_NOEXCEPT;

// Geometry of a cache group. page_size and page_bytes are proposals. An engine may change them in a copy before it makes the pool and the
// builder, to the same values for all layers of a group: page_size >= 1, page_bytes at least strata_page_payload_bytes.
// The fastest GPU kernels do not take every page_size; they take all multiples of 64 rows.
// A page is plain bytes: copying the pages of a prefix, of every group and layer, copies the prefix.
// A block-table entry covers page_size * ratio positions.
typedef struct strata_cache_group_spec {
  size_t struct_size;        // sizeof(strata_cache_group_spec)
  strata_cache_group group;  // which group this is
  strata_kv_format format;   // of every row
  int32_t row_dim;           // values per row
  int32_t page_size;         // rows per page
  int32_t ratio;             // positions per row: 1, 4 or 128
  int64_t page_bytes;        // bytes of one layer's padded page: the smallest page_stride
  int64_t retained;          // number of newest positions that must stay readable; 0: all
  // Query heads of each layer of the group on this rank; 0: unknown. The batch builder plans 128:1 and dense latent attention with it.
  int32_t num_query_heads;
} strata_cache_group_spec;
// A struct with ratio 1 and otherwise zeros.
static inline strata_cache_group_spec strata_cache_group_spec_default(void) {
  strata_cache_group_spec spec;
  memset(&spec, 0, sizeof spec);
  spec.struct_size = sizeof spec;
  spec.ratio = 1;
  return spec;
}

// The cache groups of several layers: the specs of layer 0, then those of layer 1, and so on.
typedef struct strata_layer_groups {
  size_t struct_size;                    // sizeof(strata_layer_groups)
  const strata_cache_group_spec* specs;  // [sum of num_specs], all of the struct_size of the first
  const int64_t* num_specs;              // [num_layers]: specs of each layer
  int64_t num_layers;                    // layers
} strata_layer_groups;
// A struct of zeros but struct_size.
static inline strata_layer_groups strata_layer_groups_default(void) {
  strata_layer_groups groups;
  memset(&groups, 0, sizeof groups);
  groups.struct_size = sizeof groups;
  return groups;
}

// What a pool is made from.
typedef struct strata_pool_params {
  size_t struct_size;                       // sizeof(strata_pool_params)
  const strata_layer_groups* layer_groups;  // required; all layers of a group have the same spec
  const int64_t* pages;                     // by group [num_groups]: pages of the group, as of strata_plan_pages
  int64_t num_groups;                       // every group of the layers is below it
  // For tests: a byte that initialises the storage and overwrites freed pages, on the device's default stream (0xFF is NaN in every
  // format). Reads of rows that were never written or were freed then show. Null: the storage is uninitialised.
  const uint8_t* fill;
} strata_pool_params;
// A struct of zeros but struct_size.
static inline strata_pool_params strata_pool_params_default(void) {
  strata_pool_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  return params;
}

// A pool: page storage for a set of layers, and the block tables of their requests, for callers without an allocator of their own. One call
// runs at a time for each pool, strata_batch_build with its requests included. The host assigns pages at the time of the call: steps that
// use them must run on their streams in the order of the calls here.
// Requests may share a prefix (strata_pool_add_request_with_prefix). Its pages are reference-counted and become free when the last request
// releases them. Only whole pages of every group are shared: multiples of strata_pool_prefix_granularity positions, 256 for V4's groups, 64
// for MLA's. The first position after the prefix begins a new page in every group, so no request writes to a page that others read, and no
// page is ever copied.
// Of a sliding group, the pages that the next token reads are shared, so the first request must still hold them. Share before that request
// has advanced, in V4 by more than 3 positions. A prefix that outlives its requests is a request of its own, made at the prefix's end and
// never extended.
// Errors: STRATA_INVALID_ARGUMENT for specs that differ between layers of a group and for a group without a number of pages;
// STRATA_OUT_OF_MEMORY.
STRATA_API strata_status strata_pool_create(strata_device device, const strata_pool_params* params, strata_pool* pool) STRATA_NOEXCEPT;
// Gives the handle back, and the pages when no call uses them. Work on streams that still uses the pages may go on: the memory is not used
// again before that work is done. A graph that uses the pages must not be launched afterwards.
STRATA_API strata_status strata_pool_destroy(strata_pool pool) STRATA_NOEXCEPT;

// Every group of the pool once. At most `capacity` specs are written; where capacity > 0, specs[0].struct_size is given
// (strata_cache_group_spec_default() sets it) and holds for all of them. *count (may be null) is the number of groups.
STRATA_API strata_status strata_pool_groups(strata_pool pool, strata_cache_group_spec* specs, int64_t capacity,
                                            int64_t* count) STRATA_NOEXCEPT;
// Pages of a group. Errors: STRATA_INVALID_ARGUMENT for a group that the pool does not have.
STRATA_API strata_status strata_pool_num_pages(strata_pool pool, strata_cache_group group, int64_t* pages) STRATA_NOEXCEPT;
// Free pages of a group. Errors: STRATA_INVALID_ARGUMENT for a group that the pool does not have.
STRATA_API strata_status strata_pool_free_pages(strata_pool pool, strata_cache_group group, int64_t* pages) STRATA_NOEXCEPT;
// Number of layers.
STRATA_API strata_status strata_pool_num_layers(strata_pool pool, int64_t* layers) STRATA_NOEXCEPT;
// Bytes of all pages of all layers.
STRATA_API strata_status strata_pool_allocated_bytes(strata_pool pool, int64_t* bytes) STRATA_NOEXCEPT;
// The pages of layer `layer` (its number in the pool) in a group; page_size 0 for a group that the layer does not have. The memory is valid
// until the pool is destroyed. cache->struct_size is given, as strata_paged_cache_default() sets it. Errors: STRATA_INVALID_ARGUMENT for a
// layer that does not exist.
STRATA_API strata_status strata_pool_cache(strata_pool pool, int64_t layer, strata_cache_group group,
                                           strata_paged_cache* cache) STRATA_NOEXCEPT;

// Adds a request. The caller chooses ids. Errors: STRATA_INVALID_ARGUMENT for an id in use.
STRATA_API strata_status strata_pool_add_request(strata_pool pool, int64_t id) STRATA_NOEXCEPT;
// Adds a request that begins with the first `positions` positions of request `shared`, already computed. Takes no free page. Errors:
// STRATA_INVALID_ARGUMENT, naming the group, the expected and the actual value, for positions that are not a positive multiple of
// strata_pool_prefix_granularity, that the other request has not computed, or whose sliding pages it has released. Computed: by
// strata_pool_mark_computed after the step, or up to first_new_position of the last strata_pool_extend.
STRATA_API strata_status strata_pool_add_request_with_prefix(strata_pool pool, int64_t id, int64_t shared,
                                                             int64_t positions) STRATA_NOEXCEPT;
// Least common multiple of the positions per page of all groups.
STRATA_API strata_status strata_pool_prefix_granularity(strata_pool pool, int64_t* positions) STRATA_NOEXCEPT;
// Allocates pages for all positions of [0, seq_len) that are still needed. Releases pages outside a group's window, given that all
// positions before first_new_position are computed: pages wholly before first_new_position - retained. *extended is 1, or 0 where there are
// too few free pages; then nothing changes. A smaller first_new_position than before (rejected draft tokens) is allowed under two
// conditions: the pages that the new first position reads are still held, and no recomputed position is in a page shared with another
// request. Otherwise STRATA_INVALID_ARGUMENT.
STRATA_API strata_status strata_pool_extend(strata_pool pool, int64_t id, int64_t first_new_position, int64_t seq_len,
                                            int32_t* extended) STRATA_NOEXCEPT;
// Marks positions [0, positions) as computed, for a request that has pages for all of them; pages that left its windows become free.
STRATA_API strata_status strata_pool_mark_computed(strata_pool pool, int64_t id, int64_t positions) STRATA_NOEXCEPT;
// Releases every page of the request.
STRATA_API strata_status strata_pool_remove_request(strata_pool pool, int64_t id) STRATA_NOEXCEPT;
// A copy of one block table: entry i is the page of the request's block i. Entries before strata_pool_first_block are 0 and have no page.
// At most `capacity` entries are written (capacity 0: table may be null); *count (may be null) is their number.
STRATA_API strata_status strata_pool_block_table(strata_pool pool, int64_t id, strata_cache_group group, int32_t* table, int64_t capacity,
                                                 int64_t* count) STRATA_NOEXCEPT;
// The first block that has a page; all blocks of a sliding group before it were released.
STRATA_API strata_status strata_pool_first_block(strata_pool pool, int64_t id, strata_cache_group group, int64_t* block) STRATA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif
