// Launches of the Hopper decode kernels, each of which starts while the kernel in front of it runs and waits for it by itself; each pair of
// template arguments is instantiated in a file of its own.
#pragma once

#include "backends/cuda/sparse_attn_decode/sm90/config.h"
#include "strata/op.h"

namespace strata::cuda::sparse_decode {

// kHeads: those of a block. Rows of the caches, of q and of out start at multiples of 16 bytes here and below.
template <KvFormat kFormat, int kHeads>
void launch_decode(const DecodeArgs& args, int64_t num_tokens, const ExecutionContext& context);

// The pieces of a schedule, of V4.
template <int kHeads>
void launch_scheduled(const DecodeArgs& args, int64_t num_pieces, const ExecutionContext& context);

// Merges the parts that `attention_blocks` blocks of the kernel in front make.
void launch_combine(const DecodeArgs& args, int64_t num_tokens, int64_t attention_blocks, const ExecutionContext& context);

// Those of the tokens that the schedule has cut.
void launch_scheduled_combine(const DecodeArgs& args, const ExecutionContext& context);

// The blocks of a token's parts are a cluster and merge them: two or three of 64 heads, up to
// kMostClusterParts of 8 or 16 of V4. With more than kPortableCluster, behind allow_large_clusters.
template <KvFormat kFormat, int kHeads>
void launch_in_clusters(const DecodeArgs& args, int64_t num_tokens, const ExecutionContext& context);

// V4, 8 or 16 heads a block, rows not split: persistent blocks take the tokens round-robin.
template <int kHeads>
void launch_in_turn(const DecodeArgs& args, int64_t num_tokens, int64_t blocks, const ExecutionContext& context);

// Lets the current device have clusters of more than kPortableCluster blocks of few heads. How many of `blocks` run there at a time: maybe
// none.
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

extern template void launch_in_turn<8>(const DecodeArgs&, int64_t, int64_t, const ExecutionContext&);
extern template void launch_in_turn<16>(const DecodeArgs&, int64_t, int64_t, const ExecutionContext&);
extern template int64_t allow_large_clusters<KvFormat::fp8_ds_mla_v4, 8>(int64_t);
extern template int64_t allow_large_clusters<KvFormat::fp8_ds_mla_v4, 16>(int64_t);
extern template void launch_in_clusters<KvFormat::fp8_ds_mla_v4, 8>(const DecodeArgs&, int64_t, const ExecutionContext&);
extern template void launch_in_clusters<KvFormat::fp8_ds_mla_v4, 16>(const DecodeArgs&, int64_t, const ExecutionContext&);
extern template void launch_in_clusters<KvFormat::fp8_ds_mla_v4, 64>(const DecodeArgs&, int64_t, const ExecutionContext&);
extern template void launch_in_clusters<KvFormat::fp8_ds_mla, 64>(const DecodeArgs&, int64_t, const ExecutionContext&);

}  // namespace strata::cuda::sparse_decode
