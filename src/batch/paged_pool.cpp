#include <algorithm>
#include <limits>
#include <utility>

#include "batch/group_spec.h"
#include "core/check.h"
#include "strata/cache.h"

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

// Between steps a request keeps the last `retained` positions before the first new one, whole: V4 9.2.
int64_t first_kept_block(const CacheGroupSpec& spec, int64_t first_new_position) {
  return spec.retained > 0 ? std::max<int64_t>(0, first_new_position - spec.retained) / spec.positions_per_page() : 0;
}

}  // namespace

PagedPool::PagedPool(std::shared_ptr<Device> device, std::vector<std::vector<CacheGroupSpec>> layer_groups,
                     const std::map<CacheGroup, int64_t>& pages, std::optional<uint8_t> fill)
    : device_(std::move(device)), fill_(fill) {
  require(device_ != nullptr, "paged pool: device is required, is null");
  layers_.resize(layer_groups.size());
  for (size_t l = 0; l < layer_groups.size(); ++l) {
    for (const CacheGroupSpec& spec : layer_groups[l]) add_storage(l, spec, pages);
  }
}

void PagedPool::add_storage(size_t l, const CacheGroupSpec& spec, const std::map<CacheGroup, int64_t>& pages) {
  check_storage(spec);
  const auto name = to_string(spec.group);
  PagedCache& cache = layers_[l][spec.group];
  require(!cache.present(), "paged pool: layer {} must name group {} once, names it twice", l, name);
  const auto known = std::find_if(groups_.begin(), groups_.end(), [&](const CacheGroupSpec& g) { return g.group == spec.group; });
  if (known == groups_.end()) {
    const auto count = pages.find(spec.group);
    require(count != pages.end(), "paged pool: a number of pages is required for group {}, is absent", name);
    pools_.emplace(spec.group, PagePool(count->second));
    groups_.push_back(spec);
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

const LayerCaches& PagedPool::layer(size_t l) const {
  require(l < layers_.size(), "paged pool: layer must be in [0, {}), is {}", layers_.size(), l);
  return layers_[l];
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
  require(requests_.try_emplace(id).second, "paged pool: request ids must be new, {} is known", id);
}

bool PagedPool::extend(int64_t id, int64_t first_new_position, int64_t seq_len) {
  Request& r = request(id);
  require(first_new_position >= 0 && first_new_position <= seq_len,
          "paged pool: request {}: first_new_position must be in [0, seq_len = {}], is {}", id, seq_len, first_new_position);
  require(seq_len <= std::numeric_limits<int32_t>::max(), "paged pool: request {}: seq_len must be below 2^31, is {}", id, seq_len);
  for (const CacheGroupSpec& spec : groups_) {
    const size_t g = index_of(spec.group);
    const int64_t first_kept = first_kept_block(spec, first_new_position);
    const int64_t first_read = addressed_blocks(spec, seq_len - first_new_position, seq_len).begin;
    require(first_read >= r.first_live[g], "paged pool: request {}: {} pages before position {} were released, position {} needs block {}",
            id, to_string(spec.group), r.first_live[g] * spec.positions_per_page(), first_new_position, first_read);
    const auto have = static_cast<int64_t>(r.tables[g].size());
    const int64_t released = std::max<int64_t>(0, std::min(first_kept, have) - r.first_live[g]);
    const int64_t missing = std::max<int64_t>(0, spec.pages_for(seq_len) - std::max(have, first_kept));
    if (missing > pools_.at(spec.group).num_free() + released) return false;
  }
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
  return true;
}

void PagedPool::release_page(CacheGroup group, int32_t page) {
  pools_.at(group).release(page);
  if (!fill_) return;
  for (const LayerCaches& layer : layers_) {
    const PagedCache& cache = layer[group];
    if (!cache.present()) continue;
    device_->fill(static_cast<std::byte*>(cache.data) + page * cache.page_stride, *fill_, static_cast<size_t>(cache.page_stride), {});
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

std::span<const int32_t> PagedPool::block_table(int64_t id, CacheGroup group) const {
  const Request& r = request(id);
  require(pools_.contains(group), "paged pool: it has no group {}", to_string(group));
  return r.tables[index_of(group)];
}

BlockTables PagedPool::block_tables(int64_t id) const {
  const Request& r = request(id);
  BlockTables tables;
  std::copy(r.tables.begin(), r.tables.end(), tables.begin());
  return tables;
}

}  // namespace strata
