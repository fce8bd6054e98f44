// "cuda/sm90_many_few": FP8 linear layers of many tokens and a few more, such as a chunk of a prompt together with decode requests. Whole
// tiles of tokens use the kernel for many, the remaining tokens the kernel for few, where the waves of tiles that they would add take
// longer than reading the weight once more (docs/kernels/linear.md).
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "backends/cuda/linear/call_views.h"
#include "backends/cuda/linear/few_tokens.h"
#include "backends/cuda/linear/impls.h"
#include "backends/cuda/linear/sm90/config.h"
#include "backends/cuda/linear/sm90/many/config.h"
#include "backends/cuda/runtime/cuda_device.h"
#include "core/ceil_div.h"

namespace strata::cuda {
namespace {

// With one pair of tiles of tokens the remaining tokens take as long as they save.
constexpr int64_t kMinMany = 2 * sm90::kManyCluster * sm90::kManyTokens;
// On an H200, seconds: per wave of tiles and 128 channels, and of the kernel for few tokens in addition to reading the weight.
constexpr double kBlockSeconds = 0.8e-6, kFewSeconds = 3e-6, kWeightBytesPerSecond = 4e12;

bool pays(const LinearWeight& w, int64_t tokens, int64_t few, int num_sms) {
  const int64_t rounds = sm90::TileWalk(tokens, w.n, 1).rounds(num_sms) - sm90::TileWalk(tokens - few, w.n, 1).rounds(num_sms);
  const double saved = static_cast<double>(rounds * ceil_div(w.k, int64_t{sm90::kManyBlock})) * kBlockSeconds;
  return saved > kFewSeconds + static_cast<double>(w.n * w.k) / kWeightBytesPerSecond;
}

class ManyAndFew {
 public:
  Support supports(const LinearParams& p, const Device& device) const {
    const int64_t tokens = p.x.shape[0], few = tokens % sm90::kManyTokens;
    if (few == 0 || tokens - few < kMinMany || few > sm90::kLinearMaxTokens) {
      return Support::no(fmt::format("needs 1 to {} tokens more than a multiple of {} of at least {}, got {}", sm90::kLinearMaxTokens,
                                     sm90::kManyTokens, kMinMany, tokens));
    }
    if (const Support s = many_.supports(shapes_of(p, tokens - few), device); !s) return Support::no("the first tokens: " + s.reason);
    if (const Support s = few_.supports(shapes_of(p, few), device); !s) return Support::no("the last tokens: " + s.reason);
    return Support::yes();
  }
  Support prefers(const LinearParams& p, const Device& device) const {
    const int64_t tokens = p.x.shape[0], few = tokens % sm90::kManyTokens;
    if (const Support s = many_.prefers(shapes_of(p, tokens - few), device); !s) return Support::no("the first tokens: " + s.reason);
    if (pays(*p.weight, tokens, few, capabilities(device).num_sms)) return Support::yes();
    return Support::no(fmt::format("the rounds of tiles that {} tokens would save take less time than another kernel", few));
  }
  size_t workspace_bytes(const LinearParams& p, const Device& device) const {
    return std::max(many_.workspace_bytes(p, device), few_.workspace_bytes(shapes_of(p, p.x.shape[0] % sm90::kManyTokens), device));
  }
  void run(const LinearParams& p, const ExecutionContext& context) const {
    const int64_t tokens = p.x.shape[0], few = tokens % sm90::kManyTokens;
    many_.run(tokens_of(p, 0, tokens - few), context);
    few_.run(tokens_of(p, tokens - few, few), context);
  }

 private:
  Implementation<LinearParams> many_ = many_tokens_linear();
  FewTokens few_;
};

}  // namespace

Implementation<LinearParams> many_and_few_tokens_linear() {
  const auto op = std::make_shared<ManyAndFew>();
  Implementation<LinearParams> impl;
  impl.name = "cuda/sm90_many_few";
  impl.supports = [op](const LinearParams& p, const Device& device) { return op->supports(p, device); };
  impl.prefers = [op](const LinearParams& p, const Device& device) { return op->prefers(p, device); };
  impl.workspace_bytes = [op](const LinearParams& p, const Device& device) { return op->workspace_bytes(p, device); };
  impl.run = [op](const LinearParams& p, const ExecutionContext& context) { op->run(p, context); };
  return impl;
}

}  // namespace strata::cuda
