#include "backends/opencl/opencl_ops.h"
#include "backends/opencl/rope/rope_runs.h"

namespace strata::opencl {
namespace {

Support supports(const InverseRopeParams& p, const Capabilities&) { return supports_token(p.o); }

void run(const InverseRopeParams& p, Variant variant, const ExecutionContext& context) {
  const int64_t dim = p.o.shape[2], rotary = p.cos_sin.shape[1];
  const bool is_wide = dim % kRopeValues == 0 && rotary % kRopeValues == 0 && rows_begin_at(p.o, 16) && rows_begin_at(p.out, 16) &&
                       rows_begin_at(p.cos_sin, 16);
  const bool in_place = p.o.data == p.out.data && p.o.stride == p.out.stride;
  const int64_t values = is_wide ? kRopeValues : 2, plain_runs = in_place ? 0 : ceil_div(dim - rotary, values);
  const InverseRopeCall call{.o = address(p.o),
                             .out = address(p.out),
                             .positions = address(p.positions),
                             .cos_sin = address(p.cos_sin),
                             .o_stride = {p.o.stride[0], p.o.stride[1]},
                             .out_stride = {p.out.stride[0], p.out.stride[1]},
                             .table_stride = p.cos_sin.stride[0],
                             .runs = rope_runs(p.o, p.cos_sin, plain_runs, plain_runs + rotary / values)};
  launch(context, {"rope", variant, is_wide ? "inverse_rope" : "inverse_rope_pairs"}, call, range_of(call.runs, kRopeItems));
}

}  // namespace

std::vector<Implementation<InverseRopeParams>> inverse_rope() {
  return {implementation<InverseRopeParams>(Flavour::basic, {.supports = supports, .run = run})};
}

}  // namespace strata::opencl
