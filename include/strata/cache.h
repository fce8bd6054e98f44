// Cache groups: what an engine must allocate, and how it hands over its block tables. V4 specification 6 and 11.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "strata/kv_format.h"

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
inline constexpr int64_t kNumCacheGroups = 9;
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
  int64_t retained = 0;    // the newest positions, which must stay readable; 0: all
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

// Block tables of a request, one for each group; empty where it has none. Spans over an engine's own tables, which stay as they are until
// BatchBuilder::build returns, or those of PagedPool::block_tables. A pool's tables go by the request as it is then: once the request is
// extended or removed, and when the pool is gone, build() refuses them and reads none.
class BlockTables {
 public:
  std::span<const int32_t>& operator[](CacheGroup g) { return tables_[static_cast<size_t>(g)]; }
  const std::span<const int32_t>& operator[](CacheGroup g) const { return tables_[static_cast<size_t>(g)]; }

  // The pool's id of the request; absent for an engine's own tables.
  [[nodiscard]] std::optional<int64_t> pool_request() const { return state_ ? std::optional(state_->id) : std::nullopt; }
  // What has become of the pool's request, "extended" or "removed", where that makes these tables void; null: they may be read.
  [[nodiscard]] const char* outdated() const {
    if (state_ == nullptr || state_->version == version_) return nullptr;
    return state_->version == kRemoved ? "removed" : "extended";
  }

 private:
  friend class PagedPool;
  static constexpr int64_t kRemoved = -1;
  // Outlives the pool's request as long as tables of it exist.
  struct State {
    int64_t id = 0;
    int64_t version = 0;  // counts the extensions
  };
  std::array<std::span<const int32_t>, kNumCacheGroups> tables_{};
  std::shared_ptr<const State> state_;
  int64_t version_ = 0;
};

}  // namespace strata
