#include "backends/opencl/attention/plan.h"

#include <algorithm>

namespace strata::opencl {
namespace {

constexpr int64_t kGroups = 512;  // as many as fill a large GPU
constexpr int64_t kMaxSplits = 128;
constexpr int64_t kMinTiles = 2;        // of a split
constexpr int64_t kFixedSplits = 8;     // of a batch-invariant call
constexpr int64_t kSlabSums = 1 << 15;  // heads of tokens and splits in the workspace of a batch-invariant call
constexpr int64_t kMatrixLocalBytes = 56 << 10;
constexpr int64_t kMostSubgroupItems = 16;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

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

TokenStride stride_of_tokens(const TensorView& v) { return {.entry = v.stride[0], .token = 0, .head = v.stride[1]}; }
TokenStride stride_of_entries(const TensorView& v) { return {.entry = v.stride[0], .token = v.stride[1], .head = v.stride[2]}; }

bool has_aligned_strides(const TokenStride& stride) {
  const auto is_multiple = [](int64_t elements) { return elements * 2 % 16 == 0; };
  return is_multiple(stride.entry) && is_multiple(stride.token) && is_multiple(stride.head);
}
bool is_aligned(const TensorView& v, const TokenStride& stride) { return address(v) % 16 == 0 && has_aligned_strides(stride); }

Support supports_matrix(const Capabilities& c, int64_t head_dim, const TokenStride& q) {
  if (head_dim != 512 && head_dim != 576) return Support::no("takes heads of 512 or 576 dimensions");
  if (!has_aligned_strides(q)) return Support::no("takes queries whose strides are multiples of 16 bytes");
  if (c.local_memory_bytes < kMatrixLocalBytes || c.max_group_items < kMatrixSubgroups * kMostSubgroupItems) {
    return Support::no("needs 56 KiB of local memory and work-groups of 256 items");
  }
  return Support::yes();
}
Support supports_matrix(const PagedCache& cache) {
  return !cache.present() || cache.page_stride % 16 == 0 ? Support::yes() : Support::no("takes pages that are multiples of 16 bytes apart");
}
bool is_aligned(const PagedCache& cache) { return !cache.present() || (address(cache.data) % 16 == 0 && cache.page_stride % 16 == 0); }

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
