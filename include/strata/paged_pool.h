// A small page allocator for callers without an engine: pages, block tables, prefixes that requests share. V4 specification 11.
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

// Page numbers of one group, handed out lowest first so that runs are repeatable. A page is free when its last holder has released it.
class PagePool {
 public:
  explicit PagePool(int64_t num_pages);
  int64_t num_pages() const { return static_cast<int64_t>(holders_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  // A page with one holder; -1 when none is free.
  [[nodiscard]] int32_t allocate();
  // One holder more. This, release() and holders() throw invalid_argument for a page that does not exist; the first two for a free one.
  void share(int32_t page);
  // One holder less; true when the page is free now.
  bool release(int32_t page);
  int32_t holders(int32_t page) const;  // 0: free

 private:
  int32_t& holders_of(const char* what, int32_t page);

  std::vector<int32_t> free_;  // a heap, smallest on top
  std::vector<int32_t> holders_;
};

// The first positions of a request whose pages another request takes too.
struct SharedPrefix {
  int64_t request = 0;
  int64_t positions = 0;
};

// Page storage for a set of layers and the block tables of their requests. Not for several threads at once. Pages change hands on the host:
// steps that use them must follow one another on their streams in the order of the calls here.
//
// Requests may share a prefix (add_request with SharedPrefix): its pages are counted, and free when the last request that has them gives
// them back. Only whole pages of every group are shared, multiples of prefix_granularity() positions: 256 for V4's groups, 64 for MLA's.
// The first position after them begins a new page in every group, so no request writes to a page that others read, and none is ever
// copied. Of a sliding group the pages that the next token reads are shared, which the first request must still have: share before it has
// moved on, in V4 by more than 3 positions. A prefix that outlives its requests is a request of its own, made at the prefix's end and never
// extended.
class PagedPool {
 public:
  // `layer_groups[l]` are the groups of layer l; all layers with a group share its spec. pages[g] is the number of pages of group g.
  // Storage is not initialised. For tests: `fill` is the byte that it starts with and that freed pages are overwritten with, on the
  // device's default stream (0xFF: NaN in every format), so that reading what nobody wrote, or what is gone, shows.
  PagedPool(std::shared_ptr<Device> device, std::vector<std::vector<CacheGroupSpec>> layer_groups,
            const std::map<CacheGroup, int64_t>& pages, std::optional<uint8_t> fill = {});

  const std::vector<CacheGroupSpec>& groups() const { return groups_; }  // every group once
  std::vector<int64_t> num_pages() const;                                // of each of groups()
  int64_t num_layers() const { return static_cast<int64_t>(layers_.size()); }
  const LayerCaches& layer(int64_t l) const;  // throws invalid_argument for a layer that does not exist
  [[nodiscard]] int64_t allocated_bytes() const { return allocated_bytes_; }
  [[nodiscard]] int64_t free_pages(CacheGroup group) const;

  // Request ids are the caller's. Throws invalid_argument for a known id.
  void add_request(int64_t id);
  // The new request begins with the first positions of another one, as computed; takes no free page. Throws invalid_argument naming the
  // group, what it must be and what it is: positions that are no positive multiple of prefix_granularity(), more than the other request
  // has computed (mark_computed() after the step, or the first_new_position of the last extend()), or whose sliding pages it has released.
  void add_request(int64_t id, SharedPrefix prefix);
  // The least common multiple of the positions that a page of each group covers.
  [[nodiscard]] int64_t prefix_granularity() const { return prefix_granularity_; }

  // Makes sure that positions [0, seq_len) that are still needed have pages, releasing pages that fell out of a group's window given
  // that all tokens before `first_new_position` are computed: those wholly before first_new_position - retained. All or nothing: returns
  // false, and changes nothing, when pages are missing. Going back (rejected draft tokens) is fine while the pages that the new first
  // position reads are still there, and no position that is computed anew is in a page that other requests have too; throws
  // invalid_argument otherwise.
  [[nodiscard]] bool extend(int64_t id, int64_t first_new_position, int64_t seq_len);
  // Positions [0, positions) are computed: extend(id, positions, positions) of a request that has pages for them all, which never refuses.
  void mark_computed(int64_t id, int64_t positions);
  // Releases every page of the request.
  void remove_request(int64_t id);

  // Of every group, as BatchRequest takes them, until the request is extended or removed: BatchBuilder refuses them then.
  [[nodiscard]] BlockTables block_tables(int64_t id) const;
  // A copy of one: page of block i of the request. Blocks before first_block() have none; their entries are 0 and never addressed.
  [[nodiscard]] std::vector<int32_t> block_table(int64_t id, CacheGroup group) const;
  [[nodiscard]] int64_t first_block(int64_t id, CacheGroup group) const;

 private:
  struct Request {
    explicit Request(int64_t id) : state(std::make_shared<BlockTables::State>(BlockTables::State{.id = id})) {}
    ~Request() { state->version = BlockTables::kRemoved; }
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    std::array<std::vector<int32_t>, kNumCacheGroups> tables;
    std::array<int64_t, kNumCacheGroups> first_live{};  // blocks before it were released
    int64_t computed = 0;                               // positions, as the last extend() said
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
