// The tile of the Hopper kernels of sparse_attn_decode, for the host's plan too.
#pragma once

namespace strata::cuda::sparse_decode {

inline constexpr int kHeadTile = 64;  // M of wgmma: the heads of one block
inline constexpr int kRowTile = 64;   // rows of one step
inline constexpr int kStages = 2;

}  // namespace strata::cuda::sparse_decode
