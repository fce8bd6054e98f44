#include "ops/batch_invariance_tests.h"

namespace strata {
namespace {

constexpr DeviceId kCuda{DeviceKind::cuda, 0};
constexpr auto kV4 = KvFormat::fp8_ds_mla_v4, kMla = KvFormat::fp8_ds_mla;
INSTANTIATE_TEST_SUITE_P(Shapes, DecodeInvariance,
                         testing::Values(DecodeShape{kCuda, 8, 1, 128, 512, kV4}, DecodeShape{kCuda, 24, 1, 128, 512, kV4},
                                         DecodeShape{kCuda, 64, 1, 128, 0, kV4}, DecodeShape{kCuda, 64, 1, 128, 512, kV4},
                                         DecodeShape{kCuda, 64, 3, 128, 4500, kV4}, DecodeShape{kCuda, 128, 1, 128, 1024, kV4},
                                         DecodeShape{kCuda, 128, 2, 2048, 0, kMla}, DecodeShape{kCuda, 16, 1, 5000, 0, kMla}),
                         decode_shape_name);
// Otherwise tokens that are left after whole rounds of SMs are cut. Of few rows, many tokens have both tiles of heads done by one block.
INSTANTIATE_TEST_SUITE_P(Shapes, PrefillInvariance,
                         testing::Values(PrefillShape{kCuda, 140, 700, 66, 512, 100}, PrefillShape{kCuda, 140, 700, 66, 512, 450},
                                         PrefillShape{kCuda, 140, 700, 66, 576, 450}),
                         prefill_shape_name);

}  // namespace
}  // namespace strata
