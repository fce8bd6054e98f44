// Uses the installed library the way a stranger would: an op on the CPU, and an error.
#include <strata/attention.h>

#include <cstdio>

int main() {
  using namespace strata;
  const auto device = open_device(parse_device_id("cpu"));
  const OpSet ops = default_ops();
  const Tensor x(device, DType::bf16, {2, 4}), weight(device, DType::f32, {4});
  for (int i = 0; i < 8; ++i) x.view().ptr<Bf16>()[i].bits = 0x4000;  // 2.0
  for (int i = 0; i < 4; ++i) weight.view().ptr<float>()[i] = 1.0f;
  RmsNormPairParams params{.kv = x, .kv_weight = weight, .kv_out = x, .eps = 0.0f};
  Tensor workspace(device, DType::u8, {ops.rms_norm_pair.workspace_bytes(params, *device) + 1});
  ops.rms_norm_pair(params, {*device, {}, workspace_of(workspace)});
  if (x.view().ptr<Bf16>()[7].bits != 0x3F80) {  // 1.0
    std::puts("the norm of equal values must be 1");
    return 1;
  }
  try {
    params.kv_weight = {};
    ops.rms_norm_pair(params, {*device});
    return 1;
  } catch (const Error& error) {
    std::printf("strata works; and says what is wrong: %s\n", error.what());
  }
  return 0;
}
