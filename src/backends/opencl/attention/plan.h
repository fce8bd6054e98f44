// Cuts a call of attention over shared rows into work-groups, by its shapes alone.
#pragma once

#include <algorithm>

#include "backends/opencl/attention/call.h"
#include "backends/opencl/runtime/opencl_device.h"

namespace strata::opencl {

// Each token's rows are cut into `splits`. A launch has at most slab_tokens tokens; the workspace holds their sums.
struct AttnPlan {
  int32_t splits = 1;
  int64_t slab_tokens = 0;
  int64_t workspace_bytes = 0;
};

struct AttnShape {
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t value_dim = 0;
  int64_t rows = 0;                 // per token, at most
  bool is_batch_invariant = false;  // splits depend on the token's own rows only
};
AttnPlan plan_attention(const AttnShape& shape);

// q and out are [tokens, heads, ...], or [entries, tokens, heads, ...] with statistics of [entries, heads, tokens]. sink, lse and
// max_logits may be absent.
struct AttnTensors {
  TensorView q, sink{}, out, lse{}, max_logits{};
  float scale = 0.0f;
};
// Sets everything but `work`.
RowAttention attention_of(const AttnTensors& tensors);

// The matrix kernels take 512 or 576 dimensions, and queries and rows at multiples of 16 bytes. supports_matrix checks shapes and strides.
// Addresses are known only when a call runs: if they are not aligned, the basic kernel runs instead.
Support supports_matrix(const Capabilities& capabilities, const TensorView& q);
Support supports_matrix(const PagedCache& cache);  // which may be absent
bool is_aligned(const PagedCache& cache);
// Module "op" has kernels "op_512", "op_576" and "op_any"; "op_xmx" has "op_512_xmx" and "op_576_xmx".
struct AttnKernels {
  std::string_view module, matrix_module;
  const char* names[3];
  const char* matrix_names[2];
};
KernelId kernel_of(const AttnKernels& kernels, Variant variant, int64_t head_dim, bool is_aligned);
size_t items_of(Variant variant);

// Launches kernel `id` over the call's tokens, and attention_combine if there are several splits. Sets call.attention.work.
template <class Call>
void launch_attention(const ExecutionContext& context, const KernelId& id, Call call, const AttnShape& shape) {
  const AttnPlan plan = plan_attention(shape);
  RowAttention& a = call.attention;
  a.work.head_tiles = static_cast<int32_t>((shape.heads + kAttnHeads - 1) / kAttnHeads);
  a.work.splits = plan.splits;
  a.work.sum_stride = static_cast<int32_t>((shape.value_dim + 7) / 8 * 8);
  for (int64_t first = 0; first < shape.tokens; first += plan.slab_tokens) {
    const int64_t tokens = std::min(plan.slab_tokens, shape.tokens - first), rows = tokens * shape.heads;
    a.work.first_token = first;
    a.work.sums = address(context.workspace.data);
    a.work.statistics = a.work.sums + static_cast<uint64_t>(rows * a.work.splits * a.work.sum_stride) * sizeof(float);
    launch(context, id, call,
           {.groups = {static_cast<size_t>(tokens * a.work.head_tiles), static_cast<size_t>(a.work.splits),
                       static_cast<size_t>((shape.value_dim + kAttnValues - 1) / kAttnValues)},
            .items = {items_of(id.variant), 1, 1}});
    if (a.work.splits > 1) {
      launch(context, {"attention_combine", Variant::basic, "attention_combine"}, a,
             {.groups = {static_cast<size_t>(rows), 1, 1}, .items = {kCombineItems, 1, 1}});
    }
  }
}

}  // namespace strata::opencl
