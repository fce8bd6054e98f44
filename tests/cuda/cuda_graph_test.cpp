#include "layers/graph_tests.h"

namespace strata {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, DecodeGraph,
                         testing::ValuesIn(graph_cases({DeviceKind::cuda, 0}, {"v4_bf16", "v4_fp8", "v4_many_heads", "mla_v3", "mla_v32"})),
                         graph_case_name);

}  // namespace
}  // namespace strata
