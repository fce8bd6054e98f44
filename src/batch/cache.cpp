#include "strata/cache.h"

namespace strata {

std::string_view to_string(CacheGroup group) {
  switch (group) {
    case CacheGroup::window: return "window";
    case CacheGroup::c4_compressed: return "c4_compressed";
    case CacheGroup::c4_indexer: return "c4_indexer";
    case CacheGroup::c4_state: return "c4_state";
    case CacheGroup::c4_indexer_state: return "c4_indexer_state";
    case CacheGroup::c128_compressed: return "c128_compressed";
    case CacheGroup::c128_state: return "c128_state";
    case CacheGroup::mla_latent: return "mla_latent";
    case CacheGroup::mla_indexer: return "mla_indexer";
  }
  return "unknown";
}

}  // namespace strata
