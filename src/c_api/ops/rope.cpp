#include "strata/c/ops/rope.h"

#include "c_api/op_call.h"

namespace strata::c_api {

static_assert(STRATA_ROPE_INTERLEAVED == static_cast<int32_t>(RopePairing::interleaved) &&
              STRATA_ROPE_HALF_SPLIT == static_cast<int32_t>(RopePairing::half_split));
static_assert(STRATA_ROPE_LAST == static_cast<int32_t>(RopeSlice::last) && STRATA_ROPE_FIRST == static_cast<int32_t>(RopeSlice::first));

STRATA_STRUCT(strata_rope_config, 72);
STRATA_STRUCT(strata_inverse_rope_params, 360);
STRATA_STRUCT(strata_inverse_rope_quant_params, 448);

InverseRopeParams to_params(const strata_inverse_rope_params& c, CallReader& in) {
  return {.o = in.view(c.o, "o"),
          .positions = in.view(c.positions, "positions"),
          .cos_sin = in.view(c.cos_sin, "cos_sin"),
          .out = in.view(c.out, "out")};
}

InverseRopeQuantParams to_params(const strata_inverse_rope_quant_params& c, CallReader& in) {
  return {.o = in.view(c.o, "o"),
          .positions = in.view(c.positions, "positions"),
          .cos_sin = in.view(c.cos_sin, "cos_sin"),
          .out = in.view(c.out, "out"),
          .scale = in.view(c.scale, "scale")};
}

namespace {

RopeConfig to_rope_config(const strata_rope_config* given) {
  const strata_rope_config c = read_struct(given, "config");
  return {.dim = c.dim,
          .theta = c.theta,
          .factor = c.factor,
          .original_max_position = c.original_max_position,
          .beta_fast = c.beta_fast,
          .beta_slow = c.beta_slow,
          .truncate = to_bool(c.truncate, "config.truncate"),
          .mscale_gain = c.mscale_gain};
}

}  // namespace
}  // namespace strata::c_api

STRATA_C_OP(inverse_rope);
STRATA_C_OP(inverse_rope_quant);

using namespace strata;
using namespace strata::c_api;

strata_status strata_rope_frequencies(const strata_rope_config* config, float* frequencies, int64_t count) noexcept {
  return guarded([&] {
    float& out = result(frequencies, "frequencies");
    const RopeConfig c = to_rope_config(config);
    require(count == c.dim / 2, "count: expected dim / 2 = {}, is {}", c.dim / 2, count);
    rope_frequencies(c, &out);
  });
}

strata_status strata_rope_table_build(strata_device device, const strata_rope_config* config, strata_tensor_view table) noexcept {
  return guarded([&] {
    const auto on = find(device);
    const RopeConfig c = to_rope_config(config);
    CallReader reader(on->id(), CallReader::Use::run);
    const TensorView out = reader.view(table, "table");
    ParamCheck check("rope table", on->id());
    check.view("table", out, DType::f32, {kAny, c.dim});
    check.contiguous("table", out);
    const Tensor made = build_rope_table(c, out.shape[0], on);
    on->copy(out.data, made.view().data, made.allocated_bytes(), Stream{});
    on->synchronize(Stream{});
  });
}
