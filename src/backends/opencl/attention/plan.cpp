#include "backends/opencl/attention/plan.h"

#include <algorithm>

#include "backends/opencl/runtime/alignment.h"
#include "core/ceil_div.h"

namespace strata::opencl {
namespace {

constexpr int64_t kGroups = 512;  // enough to fill a large GPU
constexpr int64_t kMaxSplits = 128;
constexpr int64_t kMinTiles = 2;        // per split
constexpr int64_t kFixedSplits = 8;     // in batch-invariant calls
constexpr int64_t kSlabSums = 1 << 15;  // tokens * heads * splits of a slab of a batch-invariant call, at most
constexpr int64_t kMatrixLocalBytes = 56 << 10;
constexpr int64_t kMostSubgroupItems = 16;

}  // namespace

AttnPlan plan_attention(const AttnShape& s) {
  const int64_t bytes = (ceil_div(s.value_dim, 8) * 8 + 2) * static_cast<int64_t>(sizeof(float));
  if (s.tokens == 0) return {};
  if (s.is_batch_invariant) {
    const int64_t slab = std::min(s.tokens, std::max<int64_t>(1, kSlabSums / (s.heads * kFixedSplits)));
    return {.splits = kFixedSplits, .slab_tokens = slab, .workspace_bytes = slab * s.heads * kFixedSplits * bytes};
  }
  const int64_t most = std::clamp<int64_t>(ceil_div(s.rows, kMinTiles * kAttnRows), 1, kMaxSplits);
  const int64_t splits = std::clamp<int64_t>(kGroups / (s.tokens * ceil_div(s.heads, kAttnHeads)), 1, most);
  // An upper bound that does not shrink with more tokens, unlike the number of splits.
  const int64_t sums = most == 1 ? 0 : std::min(s.tokens * s.heads * most, kGroups * kAttnHeads);
  return {.splits = static_cast<int32_t>(splits), .slab_tokens = s.tokens, .workspace_bytes = sums * bytes};
}

namespace {

// Strides of [tokens, heads, ...] or [entries, tokens, heads, ...]; 0 for an absent view.
TokenStride stride_of(const TensorView& v, bool has_entries) {
  return has_entries ? TokenStride{.entry = v.stride[0], .token = v.stride[1], .head = v.stride[2]}
                     : TokenStride{.entry = v.stride[0], .token = 0, .head = v.stride[1]};
}
// Strides of [tokens, heads] or [entries, heads, tokens].
TokenStride stride_of_statistics(const TensorView& v, bool has_entries) {
  return has_entries ? TokenStride{.entry = v.stride[0], .token = v.stride[2], .head = v.stride[1]} : stride_of(v, false);
}

bool has_aligned_strides(const TokenStride& stride) {
  const auto is_multiple = [](int64_t elements) { return elements * 2 % 16 == 0; };
  return is_multiple(stride.entry) && is_multiple(stride.token) && is_multiple(stride.head);
}
bool is_aligned(const TensorView& v, const TokenStride& stride) { return address(v) % 16 == 0 && has_aligned_strides(stride); }

}  // namespace

RowAttention attention_of(const AttnTensors& t) {
  const bool has_entries = t.q.rank == 4;
  const int heads = has_entries ? 2 : 1;
  const TokenStride q = stride_of(t.q, has_entries), out = stride_of(t.out, has_entries);
  return {.q = address(t.q),
          .sink = address(t.sink),
          .out = address(t.out),
          .lse = address(t.lse),
          .max_logits = address(t.max_logits),
          .q_stride = q,
          .out_stride = out,
          .lse_stride = stride_of_statistics(t.lse, has_entries),
          .max_stride = stride_of_statistics(t.max_logits, has_entries),
          .queries = has_entries ? static_cast<int32_t>(t.q.shape[1]) : 1,
          .num_heads = static_cast<int32_t>(t.q.shape[heads]),
          .head_dim = static_cast<int32_t>(t.q.shape[heads + 1]),
          .value_dim = static_cast<int32_t>(t.out.shape[heads + 1]),
          .is_q_aligned = is_aligned(t.q, q),
          .is_out_aligned = is_aligned(t.out, out),
          .scale = t.scale,
          .work = {}};
}

Support supports_matrix(const Capabilities& c, const TensorView& q) {
  const int64_t head_dim = q.shape[q.rank - 1];
  if (head_dim != 512 && head_dim != 576) return Support::no("takes heads of 512 or 576 dimensions");
  if (!has_aligned_strides(stride_of(q, q.rank == 4))) return Support::no("takes queries whose strides are multiples of 16 bytes");
  if (c.local_memory_bytes < kMatrixLocalBytes || c.max_group_items < kMatrixSubgroups * kMostSubgroupItems) {
    return Support::no("needs 56 KiB of local memory and work-groups of 256 items");
  }
  return Support::yes();
}
Support supports_matrix(const PagedCache& cache) {
  return !cache.present() || cache.page_stride % 16 == 0 ? Support::yes() : Support::no("takes pages that are multiples of 16 bytes apart");
}
bool is_aligned(const PagedCache& cache) { return !cache.present() || pages_begin_at(cache, 16); }

KernelId kernel_of(const AttnKernels& k, Variant variant, int64_t head_dim, bool is_aligned) {
  const size_t width = head_dim == 512 ? 0 : head_dim == 576 ? 1 : 2;
  const bool is_matrix = variant != Variant::basic && is_aligned && width < 2;
  if (is_matrix) return {k.matrix_module, variant, k.matrix_names[width]};
  return {k.module, Variant::basic, k.names[width]};
}
size_t items_of(Variant variant) {
  switch (variant) {
    case Variant::xmx8:
    case Variant::xmx_emulated8: return kMatrixSubgroups * 8;
    case Variant::xmx16:
    case Variant::xmx_emulated16: return kMatrixSubgroups * 16;
    default: return kAttnItems;
  }
}

}  // namespace strata::opencl
