#include "ops/compressor/save_in_front.h"

namespace strata::ops {

std::vector<Implementation<CompressNormRopeStoreParams>> save_in_front(
    std::vector<Implementation<CompressNormRopeStoreParams>> compressions,
    const std::vector<Implementation<SavePartialStatesParams>>& saves) {
  if (saves.empty()) return compressions;
  for (Implementation<CompressNormRopeStoreParams>& compression : compressions) {
    compression.run = [run = compression.run, save = saves.front()](const CompressNormRopeStoreParams& p, const ExecutionContext& context) {
      if (p.kv_score.present()) save.run(saves_of(p), context);
      run(p, context);
    };
  }
  return compressions;
}

}  // namespace strata::ops
