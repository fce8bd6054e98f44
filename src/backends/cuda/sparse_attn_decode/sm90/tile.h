// The tile of the Hopper kernels of sparse_attn_decode, also for the host's plan.
#pragma once

namespace strata::cuda::sparse_decode {

inline constexpr int kHeadTile = 64;  // M of wgmma: heads of a CTA
inline constexpr int kRowTile = 64;   // rows of a tile
inline constexpr int kStages = 2;
// Largest number of splits of few heads that a cluster combines; largest cluster that every device with clusters can run.
inline constexpr int kMaxClusterSplits = 10, kPortableCluster = 8;

}  // namespace strata::cuda::sparse_decode
