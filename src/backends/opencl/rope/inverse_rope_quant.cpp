#include "backends/opencl/opencl_ops.h"
#include "backends/opencl/rope/rope_runs.h"

namespace strata::opencl {
namespace {

Support supports(const InverseRopeQuantParams& p, const Capabilities&) { return supports_token(p.o); }

void run(const InverseRopeQuantParams& p, Variant variant, const ExecutionContext& context) {
  const int64_t dim = p.o.shape[2], rotary = p.cos_sin.shape[1];
  const InverseRopeQuantCall call{
      .o = address(p.o),
      .out = address(p.out),
      .scale = address(p.scale),
      .positions = address(p.positions),
      .cos_sin = address(p.cos_sin),
      .o_stride = {p.o.stride[0], p.o.stride[1]},
      .table_stride = p.cos_sin.stride[0],
      .runs = rope_runs(p.o, p.cos_sin, (dim - rotary) / kRopeValues, dim / kRopeValues),
      .is_wide = rotary % kRopeValues == 0 && rows_begin_at(p.o, 16) && rows_begin_at(p.cos_sin, 16) && address(p.out) % kRopeValues == 0};
  launch(context, {"rope", variant, "inverse_rope_quant"}, call, range_of(call.runs, kRopeQuantItems));
}

}  // namespace

std::vector<Implementation<InverseRopeQuantParams>> inverse_rope_quant() {
  return {implementation<InverseRopeQuantParams>(Flavour::basic, {.supports = supports, .run = run})};
}

}  // namespace strata::opencl
