#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "batch/group_spec.h"
#include "core/check.h"
#include "strata/paged_pool.h"

namespace strata {
namespace {

size_t index_of(CacheGroup group) { return static_cast<size_t>(group); }

bool same_spec(const CacheGroupSpec& a, const CacheGroupSpec& b) {
  return a.format == b.format && a.row_dim == b.row_dim && a.page_size == b.page_size && a.ratio == b.ratio &&
         a.page_bytes == b.page_bytes && a.retained == b.retained;
}

void check_storage(const CacheGroupSpec& spec) {
  check_group_spec("paged pool", spec, 1);
  const auto name = to_string(spec.group);
  require(spec.row_dim > 0, "paged pool: {}.row_dim must be positive, is {}", name, spec.row_dim);
  const int64_t payload = page_payload_bytes(spec.format, spec.row_dim, spec.page_size);
  require(spec.page_bytes >= payload, "paged pool: {}.page_bytes must be at least {} for {} rows of {}, is {}", name, payload,
          spec.page_size, to_string(spec.format), spec.page_bytes);
}

// The largest 63-bit number if the multiple overflows: then no prefix can be shared.
int64_t least_common_multiple(int64_t a, int64_t b) {
  int64_t multiple = 0;
  return __builtin_mul_overflow(a / std::gcd(a, b), b, &multiple) ? std::numeric_limits<int64_t>::max() : multiple;
}

// Between steps a request keeps the last `retained` positions before the first new one, in whole pages: V4 9.2.
int64_t first_kept_block(const CacheGroupSpec& spec, int64_t first_new_position) {
  return spec.retained > 0 ? std::max<int64_t>(0, first_new_position - spec.retained) / spec.positions_per_page() : 0;
}

}  // namespace

PagedPool::PagedPool(std::shared_ptr<Device> device, std::vector<std::vector<CacheGroupSpec>> layer_groups,
                     const std::map<CacheGroup, int64_t>& pages, std::optional<uint8_t> fill)
    : device_(std::move(device)), fill_(fill) {
  require(device_ != nullptr, "paged pool: device is required, is null");
  layers_.resize(layer_groups.size());
  for (int64_t l = 0; l < num_layers(); ++l) {
    for (const CacheGroupSpec& spec : layer_groups[static_cast<size_t>(l)]) add_storage(l, spec, pages);
  }
}

void PagedPool::add_storage(int64_t l, const CacheGroupSpec& spec, const std::map<CacheGroup, int64_t>& pages) {
  check_storage(spec);
  const auto name = to_string(spec.group);
  PagedCache& cache = layers_[static_cast<size_t>(l)][spec.group];
  require(!cache.present(), "paged pool: layer {} must name group {} once, names it twice", l, name);
  const auto known = std::find_if(groups_.begin(), groups_.end(), [&](const CacheGroupSpec& g) { return g.group == spec.group; });
  if (known == groups_.end()) {
    const auto count = pages.find(spec.group);
    require(count != pages.end(), "paged pool: a number of pages is required for group {}, is absent", name);
    pools_.emplace(spec.group, PagePool(count->second));
    groups_.push_back(spec);
    prefix_granularity_ = least_common_multiple(prefix_granularity_, spec.positions_per_page());
  } else {
    require(same_spec(*known, spec), "paged pool: group {} must have the same spec in all layers, differs in layer {}", name, l);
  }
  cache.device = device_->id();
  cache.format = spec.format;
  cache.row_dim = spec.row_dim;
  cache.page_size = spec.page_size;
  cache.num_pages = pools_.at(spec.group).num_pages();
  cache.page_stride = spec.page_bytes;
  storage_.emplace_back(device_, DType::u8, std::initializer_list<int64_t>{cache.num_pages, spec.page_bytes});
  cache.data = storage_.back().view().data;
  allocated_bytes_ += storage_.back().allocated_bytes();
  if (fill_) device_->fill(cache.data, *fill_, storage_.back().allocated_bytes(), {});
}

const LayerCaches& PagedPool::layer(int64_t l) const {
  require(l >= 0 && l < num_layers(), "paged pool: layer must be in [0, {}), is {}", num_layers(), l);
  return layers_[static_cast<size_t>(l)];
}

std::vector<int64_t> PagedPool::num_pages() const {
  std::vector<int64_t> pages;
  for (const CacheGroupSpec& spec : groups_) pages.push_back(pools_.at(spec.group).num_pages());
  return pages;
}

int64_t PagedPool::free_pages(CacheGroup group) const {
  const auto pool = pools_.find(group);
  require(pool != pools_.end(), "paged pool: it has no group {}", to_string(group));
  return pool->second.num_free();
}

const PagedPool::Request& PagedPool::request(int64_t id) const {
  const auto found = requests_.find(id);
  require(found != requests_.end(), "paged pool: request {} is not known", id);
  return found->second;
}
PagedPool::Request& PagedPool::request(int64_t id) { return const_cast<Request&>(std::as_const(*this).request(id)); }

void PagedPool::add_request(int64_t id) {
  require(requests_.try_emplace(id, id).second, "paged pool: request ids must be new, {} is known", id);
}

void PagedPool::add_request(int64_t id, SharedPrefix prefix) {
  require(!requests_.contains(id), "paged pool: request ids must be new, {} is known", id);
  const Request& from = request(prefix.request);
  require(prefix.positions > 0 && prefix.positions % prefix_granularity_ == 0,
          "paged pool: request {}: positions of a shared prefix must be a positive multiple of {}, whole pages of every group, are {}", id,
          prefix_granularity_, prefix.positions);
  require(prefix.positions <= from.computed,
          "paged pool: request {}: positions of a shared prefix must be at most the {} that request {} has computed, are {}", id,
          from.computed, prefix.request, prefix.positions);
  const auto first_read = [&](const CacheGroupSpec& spec) { return addressed_blocks(spec, 1, prefix.positions + 1).begin; };
  for (const CacheGroupSpec& spec : groups_) {
    const int64_t first_live = from.first_live[index_of(spec.group)];
    require(first_read(spec) >= first_live,
            "paged pool: request {}: request {} must still have {} block {}, which position {} reads, has released those before {}", id,
            prefix.request, to_string(spec.group), first_read(spec), prefix.positions, first_live);
  }
  Request& r = requests_.try_emplace(id, id).first->second;
  r.computed = prefix.positions;
  for (const CacheGroupSpec& spec : groups_) {
    const size_t g = index_of(spec.group);
    r.first_live[g] = first_read(spec);
    for (int64_t i = 0; i < prefix.positions / spec.positions_per_page(); ++i) {
      const bool live = i >= r.first_live[g];
      r.tables[g].push_back(live ? from.tables[g][static_cast<size_t>(i)] : 0);
      if (live) pools_.at(spec.group).share(r.tables[g].back());
    }
  }
}

void PagedPool::check_extend(int64_t id, int64_t first_new_position, int64_t seq_len) const {
  const Request& r = request(id);
  require(first_new_position >= 0 && first_new_position <= seq_len,
          "paged pool: request {}: first_new_position must be in [0, seq_len = {}], is {}", id, seq_len, first_new_position);
  require(seq_len <= std::numeric_limits<int32_t>::max(), "paged pool: request {}: seq_len must be below 2^31, is {}", id, seq_len);
  for (const CacheGroupSpec& spec : groups_) {
    const size_t g = index_of(spec.group);
    const int64_t span = spec.positions_per_page();
    const int64_t first_read = addressed_blocks(spec, seq_len - first_new_position, seq_len).begin;
    require(first_read >= r.first_live[g], "paged pool: request {}: {} pages before position {} were released, position {} needs block {}",
            id, to_string(spec.group), r.first_live[g] * span, first_new_position, first_read);
    const int64_t end = std::min<int64_t>(spec.pages_for(seq_len), std::ssize(r.tables[g]));
    for (int64_t i = std::max(first_new_position / span, r.first_live[g]); i < end && first_new_position < seq_len; ++i) {
      const int32_t holders = pools_.at(spec.group).holders(r.tables[g][static_cast<size_t>(i)]);
      require(holders == 1,
              "paged pool: request {}: first_new_position must be at least {}, as {} requests share {} block {} before it, is {}", id,
              (i + 1) * span, holders, to_string(spec.group), i, first_new_position);
    }
  }
}

bool PagedPool::has_room(const Request& r, int64_t first_new_position, int64_t seq_len) const {
  return std::all_of(groups_.begin(), groups_.end(), [&](const CacheGroupSpec& spec) {
    const size_t g = index_of(spec.group);
    const PagePool& pool = pools_.at(spec.group);
    const std::vector<int32_t>& table = r.tables[g];
    const int64_t first_kept = first_kept_block(spec, first_new_position);
    int64_t freed = 0;
    for (int64_t i = r.first_live[g]; i < std::min<int64_t>(first_kept, std::ssize(table)); ++i) {
      freed += pool.holders(table[static_cast<size_t>(i)]) == 1;
    }
    const int64_t missing = std::max<int64_t>(0, spec.pages_for(seq_len) - std::max<int64_t>(std::ssize(table), first_kept));
    return missing <= pool.num_free() + freed;
  });
}

bool PagedPool::extend(int64_t id, int64_t first_new_position, int64_t seq_len) {
  check_extend(id, first_new_position, seq_len);
  Request& r = request(id);
  if (!has_room(r, first_new_position, seq_len)) return false;
  for (const CacheGroupSpec& spec : groups_) {
    const size_t g = index_of(spec.group);
    std::vector<int32_t>& table = r.tables[g];
    const int64_t first_kept = first_kept_block(spec, first_new_position);
    for (; r.first_live[g] < std::min<int64_t>(first_kept, std::ssize(table)); ++r.first_live[g]) {
      release_page(spec.group, std::exchange(table[static_cast<size_t>(r.first_live[g])], 0));
    }
    r.first_live[g] = std::max(r.first_live[g], first_kept);
    const int64_t blocks = spec.pages_for(seq_len);
    while (std::ssize(table) < blocks) {
      table.push_back(std::ssize(table) < first_kept ? 0 : pools_.at(spec.group).allocate());
    }
  }
  r.computed = first_new_position;
  ++r.state->version;
  return true;
}

void PagedPool::mark_computed(int64_t id, int64_t positions) {
  const Request& r = request(id);
  require(positions >= 0 && positions <= std::numeric_limits<int32_t>::max(),
          "paged pool: request {}: positions must be in [0, 2^31), is {}", id, positions);
  for (const CacheGroupSpec& spec : groups_) {
    const int64_t have = std::ssize(r.tables[index_of(spec.group)]);
    require(spec.pages_for(positions) <= have, "paged pool: request {}: {} must have {} pages for {} computed positions, has {}", id,
            to_string(spec.group), spec.pages_for(positions), positions, have);
  }
  static_cast<void>(extend(id, positions, positions));  // takes no page, so it does not fail
}

void PagedPool::release_page(CacheGroup group, int32_t page) {
  if (!pools_.at(group).release(page) || !fill_) return;
  for (const LayerCaches& layer : layers_) {
    const PagedCache& cache = layer[group];
    if (!cache.present()) continue;
    device_->fill(static_cast<std::byte*>(cache.data) + page * cache.page_stride, *fill_, cache.page_stride, {});
  }
}

void PagedPool::remove_request(int64_t id) {
  Request& r = request(id);
  for (const CacheGroupSpec& spec : groups_) {
    const size_t g = index_of(spec.group);
    for (int64_t i = r.first_live[g]; i < std::ssize(r.tables[g]); ++i) release_page(spec.group, r.tables[g][static_cast<size_t>(i)]);
  }
  requests_.erase(id);
}

BlockTables PagedPool::block_tables(int64_t id) const {
  const Request& r = request(id);
  BlockTables tables;
  std::copy(r.tables.begin(), r.tables.end(), tables.tables_.begin());
  tables.state_ = r.state;
  tables.version_ = r.state->version;
  return tables;
}

std::vector<int32_t> PagedPool::block_table(int64_t id, CacheGroup group) const {
  const Request& r = request(id);
  require(pools_.contains(group), "paged pool: it has no group {}", to_string(group));
  return r.tables[index_of(group)];
}

int64_t PagedPool::first_block(int64_t id, CacheGroup group) const {
  const Request& r = request(id);
  require(pools_.contains(group), "paged pool: it has no group {}", to_string(group));
  return r.first_live[index_of(group)];
}

}  // namespace strata
