// Logits of the lightning indexer on Hopper for many tokens of a request, fp8.
//
// Rows go from their page straight into registers, each 16-byte load to where it is used, a tile ahead. Three warpgroups work side by
// side on the same tiles for two tokens each (one of more than 64 heads), so that L1 gives two of three their rows; no barrier stands
// between tiles, and while one warpgroup is in its epilogue the others keep the tensor cores busy.
//
// 64 heads x 128, a cycle of an SM: the product of a tile takes 64 * 128 * 128 * 2 / 8192 = 256 cycles; the epilogue 64 maxima and
// 64 fused multiply-adds a thread, with shuffles, loads and addresses about 225 issue slots of each of the four schedulers. Shared memory
// delivers 64 of its 128 bytes a cycle (operand B), the L2 11 (8192 bytes for three tiles' products).
// Floor: 2 * 64 * 128 flops per (token, row) at about 1.6 PFLOP/s of fp8 in practice.
#pragma once

#include "backends/cuda/sm90/indexer/logits_common.cuh"

namespace strata::cuda::sm90 {

// The rows of a tile that a thread holds: 32 of the 128 bytes of rows r and r + 8, and the scale of the one that it writes.
struct KeyTile {
  uint4 row[2][2];
  float scale;
};

// Loads a request's tiles one after another, a page number ahead of them.
class KeyReader {
 public:
  __device__ KeyReader(const LogitsArgs& a, const int32_t* table, int tile, int end_tile)
      : a_(a), table_(table), block_(a.page_tiles.divide(tile)), last_block_(a.page_tiles.divide(end_tile - 1)) {
    const int lane = threadIdx.x % 32, quad = lane % 4, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    thread_row_ = row * kIndexerDim + quad * 16;
    thread_scale_ = (row + 8 * (quad & 1)) * 4;
    next_page_ = __ldg(table_ + block_);
    turn_page(tile - block_ * a.page_tiles.value());
  }

  __device__ void load(KeyTile& k) {
    constexpr int kEight = 8 * kIndexerDim;
    k.row[0][0] = __ldg(reinterpret_cast<const uint4*>(rows_));
    k.row[0][1] = __ldg(reinterpret_cast<const uint4*>(rows_ + 64));
    k.row[1][0] = __ldg(reinterpret_cast<const uint4*>(rows_ + kEight));
    k.row[1][1] = __ldg(reinterpret_cast<const uint4*>(rows_ + kEight + 64));
    k.scale = __ldg(reinterpret_cast<const float*>(scale_));
    if (--left_ == 0) {
      turn_page(0);
    } else {
      rows_ += kTileRows * kIndexerDim;
      scale_ += kTileRows * 4;
    }
  }

 private:
  __device__ void turn_page(int tile_of_page) {
    const uint8_t* const page = a_.cache + int64_t{next_page_} * a_.page_stride;
    rows_ = page + thread_row_ + tile_of_page * (kTileRows * kIndexerDim);
    scale_ = page + a_.scales_offset + thread_scale_ + tile_of_page * (kTileRows * 4);
    left_ = a_.page_tiles.value() - tile_of_page;
    block_ = min(block_ + 1, last_block_);
    next_page_ = __ldg(table_ + block_);
  }

  const LogitsArgs& a_;
  const int32_t* table_;
  int block_, last_block_;
  const uint8_t* rows_;
  const uint8_t* scale_;
  int next_page_, left_, thread_row_, thread_scale_;
};

// Tiles [tile, end) of one request. This thread's token has `rows` of it to write, from `out` on.
template <class Score, class LoadQueries>
__device__ __forceinline__ void score_tiles(const Score& scorer, const int32_t* table, int tile, int end, int rows, float* out,
                                            LoadQueries&& load_queries_once) {
  KeyReader reader(scorer.a, table, tile, end);
  KeyTile keys;
  reader.load(keys);
  load_queries_once();
  int row = tile * kTileRows + scorer.own_row();
  float* target = out + row;
  asm volatile("" : "+r"(rows));  // or it would be found out anew for every tile
  const auto zero = static_cast<uint32_t>(static_cast<uint64_t>(scorer.a.num_tokens) >> 63);
  uint32_t nothing = zero;
  for (int left = end - tile; left > 0; --left) {
    float sums[Score::kSums];
    scorer.multiply(sums, keys.row, nothing);
    const float scale = keys.scale;
    if (left > 1) reader.load(keys);
    ptx::wgmma_wait<0>();
    const float logit = scorer.weighted_sum(sums) * scale;
    if (row < rows) *target = logit;
    nothing = __float_as_uint(logit) & zero;
    row += kTileRows;
    target += kTileRows;
  }
}

template <int kHeads, int kTokens>
__global__ void __launch_bounds__(128 * kPrefillWarpgroups, 1) indexer_logits_prefill_kernel(const __grid_constant__ LogitsArgs a) {
  using Score = Scorer<kHeads, kTokens>;
  extern __shared__ uint8_t dynamic[];
  __shared__ WorkSearch searches[kPrefillWarpgroups];
  ptx::wait_for_previous_kernel();
  ptx::launch_dependents();

  const int warpgroup = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);  // the same in a warp, for the compiler too
  uint8_t* const shared = dynamic + (1024 - __cvta_generic_to_shared(dynamic) % 1024) % 1024;
  Score scorer(a, shared + warpgroup * Score::kQueryBytes);
  const int own = kTokens == 2 ? scorer.quad / 2 : 0;  // the token that this thread writes

  constexpr int kGroup = kTokens * kPrefillWarpgroups;
  WorkRange range = find_work<kGroup>(a, searches[warpgroup], warpgroup, blockIdx.x, gridDim.x);

  for (Tiles tiles; next_tiles<kGroup>(a, range, tiles);) {
    const int64_t token = tiles.group * kGroup + warpgroup * kTokens;
    int rows[kTokens];
    const int32_t* table[kTokens];
    bool one_request = true;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      rows[t] = scored_rows(a, token + t);
      table[t] = rows[t] > 0 ? a.block_table + a.token_to_req[token + t] * a.table_stride : nullptr;
      one_request = one_request && (table[t] == nullptr || table[0] == nullptr || table[t] == table[0]);
    }
    float* const out = a.logits + (token + own) * a.logits_stride;
    bool loaded = false;
    const auto load_queries_once = [&] {
      if (loaded) return;
      warpgroup_sync(warpgroup);  // the queries before have been used
      scorer.load_queries(token);
      scorer.prefetch_queries(token + kGroup);
      ptx::fence_proxy_async();
      warpgroup_sync(warpgroup);
      loaded = true;
    };
    // Both tokens at once where they are of one request, one after the other where not.
    for (int run = 0; run < (one_request ? 1 : kTokens); ++run) {
      // Of tokens of one request the first may be without candidates.
      const int t = one_request ? (table[0] != nullptr ? 0 : kTokens - 1) : run;
      const int32_t* const pages = t == 0 ? table[0] : table[kTokens - 1];
      const int longest = one_request ? max(rows[0], rows[kTokens - 1]) : t == 0 ? rows[0] : rows[kTokens - 1];
      const int mine = own == 0 ? rows[0] : rows[kTokens - 1];
      const int end = min(tiles.end, static_cast<int>((longest + int64_t{kTileRows} - 1) / kTileRows));
      if (tiles.begin >= end) continue;
      score_tiles(scorer, pages, tiles.begin, end, scorer.writes() && (one_request || run == own) ? mine : 0, out, load_queries_once);
    }
  }
}

}  // namespace strata::cuda::sm90
