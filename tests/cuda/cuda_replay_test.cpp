// DeepSeek's recorded runs on the GPU: one ragged batch, whole and chunked, with shuffled and poisoned pages. The bounds are those that
// golden_v4_test and golden_mla_test hold a CPU to. V3.2 is in golden_sparse_test.
#include "cuda/cuda_fixture.h"
#include "runner/replay.h"
#include "test_data.h"

namespace strata {
namespace {

using runner::ReplayOptions;
using runner::ReplayResult;

class CudaReplay : public test::CudaTest, public testing::WithParamInterface<int64_t> {
 protected:
  std::vector<ReplayResult> run(const std::string& model, ReplayOptions options) {
    options.chunk = GetParam();
    options.pad_tokens = options.chunk > 0 ? 5 : 0;
    options.shuffle_pages = true;
    options.poison = true;
    const std::string golden = test::golden_folder(model).string();
    const Checkpoint checkpoint(golden);
    const SafetensorsFile file(golden + "/cases.safetensors");
    return runner::replay(checkpoint, file, device_, default_ops(), default_layers(), options);
  }
};

TEST_P(CudaReplay, V4AgreesWithTheRecording) {
  ReplayOptions options;
  options.topk = runner::TopkSource::recorded;
  for (const std::string model : {"v4_bf16", "v4_fp8"}) {
    const auto results = run(model, options);
    EXPECT_EQ(results.size(), 9u);
    for (const ReplayResult& r : results) {
      SCOPED_TRACE(model + " layer " + std::to_string(r.layer) + " (" + r.kind + ") sequence " + std::to_string(r.sequence));
      const double factor = r.kind == "c4" ? 1.5 : 1.0;
      EXPECT_LE(r.out_error, factor * (model == "v4_fp8" ? 2e-2 : 1e-2));
      EXPECT_LE(r.q_error, factor * 6e-3);
      EXPECT_LE(r.attn_out_error, factor * 8e-3);
      EXPECT_GE(r.q_error, 0);
      EXPECT_GE(r.attn_out_error, 0);
    }
  }
}

TEST_P(CudaReplay, DenseMlaAgreesWithTheRecording) {
  for (const std::string model : {"mla_v2_lite", "mla_v3"}) {
    for (const MlaMode mode : {MlaMode::automatic, MlaMode::mha, MlaMode::mqa}) {
      ReplayOptions options;
      options.layer.mla_mode = mode;
      const auto results = run(model, options);
      EXPECT_EQ(results.size(), 3u);
      for (const ReplayResult& r : results) EXPECT_LE(r.out_error, 1.5e-2) << model << " mode " << int(mode) << " sequence " << r.sequence;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Chunks, CudaReplay, testing::Values(0, 64), [](const auto& p) { return p.param == 0 ? "whole" : "chunk64"; });

}  // namespace
}  // namespace strata
