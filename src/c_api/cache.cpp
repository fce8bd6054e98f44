#include "c_api/cache.h"

#include "c_api/arrays.h"
#include "c_api/convert.h"

namespace strata::c_api {

STRATA_STRUCT(strata_pool_params, 40);

namespace {

static_assert(same(STRATA_GROUP_WINDOW, CacheGroup::window) && same(STRATA_GROUP_C4_COMPRESSED, CacheGroup::c4_compressed) &&
              same(STRATA_GROUP_C4_INDEXER, CacheGroup::c4_indexer) && same(STRATA_GROUP_C4_STATE, CacheGroup::c4_state) &&
              same(STRATA_GROUP_C4_INDEXER_STATE, CacheGroup::c4_indexer_state) &&
              same(STRATA_GROUP_C128_COMPRESSED, CacheGroup::c128_compressed) && same(STRATA_GROUP_C128_STATE, CacheGroup::c128_state) &&
              same(STRATA_GROUP_MLA_LATENT, CacheGroup::mla_latent) && same(STRATA_GROUP_MLA_INDEXER, CacheGroup::mla_indexer));
static_assert(STRATA_NUM_CACHE_GROUPS == kNumCacheGroups);

CacheGroupSpec to_spec(const strata_cache_group_spec& s) {
  return {.group = to_group(s.group, "spec.group"),
          .format = to_enum(s.format, KvFormat::state_f32, "spec.format"),
          .row_dim = s.row_dim,
          .page_size = s.page_size,
          .ratio = s.ratio,
          .page_bytes = s.page_bytes,
          .retained = s.retained,
          .num_query_heads = s.num_query_heads};
}

strata_cache_group_spec from_spec(const CacheGroupSpec& spec) {
  strata_cache_group_spec s = strata_cache_group_spec_default();
  s.group = static_cast<int32_t>(spec.group);
  s.format = static_cast<int32_t>(spec.format);
  s.row_dim = spec.row_dim;
  s.page_size = spec.page_size;
  s.ratio = spec.ratio;
  s.page_bytes = spec.page_bytes;
  s.retained = spec.retained;
  s.num_query_heads = spec.num_query_heads;
  return s;
}

}  // namespace

CacheGroup to_group(strata_cache_group group, const char* field) { return to_enum(group, CacheGroup::mla_indexer, field); }

std::vector<CacheGroupSpec> to_specs(const strata_cache_group_spec* specs, int64_t count, const char* field) {
  check_structs(specs, count, field);
  std::vector<CacheGroupSpec> result;
  for (int64_t i = 0; i < count; ++i) result.push_back(to_spec(read_element(specs, i, field)));
  return result;
}

std::vector<std::vector<CacheGroupSpec>> to_layer_groups(const strata_layer_groups* groups, const char* field) {
  const strata_layer_groups g = read_struct(groups, field);
  const auto counts = to_span(g.num_specs, g.num_layers, "layer_groups.num_specs");
  int64_t total = 0;
  for (const int64_t count : counts) {
    require(count >= 0 && count <= kNumCacheGroups, "layer_groups.num_specs: expected 0 to {}, is {}", kNumCacheGroups, count);
    total += count;
  }
  const std::vector<CacheGroupSpec> specs = to_specs(g.specs, total, "layer_groups.specs");
  std::vector<std::vector<CacheGroupSpec>> layers;
  auto next = specs.begin();
  for (const int64_t count : counts) {
    layers.emplace_back(next, next + count);
    next += count;
  }
  return layers;
}

std::map<CacheGroup, int64_t> to_pages(const int64_t* pages, int64_t num_groups) {
  std::map<CacheGroup, int64_t> result;
  for (const int64_t count : to_span(pages, num_groups, "pages")) {
    // A caller of a later release may know more groups: this one's specs do not name them.
    if (std::ssize(result) < kNumCacheGroups) result.emplace(static_cast<CacheGroup>(result.size()), count);
  }
  return result;
}

void write_specs(std::span<const CacheGroupSpec> specs, strata_cache_group_spec* results, int64_t capacity, int64_t* count) {
  std::vector<strata_cache_group_spec> converted;
  for (const CacheGroupSpec& spec : specs) converted.push_back(from_spec(spec));
  write_structs(std::span<const strata_cache_group_spec>(converted), results, capacity, count, "specs");
}

}  // namespace strata::c_api

using namespace strata;
using namespace strata::c_api;

const char* strata_cache_group_name(strata_cache_group group) noexcept {
  const bool known = group >= 0 && group < kNumCacheGroups;
  return known ? c_text(to_string(static_cast<CacheGroup>(group))) : nullptr;
}

