#include <fmt/format.h>

#include <vector>

#include "backends/opencl/dense_attn_prefill/call.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/opencl/runtime/alignment.h"
#include "backends/opencl/runtime/implementation.h"

namespace strata::opencl {
namespace {

// Whether all runs of 8 elements of the rows of [tokens, heads, ...] or [tokens, ...] begin at multiples of 16 bytes.
bool has_aligned_runs(const TensorView& v) {
  for (int32_t i = 0; i + 1 < v.rank; ++i) {
    if (v.stride[static_cast<size_t>(i)] % 8 != 0) return false;
  }
  return address(v) % 16 == 0;
}

struct Work {
  DenseAttnPrefillCall call{};
  size_t groups = 0;  // slots of all heads
};

Work work_of(const DenseAttnPrefillParams& p) {
  const bool has_starts = p.query_start_loc.present();
  const int64_t requests = has_starts ? p.query_start_loc.shape[0] - 1 : 1;
  const int64_t slots = p.q.shape[0] == 0 ? 0 : p.q.shape[0] / kPrefillQueries + requests;
  const DenseAttnPrefillCall call{.q = address(p.q),
                                  .k_nope = address(p.k_nope),
                                  .k_pe = address(p.k_pe),
                                  .v = address(p.v),
                                  .out = address(p.out),
                                  .lse = address(p.lse),
                                  .query_start = address(p.query_start_loc),
                                  .key_start = address(p.key_start_loc),
                                  .q_token = p.q.stride[0],
                                  .q_head = p.q.stride[1],
                                  .k_token = p.k_nope.stride[0],
                                  .k_head = p.k_nope.stride[1],
                                  .pe_token = p.k_pe.stride[0],
                                  .v_token = p.v.stride[0],
                                  .v_head = p.v.stride[1],
                                  .out_token = p.out.stride[0],
                                  .out_head = p.out.stride[1],
                                  .lse_token = p.lse.stride[0],
                                  .num_queries = p.q.shape[0],
                                  .num_keys = p.k_nope.shape[0],
                                  .num_requests = static_cast<int32_t>(requests),
                                  .slots = static_cast<int32_t>(slots),
                                  .nope = static_cast<int32_t>(p.k_nope.shape[2]),
                                  .rotary = static_cast<int32_t>(p.k_pe.shape[1]),
                                  .value = static_cast<int32_t>(p.v.shape[2]),
                                  .is_causal = p.causal,
                                  .is_out_f32 = p.out.dtype == DType::f32,
                                  .scale = p.softmax_scale};
  return {call, static_cast<size_t>(slots * p.q.shape[1])};
}

void run(const DenseAttnPrefillParams& p, Variant variant, const ExecutionContext& context) {
  const int64_t nope = p.k_nope.shape[2], value = p.v.shape[2];
  const Work work = work_of(p);
  bool is_aligned = nope % 8 == 0 && p.k_pe.shape[1] % 8 == 0 && value % 8 == 0;
  for (const TensorView* v : {&p.q, &p.k_nope, &p.k_pe, &p.v, &p.out}) is_aligned = is_aligned && has_aligned_runs(*v);
  const char* kernel = is_aligned ? "dense_attn_prefill_aligned" : "dense_attn_prefill_any";
  launch(
      context, {"dense_attn_prefill", variant, kernel}, work.call,
      {.groups = {work.groups, static_cast<size_t>((value + kPrefillColumns - 1) / kPrefillColumns), 1}, .items = {kPrefillItems, 1, 1}});
}

// The views that the matrix kernel accesses in units of 4 bytes.
std::vector<TensorView> paired_views(const DenseAttnPrefillParams& p) {
  std::vector<TensorView> views{p.q, p.k_nope, p.k_pe, p.v};
  if (p.out.dtype == DType::bf16) views.push_back(p.out);
  return views;
}

Support supports_matrix(const DenseAttnPrefillParams& p, const Capabilities&) {
  const int64_t nope = p.k_nope.shape[2], rotary = p.k_pe.shape[1], value = p.v.shape[2];
  if (nope != kPrefillNope || rotary != kPrefillRotary || value != kPrefillValue) {
    return Support::no(fmt::format("needs 128 + 64 key dimensions and 128 value dimensions, has {} + {} and {}", nope, rotary, value));
  }
  for (TensorView& v : paired_views(p)) {
    v.data = nullptr;  // unknown when a plan is made
    if (!rows_begin_at(v, 4)) return Support::no("needs rows at multiples of 4 bytes");
  }
  return Support::yes();
}

void run_matrix(const DenseAttnPrefillParams& p, Variant variant, const ExecutionContext& context) {
  for (const TensorView& v : paired_views(p)) {
    if (!rows_begin_at(v, 4)) return run(p, Variant::basic, context);
  }
  const Work work = work_of(p);
  const int items = kPrefillRowGroups * kPrefillColumnGroups * capabilities(context.device).subgroup_size;
  launch(context, {"dense_attn_prefill_xmx", variant, "dense_attn_prefill_xmx"}, work.call,
         {.groups = {work.groups, 1, 1}, .items = {static_cast<size_t>(items), 1, 1}});
}

}  // namespace

std::vector<Implementation<DenseAttnPrefillParams>> dense_attn_prefill() {
  return with_matrix<DenseAttnPrefillParams>({.run = run}, {.supports = supports_matrix, .run = run_matrix});
}

}  // namespace strata::opencl
