// On Hopper the layers' attention and selections are done by Hopper's kernels, whatever the caches hold by default: a refusal that nobody
// meant is a layer that is slower, not one that fails.
#include <set>
#include <string>
#include <vector>

#include "cuda/cuda_fixture.h"
#include "testkit/harness/recorded_calls.h"
#include "testkit/cases/registry.h"

namespace strata {
namespace {

class LayerImplementations : public test::CudaTest {
 protected:
  std::vector<testkit::RecordedCall> calls_of(const std::string& name) const {
    testkit::CaseList list;
    testkit::add_layer_of(list, name);
    EXPECT_EQ(list.size(), 1u) << name;
    const testkit::Work work = list.at(0)->prepare(default_ops(), device_, "", {});
    EXPECT_TRUE(work.refusal.empty()) << work.refusal;
    return work.record();
  }
};

TEST_F(LayerImplementations, AttentionOnHopperIsHoppers) {
  const DeviceProperties p = device_->properties();
  if (p.compute_major != 9 || p.compute_minor != 0) GTEST_SKIP() << "needs compute capability 9.0";
  const std::set<std::string> ops{"sparse_attn_decode", "sparse_attn_prefill", "dense_attn_decode", "dense_attn_prefill", "indexer_topk"};
  std::set<std::string> seen;
  for (const char* name :
       {"v4-flash-c4-decode-b2-context4096", "v4-flash-c4-prefill-512-context4096", "v4-flash-c128-decode-b2-context4096",
        "v4-flash-window-decode-b2-context4096", "v4-flash-c4-decode-b2-context4096-bf16", "v4-flash-c4-decode-b2-context4096-tp8",
        "v3.2-decode-b2-context4096", "v3.2-decode-b2-context4096-fp8_ds_mla", "v3.2-decode-b2-context4096-tp8",
        "v3.2-prefill-512-context4096", "v3.2-prefill-512-context4096-fp8_ds_mla", "v3-decode-b2-context4096", "v3-prefill-512",
        "v3-prefill-512-beside2-context4096", "v3-decode-b2-context4096-fp8_tensor", "v3.2-decode-b2-context4096-fp8_tensor",
        "v4-flash-c4-decode-b2-context4096-fp8_tensor", "v2-lite-prefill-512", "v2-lite-decode-b2-context4096"}) {
    for (const testkit::RecordedCall& call : calls_of(name)) {
      if (!ops.contains(call.op)) continue;
      seen.insert(call.op);
      EXPECT_TRUE(call.implementation.starts_with("cuda/sm90")) << name << ": " << call.op << " by " << call.implementation;
    }
  }
  EXPECT_EQ(seen, ops);
}

}  // namespace
}  // namespace strata
