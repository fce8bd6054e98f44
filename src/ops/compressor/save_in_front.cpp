#include "ops/compressor/save_in_front.h"

#include <utility>

#include "ops/run_with.h"

namespace strata::ops {

std::vector<Implementation<CompressNormRopeStoreParams>> save_in_front(
    std::vector<Implementation<CompressNormRopeStoreParams>> compressions,
    const std::vector<Implementation<SavePartialStatesParams>>& saves) {
  return run_with(std::move(compressions), saves,
                  [](const auto& run, const auto& save, const CompressNormRopeStoreParams& p, const auto& context) {
                    if (p.kv_score.present()) save.run(saves_of(p), context);
                    run(p, context);
                  });
}

}  // namespace strata::ops
