// A small page allocator for callers without an engine: pages, block tables, shared prefixes. V4 specification 11.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "strata/cache.h"
#include "strata/tensor.h"

namespace strata {

// Page numbers of one group, allocated lowest first so that runs are repeatable. Pages are reference-counted by holders; a page without
// holders is free. Not thread-safe.
class PagePool {
 public:
  // Pages [0, num_pages), all free.
  explicit PagePool(int64_t num_pages);
  // All pages, free or not.
  int64_t num_pages() const { return static_cast<int64_t>(holders_.size()); }
  // Pages without a holder.
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  // Returns a page with one holder; -1 when no page is free.
  [[nodiscard]] int32_t allocate();
  // Adds a holder. share(), release() and holders() throw invalid_argument for a page that does not exist. share() and release() also throw
  // it for a free page.
  void share(int32_t page);
  // Removes a holder; true when the page is now free.
  bool release(int32_t page);
  int32_t holders(int32_t page) const;  // number of holders; 0: free

 private:
  int32_t& holders_of(const char* what, int32_t page);

  std::vector<int32_t> free_;  // a heap, smallest on top
  std::vector<int32_t> holders_;
};

// The first `positions` positions of `request`, whose pages another request shares.
struct SharedPrefix {
  int64_t request = 0;    // its id
  int64_t positions = 0;  // a positive multiple of PagedPool::prefix_granularity()
};

// Page storage for a set of layers, and the block tables of their requests. Not thread-safe. The host assigns pages at the time of the
// call: steps that use them must run on their streams in the order of the calls here.
// Requests may share a prefix (add_request with SharedPrefix). Its pages are reference-counted and become free when the last request
// releases them. Only whole pages of every group are shared: multiples of prefix_granularity() positions, 256 for V4's groups, 64 for
// MLA's. The first position after the prefix begins a new page in every group, so no request writes to a page that others read, and no page
// is ever copied.
// Of a sliding group, the pages that the next token reads are shared, so the first request must still hold them. Share before that request
// has advanced, in V4 by more than 3 positions. A prefix that outlives its requests is a request of its own, made at the prefix's end and
// never extended.
class PagedPool {
 public:
  // `layer_groups[l]`: the groups of layer l; all layers of a group have the same spec. pages[g]: pages of group g. Storage is
  // uninitialised.
  // For tests: `fill` is a byte that initialises the storage and overwrites freed pages, on the device's default stream (0xFF is NaN in
  // every format). Reads of rows that were never written or were freed then show.
  // Throws invalid_argument for specs that differ between layers of a group and for a group without a number of pages; out_of_memory.
  PagedPool(std::shared_ptr<Device> device, std::vector<std::vector<CacheGroupSpec>> layer_groups,
            const std::map<CacheGroup, int64_t>& pages, std::optional<uint8_t> fill = {});

  const std::vector<CacheGroupSpec>& groups() const { return groups_; }  // every group once
  std::vector<int64_t> num_pages() const;                                // one for each of groups()
  // Number of layers.
  int64_t num_layers() const { return static_cast<int64_t>(layers_.size()); }
  const LayerCaches& layer(int64_t l) const;  // caches of layer l; throws invalid_argument for a layer that does not exist
  // Bytes of all pages of all layers.
  [[nodiscard]] int64_t allocated_bytes() const { return allocated_bytes_; }
  // Free pages of a group. Throws invalid_argument for a group that the pool does not have.
  [[nodiscard]] int64_t free_pages(CacheGroup group) const;

  // The caller chooses request ids. Throws invalid_argument for an id in use.
  void add_request(int64_t id);
  // Adds a request that begins with the first positions of another one, already computed. Takes no free page. Throws invalid_argument,
  // naming the group, the expected and the actual value, for positions that are not a positive multiple of prefix_granularity(), that the
  // other request has not computed, or whose sliding pages it has released. Computed: by mark_computed() after the step, or up to
  // first_new_position of the last extend().
  void add_request(int64_t id, SharedPrefix prefix);
  // Least common multiple of the positions per page of all groups.
  [[nodiscard]] int64_t prefix_granularity() const { return prefix_granularity_; }

  // Allocates pages for all positions of [0, seq_len) that are still needed. Releases pages outside a group's window, given that all
  // positions before `first_new_position` are computed: pages wholly before first_new_position - retained.
  // Returns false, and changes nothing, when there are too few free pages.
  // A smaller first_new_position than before (rejected draft tokens) is allowed under two conditions: the pages that the new first position
  // reads are still held, and no recomputed position is in a page shared with another request. Otherwise throws invalid_argument.
  [[nodiscard]] bool extend(int64_t id, int64_t first_new_position, int64_t seq_len);
  // Marks positions [0, positions) as computed: extend(id, positions, positions) for a request that has pages for all of them, which cannot
  // fail.
  void mark_computed(int64_t id, int64_t positions);
  // Releases every page of the request.
  void remove_request(int64_t id);

  // Block tables of every group, as BatchRequest takes them. Valid until the request is extended or removed; BatchBuilder then refuses
  // them.
  [[nodiscard]] BlockTables block_tables(int64_t id) const;
  // A copy of one block table: entry i is the page of the request's block i. Entries before first_block() are 0 and have no page.
  [[nodiscard]] std::vector<int32_t> block_table(int64_t id, CacheGroup group) const;
  // The first block that has a page; all blocks of a sliding group before it were released.
  [[nodiscard]] int64_t first_block(int64_t id, CacheGroup group) const;

 private:
  struct Request {
    explicit Request(int64_t id) : state(std::make_shared<BlockTables::State>(BlockTables::State{.id = id})) {}
    ~Request() { state->version = BlockTables::kRemoved; }
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    std::array<std::vector<int32_t>, kNumCacheGroups> tables;
    std::array<int64_t, kNumCacheGroups> first_live{};  // blocks before it were released
    int64_t computed = 0;                               // positions, as passed to the last extend()
    std::shared_ptr<BlockTables::State> state;          // shared with the block tables that were handed out
  };
  void add_storage(int64_t layer, const CacheGroupSpec& spec, const std::map<CacheGroup, int64_t>& pages);
  Request& request(int64_t id);
  const Request& request(int64_t id) const;
  void check_extend(int64_t id, int64_t first_new_position, int64_t seq_len) const;
  bool has_room(const Request& request, int64_t first_new_position, int64_t seq_len) const;
  void release_page(CacheGroup group, int32_t page);

  std::shared_ptr<Device> device_;
  std::optional<uint8_t> fill_;
  std::vector<CacheGroupSpec> groups_;
  int64_t prefix_granularity_ = 1;
  std::vector<LayerCaches> layers_;
  std::vector<Tensor> storage_;
  std::map<CacheGroup, PagePool> pools_;
  std::map<int64_t, Request> requests_;
  int64_t allocated_bytes_ = 0;
};

}  // namespace strata
