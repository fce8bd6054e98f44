// DeepSeek's recorded runs on the GPU: one ragged batch, chunked, with shuffled and poisoned pages.
#include "cuda/cuda_fixture.h"
#include "replay.h"

namespace strata {
namespace {

class CudaReplay : public test::CudaTest, public testing::WithParamInterface<const char*> {};

TEST_P(CudaReplay, AgreesWithTheRecording) {
  const std::string golden = std::string(STRATA_TEST_DATA) + "/golden/" + GetParam();
  const Checkpoint checkpoint(golden);
  const SafetensorsFile file(golden + "/cases.safetensors");
  for (const int64_t chunk : {0, 64}) {
    cases::ReplayOptions options;
    options.topk = std::string(GetParam()).starts_with("v4") ? cases::TopkSource::recorded : cases::TopkSource::own;
    options.chunk = chunk;
    options.shuffle_pages = true;
    options.poison = true;
    if (std::string(GetParam()) == "mla_v32") {  // as it was recorded
      options.layer.hadamard = true;
      options.layer.kv_format = KvFormat::fp8_ds_mla;
      options.layer.kv_scale_ue8m0 = true;
    }
    options.pad_tokens = chunk > 0 ? 5 : 0;
    const auto results = cases::replay(checkpoint, file, device_, default_ops(), default_layers(), options);
    EXPECT_FALSE(results.empty());
    for (const auto& r : results) EXPECT_LE(r.out_error, 5e-2) << "layer " << r.layer << " (" << r.kind << "), sequence " << r.sequence;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaReplay, testing::Values("v4_bf16", "v4_fp8", "mla_v2_lite", "mla_v3", "mla_v32"),
                         [](const auto& p) { return p.param; });

}  // namespace
}  // namespace strata
