// The tile of the Hopper kernels of sparse_attn_decode, for the host's plan too.
#pragma once

namespace strata::cuda::sparse_decode {

inline constexpr int kHeadTile = 64;  // M of wgmma: the heads of one block
inline constexpr int kRowTile = 64;   // rows of one step
inline constexpr int kStages = 2;
// Parts of few heads that a cluster merges; and blocks of a cluster that every device with clusters takes.
inline constexpr int kMostClusterParts = 10, kPortableCluster = 8;

}  // namespace strata::cuda::sparse_decode
