// Launches of the Hopper decode kernels. Each kernel starts before the preceding kernel has finished, and waits for it by itself. Each pair
// of template arguments is instantiated in its own file.
#pragma once

#include "backends/cuda/sparse_attn_decode/sm90/config.h"
#include "strata/op.h"

namespace strata::cuda::sparse_decode {

// kHeads: heads of a CTA. Rows of the caches, of q and of out are 16-byte aligned, here and below.
template <KvFormat kFormat, int kHeads>
void launch_decode(const DecodeArgs& args, int64_t num_tokens, const ExecutionContext& context);

// The work items of a schedule, V4 only.
template <int kHeads>
void launch_scheduled(const DecodeArgs& args, int64_t num_work_items, const ExecutionContext& context);

// Combines the splits that `attention_blocks` CTAs of the preceding kernel write.
void launch_combine(const DecodeArgs& args, int64_t num_tokens, int64_t attention_blocks, const ExecutionContext& context);

// Combines the splits of the tokens that the schedule has cut.
void launch_scheduled_combine(const DecodeArgs& args, const ExecutionContext& context);

// The CTAs of a token's splits form a cluster and combine them: two or three CTAs of 64 heads, or (V4) up to kMaxClusterSplits of 8 or 16
// heads. More than kPortableCluster require allow_large_clusters first.
template <KvFormat kFormat, int kHeads>
void launch_in_clusters(const DecodeArgs& args, int64_t num_tokens, const ExecutionContext& context);

// V4, 8 or 16 heads per CTA, rows not split: a persistent kernel whose CTAs process tokens round-robin.
template <int kHeads>
void launch_persistent(const DecodeArgs& args, int64_t num_tokens, int64_t blocks, const ExecutionContext& context);

// Allows clusters of more than kPortableCluster CTAs of few heads on the current device. Returns how many clusters of `blocks` CTAs can run
// there at once, which may be 0.
template <KvFormat kFormat, int kHeads>
int64_t allow_large_clusters(int64_t blocks);

extern template void launch_decode<KvFormat::fp8_ds_mla_v4, 8>(const DecodeArgs&, int64_t, const ExecutionContext&);
extern template void launch_decode<KvFormat::fp8_ds_mla_v4, 16>(const DecodeArgs&, int64_t, const ExecutionContext&);
extern template void launch_decode<KvFormat::fp8_ds_mla_v4, 32>(const DecodeArgs&, int64_t, const ExecutionContext&);
extern template void launch_decode<KvFormat::fp8_ds_mla_v4, 64>(const DecodeArgs&, int64_t, const ExecutionContext&);
extern template void launch_decode<KvFormat::fp8_ds_mla, 8>(const DecodeArgs&, int64_t, const ExecutionContext&);
extern template void launch_decode<KvFormat::fp8_ds_mla, 16>(const DecodeArgs&, int64_t, const ExecutionContext&);
extern template void launch_decode<KvFormat::fp8_ds_mla, 32>(const DecodeArgs&, int64_t, const ExecutionContext&);
extern template void launch_decode<KvFormat::fp8_ds_mla, 64>(const DecodeArgs&, int64_t, const ExecutionContext&);

extern template void launch_scheduled<8>(const DecodeArgs&, int64_t, const ExecutionContext&);
extern template void launch_scheduled<16>(const DecodeArgs&, int64_t, const ExecutionContext&);
extern template void launch_scheduled<32>(const DecodeArgs&, int64_t, const ExecutionContext&);
extern template void launch_scheduled<64>(const DecodeArgs&, int64_t, const ExecutionContext&);

extern template void launch_persistent<8>(const DecodeArgs&, int64_t, int64_t, const ExecutionContext&);
extern template void launch_persistent<16>(const DecodeArgs&, int64_t, int64_t, const ExecutionContext&);
extern template int64_t allow_large_clusters<KvFormat::fp8_ds_mla_v4, 8>(int64_t);
extern template int64_t allow_large_clusters<KvFormat::fp8_ds_mla_v4, 16>(int64_t);
extern template void launch_in_clusters<KvFormat::fp8_ds_mla_v4, 8>(const DecodeArgs&, int64_t, const ExecutionContext&);
extern template void launch_in_clusters<KvFormat::fp8_ds_mla_v4, 16>(const DecodeArgs&, int64_t, const ExecutionContext&);
extern template void launch_in_clusters<KvFormat::fp8_ds_mla_v4, 64>(const DecodeArgs&, int64_t, const ExecutionContext&);
extern template void launch_in_clusters<KvFormat::fp8_ds_mla, 64>(const DecodeArgs&, int64_t, const ExecutionContext&);

}  // namespace strata::cuda::sparse_decode
