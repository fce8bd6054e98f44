// What an engine must allocate, and a small page allocator for those without an engine. V4 specification 6 and 11.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "strata/kv_format.h"
#include "strata/tensor.h"

namespace strata {

// A cache group: layers whose pages follow the same block table. Each layer has page storage of its own; page numbers are shared.
enum class CacheGroup : uint8_t {
  window,            // sliding-window keys of every V4 layer
  c4_compressed,     // 4:1 compressed keys
  c4_indexer,        // indexer keys of 4:1 layers
  c4_state,          // compressor state of 4:1 layers
  c4_indexer_state,  // indexer compressor state of 4:1 layers
  c128_compressed,   // 128:1 compressed keys
  c128_state,        // compressor state of 128:1 layers
  mla_latent,        // latent rows of MLA layers
  mla_indexer,       // indexer keys of V3.2 layers
};
inline constexpr size_t kNumCacheGroups = 9;
std::string_view to_string(CacheGroup group);

// page_size and page_bytes are a proposal: an engine with pages of its own changes them in a copy before the pool and the builder are made,
// alike for all layers of a group: page_size >= 1, page_bytes at least page_payload_bytes. Some sizes keep a GPU from its fastest kernels
// (multiples of 64 rows do not). A page is bytes: copying the pages of a prefix, of every group and layer, copies the prefix.
struct CacheGroupSpec {
  CacheGroup group = CacheGroup::window;
  KvFormat format = KvFormat::bf16;
  int32_t row_dim = 0;
  int32_t page_size = 0;   // rows of a page
  int32_t ratio = 1;       // positions per row: 1, 4 or 128
  int64_t page_bytes = 0;  // padded page of one layer: the smallest page_stride
  int64_t retained = 0;    // positions that must stay readable behind the newest token; 0: all
  // Query heads of each of the group's layers, on this rank; 0: not said. BatchBuilder shares out 128:1 and dense latent attention by it.
  int32_t num_query_heads = 0;
  // Positions that one block-table entry covers: page_size * ratio.
  int64_t positions_per_page() const { return int64_t{page_size} * ratio; }
  // Pages that a request of this many positions needs at once (with `retained`, at most ceil((retained + new tokens) / span) + 1 live).
  int64_t pages_for(int64_t positions) const { return (positions + positions_per_page() - 1) / positions_per_page(); }
};

// The caches of one layer, by group; groups that the layer does not have are not present().
struct LayerCaches {
  std::array<PagedCache, kNumCacheGroups> caches{};
  PagedCache& operator[](CacheGroup g) { return caches[static_cast<size_t>(g)]; }
  const PagedCache& operator[](CacheGroup g) const { return caches[static_cast<size_t>(g)]; }
};

// A request's block table of each group; empty where it has none.
using BlockTables = std::array<std::span<const int32_t>, kNumCacheGroups>;

// Page numbers of one group, handed out lowest first so that runs are repeatable.
class PagePool {
 public:
  explicit PagePool(int64_t num_pages);
  int64_t num_pages() const { return num_pages_; }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  // -1 when none is free.
  int32_t allocate();
  // Throws invalid_argument for a page that is not allocated.
  void release(int32_t page);

 private:
  int64_t num_pages_;
  std::vector<int32_t> free_;  // a heap, smallest on top
  std::vector<bool> allocated_;
};

// Page storage for a set of layers and the block tables of their requests; every page belongs to one request. Not for several threads at
// once. Pages change hands on the host: steps that use them must follow one another on their streams in the order of the calls here.
class PagedPool {
 public:
  // `layer_groups[l]` are the groups of layer l; all layers with a group share its spec. pages[g] is the number of pages of group g.
  // Storage is not initialised. For tests: `fill` is the byte that it starts with and that released pages are overwritten with, on the
  // device's default stream (0xFF: NaN in every format), so that reading what nobody wrote, or what is gone, shows.
  PagedPool(std::shared_ptr<Device> device, std::vector<std::vector<CacheGroupSpec>> layer_groups,
            const std::map<CacheGroup, int64_t>& pages, std::optional<uint8_t> fill = {});

  const std::vector<CacheGroupSpec>& groups() const { return groups_; }  // every group once
  std::vector<int64_t> num_pages() const;                                // of each of groups()
  const LayerCaches& layer(size_t l) const;                              // throws invalid_argument past the last
  size_t allocated_bytes() const { return allocated_bytes_; }
  int64_t free_pages(CacheGroup group) const;

  // Request ids are the caller's. Throws invalid_argument for a known id.
  void add_request(int64_t id);
  // Makes sure that positions [0, seq_len) that are still needed have pages, releasing pages that fell out of a group's window given
  // that all tokens before `first_new_position` are computed: those wholly before first_new_position - retained. All or nothing: returns
  // false, and changes nothing, when pages are missing. Going back (rejected draft tokens) is fine while the pages that the new first
  // position reads are still there; throws invalid_argument otherwise.
  bool extend(int64_t id, int64_t first_new_position, int64_t seq_len);
  // Frees every page of the request.
  void remove_request(int64_t id);
  // Page of block i of the request; entries that were released are 0 (never addressed again).
  std::span<const int32_t> block_table(int64_t id, CacheGroup group) const;
  // Those of every group, as BatchRequest takes them. Like the one above good until the request is extended or removed.
  BlockTables block_tables(int64_t id) const;

 private:
  struct Request {
    std::array<std::vector<int32_t>, kNumCacheGroups> tables;
    std::array<int64_t, kNumCacheGroups> first_live{};  // blocks before it were released
  };
  void add_storage(size_t layer, const CacheGroupSpec& spec, const std::map<CacheGroup, int64_t>& pages);
  Request& request(int64_t id);
  const Request& request(int64_t id) const;
  void release_page(CacheGroup group, int32_t page);

  std::shared_ptr<Device> device_;
  std::optional<uint8_t> fill_;
  std::vector<CacheGroupSpec> groups_;
  std::vector<LayerCaches> layers_;
  std::vector<Tensor> storage_;
  std::map<CacheGroup, PagePool> pools_;
  std::map<int64_t, Request> requests_;
  size_t allocated_bytes_ = 0;
};

}  // namespace strata
