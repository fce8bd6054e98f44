// Cache groups: what an engine allocates for each layer, and how it passes its block tables. V4 specification 6 and 11.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "strata/kv_format.h"

namespace strata {

// A cache group: layers whose pages follow the same block table. Each layer has its own page storage; page numbers are shared.
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
// Number of enumerators of CacheGroup.
inline constexpr int64_t kNumCacheGroups = 9;
// The name of the enumerator: "c4_compressed".
std::string_view to_string(CacheGroup group);

// Geometry of a cache group. page_size and page_bytes are proposals. An engine may change them in a copy before it makes the pool and the
// builder, to the same values for all layers of a group: page_size >= 1, page_bytes at least page_payload_bytes.
// The fastest GPU kernels do not take every page_size; they take all multiples of 64 rows.
// A page is plain bytes: copying the pages of a prefix, of every group and layer, copies the prefix.
struct CacheGroupSpec {
  CacheGroup group = CacheGroup::window;  // which group this is
  KvFormat format = KvFormat::bf16;       // of every row
  int32_t row_dim = 0;                    // values per row
  int32_t page_size = 0;                  // rows per page
  int32_t ratio = 1;                      // positions per row: 1, 4 or 128
  int64_t page_bytes = 0;                 // bytes of one layer's padded page: the smallest page_stride
  int64_t retained = 0;                   // number of newest positions that must stay readable; 0: all
  // Query heads of each layer of the group on this rank; 0: unknown. BatchBuilder plans 128:1 and dense latent attention with it.
  int32_t num_query_heads = 0;
  // Positions that one block-table entry covers: page_size * ratio.
  int64_t positions_per_page() const { return int64_t{page_size} * ratio; }
  // Pages that a request of this many positions needs at once. With `retained`, at most ceil((retained + new tokens) /
  // positions_per_page()) + 1 of them are live.
  int64_t pages_for(int64_t positions) const { return (positions + positions_per_page() - 1) / positions_per_page(); }
};

// The caches of one layer, by group. Groups that the layer does not have are not present().
struct LayerCaches {
  std::array<PagedCache, kNumCacheGroups> caches{};  // by CacheGroup
  // The cache of a group.
  PagedCache& operator[](CacheGroup g) { return caches[static_cast<size_t>(g)]; }
  // The cache of a group.
  const PagedCache& operator[](CacheGroup g) const { return caches[static_cast<size_t>(g)]; }
};

// Block tables of one request, one per group; empty where the request has none. They are spans over an engine's own tables, which must not
// change until BatchBuilder::build returns, or come from PagedPool::block_tables.
// A pool's tables are valid for the request's state at that time. Once the request is extended or removed, or the pool is destroyed,
// build() refuses them without reading them.
class BlockTables {
 public:
  // Pages of the request in a group: entry i is the page of its block i.
  std::span<const int32_t>& operator[](CacheGroup g) { return tables_[static_cast<size_t>(g)]; }
  // Pages of the request in a group: entry i is the page of its block i.
  const std::span<const int32_t>& operator[](CacheGroup g) const { return tables_[static_cast<size_t>(g)]; }

  // The pool's id of the request; absent for an engine's own tables.
  [[nodiscard]] std::optional<int64_t> pool_request() const { return state_ ? std::optional(state_->id) : std::nullopt; }
  // "extended" or "removed" when that happened to the pool's request and made these tables invalid; null: the tables may be read.
  [[nodiscard]] const char* outdated() const {
    if (state_ == nullptr || state_->version == version_) return nullptr;
    return state_->version == kRemoved ? "removed" : "extended";
  }

 private:
  friend class PagedPool;
  static constexpr int64_t kRemoved = -1;
  // Shared with the pool; outlives the pool's request while tables of the request exist.
  struct State {
    int64_t id = 0;
    int64_t version = 0;  // counts the extensions
  };
  std::array<std::span<const int32_t>, kNumCacheGroups> tables_{};
  std::shared_ptr<const State> state_;
  int64_t version_ = 0;
};

}  // namespace strata
