// Sparse decode attention on Hopper. Each CTA computes 64 heads of one query token over one split of the token's rows. CTAs of the same
// rows run concurrently, so that rows come from memory once and then from L2.
//
// Arithmetic of a tile of 64 rows and 64 heads, cycles of one SM (D = 512):
//   tensor cores   logits 64 x 64 x 512 and values the same, at 2048 fp16 FMA a cycle                             1024 + 1024 = 2048
//   shared memory  128 B a cycle: keys written 512; logits read keys 512 and queries 480; values read keys 512, weights 128  2144
//                  and on the same way rows from L2 to L1 and on to registers: measured                                      690
//   memory         64 x 584 B at a 132nd of 4.3 TB/s, 1.75 GHz                                                              2010
//   issue slots    dequantisation: 14336 conversions and as many packed products over 128 lanes                          224 + 112
//                  softmax: 4096 ex2 at 16 a cycle, products, maxima and sums                                             256 + 160
// Every resource is busy for 2048 cycles and more, so all of this must overlap. Two producer warpgroups convert rows while two consumer
// warpgroups multiply. One consumer runs the softmax of a tile while the other multiplies. Stages are released by halves (value dimensions
// 0..255, and the rest), because shared memory holds the queries and only two tiles. A tile's own consumer finishes its half first; that
// half is refilled first and starts the logits of the tile after next. Producers signal each quarter that is filled.
//
// Keys are stored by ordinary stores, and wgmma reads through the async proxy, so a proxy fence must lie between. The consumers execute it:
// a producer arrives (release) after its stores; a consumer waits (acquire) and fences before the product. This is a path of base causality
// order with a proxy fence on it, as PTX requires; any thread may execute the fence. For the values of a tile, and for the other consumer,
// the path continues through kWeightsReady after the same fence. A fence in the producers would wait for their loads in flight.
//
// Keys are fp16 values times 2^8 (config.h). This is exact for scales from 2^-23, less than the cache's writer ever writes. Conversion
// detects scales above 2^-1, rotary values of 224 and more, and NaN scales. The CTA then finds the shift that fits all its rows and starts
// over. Values 2^29 below the CTA's largest then lose bits; a scale below 2^-23 rounds to steps of 2^-32.
//
// Reached on an H200 (2026-11-23): 1.88 us a tile, about 3350 cycles, of which the shared-memory path is busy 94 %. Without the producers'
// work: 1.48 us.
//
// Roles: warpgroups 0 and 1: logits and softmax of even and odd tiles, left and right value dimensions of all tiles. 2 and 3: producers.
#pragma once

#include "backends/cuda/device/warpgroup.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/cluster_combine.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/consumer.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/early_start.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/epilogue.cuh"

namespace strata::cuda::sparse_decode {

template <KvFormat kFormat, Cut kCut>
__global__ void __launch_bounds__(kThreads, 1) sparse_decode_kernel(const __grid_constant__ DecodeArgs a) {
  constexpr bool kInCluster = kCut == Cut::in_cluster;
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  using Shared = SharedMemory<kFormat, kHeadTile>;
  auto& shared = *reinterpret_cast<Shared*>(shared_bytes);
  const CtaWork<kCut> work(a, kHeadTile);

  ptx::launch_dependents();
  if (!work.exists()) return;
  prepare(shared);
  __syncthreads();
  prefetch_inputs<Shared>(a, work);

  // Every role runs over the tiles and then meets at __syncthreads. If a value did not fit, all run again with another key shift. Splits
  // without rows return.
  const int role = own_warpgroup();
  uint32_t phases = 0;
  if (role < 2) {
    NormOf<kFormat> norm(a, work.token);
    ptx::wait_for_previous_kernel();
    const auto lengths = work.lengths(a);
    load_queries(a, shared, work.batch, work.query, work.first_head, norm);
    const TokenRows rows = work.rows(a, lengths);
    const BlockTiles tiles = work.tiles(rows);
    if (!work.has_work(rows)) return;
    ptx::registers_grow<Shared::kRoom.consumer>();
    const float2 scale = {a.scale_log2 * shared.q_scale[accumulator_row()], a.scale_log2 * shared.q_scale[accumulator_row() + 8]};
    Sums sums;
    float2 factors;
    for (bool again = false;; again = true) {
      const float unshift = pow2(-shared.key_shift);
      SoftmaxState state;
      clear(sums);
      consume(shared, role, tiles.end - tiles.first, phases, {scale.x * unshift, scale.y * unshift}, state, sums);
      phases = phases_after(phases, tiles.end - tiles.first);
      const float2 sinks = load_sinks(a, work.first_head);
      publish_end(shared, role, state);
      __syncthreads();
      if (again || shared.overflow == 0) {
        const auto store_split = [&](int row, float lse, float maximum) {
          if constexpr (kInCluster) {
            split_ends(shared)[row] = {lse, maximum, unshift, 0.0f};
          } else {
            store_split_head(a, split_index(a, work.token, work.split, work.first_head + row), lse, maximum, unshift);
          }
        };
        factors = finish_softmax(a, shared, role, state, sinks, unshift, work.token, work.is_split(rows), work.first_head, store_split);
        break;
      }
      __syncthreads();
    }
    transpose_sums(shared, sums, factors, role, work.is_split(rows));
    if (kInCluster && work.is_split(rows)) {
      rows.has(2) ? combine_in_cluster<3>(a, shared, work.token, work.split, work.first_head)
                  : combine_in_cluster<2>(a, shared, work.token, work.split, work.first_head);
    } else {
      if (role == 1 && a.positions != nullptr && !work.is_split(rows)) rotate_transposed(shared);
      store_transposed(a, shared, role, work.token, work.split, work.is_split(rows), work.first_head);
    }
  } else {
    ptx::registers_shrink<Shared::kRoom.producer>();
    ptx::wait_for_previous_kernel();
    if constexpr (kCut == Cut::scheduled) {
      const TokenRows rows = work.expected(a);
      const BlockTiles tiles = work.tiles(rows);
      share_list(a, shared, work.batch, work.query, rows, tiles.end);
      produce_all(a, shared, tiles.first, tiles.end, FirstSlots<kFormat>(shared.list, tiles.first));
    } else {
      // Slots are loaded together with the lengths, as if every entry were inside them, and reloaded only if that is wrong.
      const Lengths lengths = work.lengths(a);
      const TokenRows every = work.expected(a);
      const BlockTiles tiles_of_every = work.tiles(every);
      FirstSlots<kFormat> slots(RowList(a, work.batch, work.query, every, tiles_of_every.end), tiles_of_every.first);
      const TokenRows rows = work.rows(a, lengths);
      const BlockTiles tiles = work.tiles(rows);
      if (!work.has_work(rows)) return;
      share_list(a, shared, work.batch, work.query, rows, tiles.end);
      if (!every.are_of(a, lengths)) slots = FirstSlots<kFormat>(shared.list, tiles.first);
      produce_all(a, shared, tiles.first, tiles.end, slots);
    }
  }
}

}  // namespace strata::cuda::sparse_decode
