// The measured rule behind PrefillMode::automatic, at its ends.
#include "cuda/cuda_fixture.h"
#include "ops/sparse_attention/prefill_choice.h"

namespace strata {
namespace {

using PrefillRule = test::CudaTest;

TEST_F(PrefillRule, FewTokensOfALongContextReadItsPages) {
  const DeviceProperties p = device_->properties();
  const bool hopper = p.compute_major == 9 && p.compute_minor == 0;
  PrefillWork work{.format = KvFormat::fp8_ds_mla_v4,
                   .num_tokens = 16,
                   .num_heads = 64,
                   .rows_per_token = 640,
                   .num_chunks = 1,
                   .gathered_rows = 262144};
  EXPECT_EQ(ops::paged_prefill_is_faster(work, *device_), hopper);
  work.format = KvFormat::bf16;
  EXPECT_FALSE(ops::paged_prefill_is_faster(work, *device_));
}

TEST_F(PrefillRule, LargeChunksAreGathered) {
  const PrefillWork work{.format = KvFormat::fp8_ds_mla_v4,
                         .num_tokens = 8192,
                         .num_heads = 128,
                         .rows_per_token = 1152,
                         .num_chunks = 1,
                         .gathered_rows = 16384};
  EXPECT_FALSE(ops::paged_prefill_is_faster(work, *device_));
}

}  // namespace
}  // namespace strata
