// AMX tiles, one instruction per function. Tile numbers are template arguments because they are part of the instruction.
// Inline assembly instead of the compiler's intrinsics: with those of g++ 12 the compiler does not know that a tile load reads memory. It
// may then move the stores that prepare a tile after the load.
#pragma once

#include <cstdint>

namespace strata::cpu {

// Eight tiles of 16 rows x 64 bytes, unless `rows` is changed.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// Loading a configuration clears the tiles.
inline void amx_begin(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
inline void amx_begin() { amx_begin(TileConfig()); }
// Releases the tile state, so that context switches need not save it.
inline void amx_end() { asm volatile("tilerelease"); }

template <int kTile>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
// Tile rows are `stride` bytes apart.
template <int kTile>
inline void tile_load(const void* base, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(base), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void tile_store(void* base, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(base), "r"(stride), "i"(kTile) : "memory");
}
// C[m][n] += sum_p A[m][2p] B[p][2n] + A[m][2p+1] B[p][2n+1]: bf16 operands, fp32 sums, subnormals flushed. 16 cycles.
template <int kC, int kA, int kB>
inline void tile_dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}

}  // namespace strata::cpu