strata_status strata_pool_create(strata_device device, const strata_pool_params* params, strata_pool* pool) noexcept {
  return guarded([&] {
    strata_pool& out = result(pool, "pool");
    const auto on = find(device);
    const strata_pool_params p = read_struct(params, "params");
    const std::optional<uint8_t> fill = p.fill == nullptr ? std::nullopt : std::optional(*p.fill);
    auto groups = to_layer_groups(p.layer_groups, "params.layer_groups");
    out = make_handle<strata_pool>(std::make_shared<Pool>(Pool{PagedPool(on, std::move(groups), to_pages(p.pages, p.num_groups), fill)}));
  });
}
strata_status strata_pool_destroy(strata_pool pool) noexcept { return destroy(pool); }

strata_status strata_pool_groups(strata_pool pool, strata_cache_group_spec* specs, int64_t capacity, int64_t* count) noexcept {
  return guarded([&] { write_specs(find(pool)->pool.groups(), specs, capacity, count); });
}
strata_status strata_pool_num_pages(strata_pool pool, strata_cache_group group, int64_t* pages) noexcept {
  return guarded([&] {
    int64_t& out = result(pages, "pages");
    const auto of = find(pool);
    const CacheGroup wanted = to_group(group, "group");
    (void)of->pool.free_pages(wanted);  // refuses a group that the pool does not have
    const std::vector<CacheGroupSpec>& groups = of->pool.groups();
    const auto at = std::find_if(groups.begin(), groups.end(), [&](const CacheGroupSpec& spec) { return spec.group == wanted; });
    out = of->pool.num_pages()[static_cast<size_t>(at - groups.begin())];
  });
}
strata_status strata_pool_free_pages(strata_pool pool, strata_cache_group group, int64_t* pages) noexcept {
  return guarded([&] {
    int64_t& out = result(pages, "pages");
    out = find(pool)->pool.free_pages(to_group(group, "group"));
  });
}
strata_status strata_pool_num_layers(strata_pool pool, int64_t* layers) noexcept {
  return guarded([&] {
    int64_t& out = result(layers, "layers");
    out = find(pool)->pool.num_layers();
  });
}
strata_status strata_pool_allocated_bytes(strata_pool pool, int64_t* bytes) noexcept {
  return guarded([&] {
    int64_t& out = result(bytes, "bytes");
    out = find(pool)->pool.allocated_bytes();
  });
}
strata_status strata_pool_cache(strata_pool pool, int64_t layer, strata_cache_group group, strata_paged_cache* cache) noexcept {
  return guarded([&] {
    const StructResult out(cache, "cache");
    out.write(from_cache(find(pool)->pool.layer(layer)[to_group(group, "group")]));
  });
}

strata_status strata_pool_add_request(strata_pool pool, int64_t id) noexcept {
  return guarded([&] { find(pool)->pool.add_request(id); });
}
strata_status strata_pool_add_request_with_prefix(strata_pool pool, int64_t id, int64_t shared, int64_t positions) noexcept {
  return guarded([&] { find(pool)->pool.add_request(id, {.request = shared, .positions = positions}); });
}
strata_status strata_pool_prefix_granularity(strata_pool pool, int64_t* positions) noexcept {
  return guarded([&] {
    int64_t& out = result(positions, "positions");
    out = find(pool)->pool.prefix_granularity();
  });
}
strata_status strata_pool_extend(strata_pool pool, int64_t id, int64_t first_new_position, int64_t seq_len, int32_t* extended) noexcept {
  return guarded([&] {
    int32_t& out = result(extended, "extended");
    out = find(pool)->pool.extend(id, first_new_position, seq_len) ? 1 : 0;
  });
}
strata_status strata_pool_mark_computed(strata_pool pool, int64_t id, int64_t positions) noexcept {
  return guarded([&] { find(pool)->pool.mark_computed(id, positions); });
}
strata_status strata_pool_remove_request(strata_pool pool, int64_t id) noexcept {
  return guarded([&] { find(pool)->pool.remove_request(id); });
}
strata_status strata_pool_block_table(strata_pool pool, int64_t id, strata_cache_group group, int32_t* table, int64_t capacity,
                                      int64_t* count) noexcept {
  return guarded([&] { write_values(find(pool)->pool.block_table(id, to_group(group, "group")), table, capacity, count, "table"); });
}
strata_status strata_pool_first_block(strata_pool pool, int64_t id, strata_cache_group group, int64_t* block) noexcept {
  return guarded([&] {
    int64_t& out = result(block, "block");
    out = find(pool)->pool.first_block(id, to_group(group, "group"));
  });
}
