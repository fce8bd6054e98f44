// The cache groups of a layer of any family.
#include "checkpoint/known_models.h"
#include "core/check.h"
#include "layers/forward_check.h"
#include "layers/layer_options_check.h"
#include "layers/mla_cache_groups.h"
#include "layers/v4_cache_groups.h"

namespace strata {

std::vector<CacheGroupSpec> cache_groups_of_layer(const ModelConfig& config, const LayerOptions& options, int64_t layer) {
  require_supported_model(config);
  check_layer_number(config, layer);
  check_layer_options(config, options);
  switch (config.family) {
    case ModelFamily::deepseek_v4: return v4_cache_groups(config, options, config.compress_ratio(layer));
    case ModelFamily::deepseek_mla: return mla_cache_groups(config, options, layer);
  }
  fail(ErrorCode::unsupported, "cache groups: model family {} has no layers here", static_cast<int>(config.family));
}

}  // namespace strata
