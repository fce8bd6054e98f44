// Sparse decode attention on Hopper: 64 heads of one query token and a part of its rows in each block. Blocks of the same rows run side by
// side, so that the rows come from memory once and from L2 for each.
//
// Arithmetic of a tile of 64 rows and 64 heads, cycles of one SM (D = 512):
//   tensor cores   logits 64 x 64 x 512 and values the same, at 2048 fp16 FMA a cycle                             1024 + 1024 = 2048
//   shared memory  128 B a cycle: keys written 512; logits read keys 512 and queries 480; values read keys 512, weights 128  2144
//                  and on the same way rows from L2 to L1 and on to registers: measured                                      690
//   memory         64 x 584 B at a 132nd of 4.3 TB/s, 1.75 GHz                                                              2010
//   issue slots    dequantisation: 14336 conversions and as many packed products over 128 lanes                          224 + 112
//                  softmax: 4096 ex2 at 16 a cycle, products, maxima and sums                                             256 + 160
// Every resource is asked for 2048 cycles and more, so all of it has to overlap. Two producer warpgroups convert rows while two consumer
// warpgroups multiply, and one consumer is in the softmax of a tile while the other multiplies. A stage is given back by halves (value
// lanes 0..255 and the rest), because shared memory holds the queries and two tiles only: a tile's own consumer is the first to be done
// with its half, which is then filled first and begins the logits of the tile after next. Producers tell of each quarter that is filled.
//
// Stores of keys are ordinary, wgmma reads by the asynchronous proxy, and a proxy fence has to lie between them. It is the consumers': a
// producer arrives (release) behind its stores, a consumer waits (acquire) and has its fence before the product. That is a path of base
// causality order with a proxy fence along it, as PTX asks; who executes the fence is free. For the values of a tile, and for the other
// consumer, the path goes on through kWeightsReady, behind the same fence. A fence of the producers' waits for their loads in flight.
//
// Keys are fp16 values times 2^8 (config.h), exact for every scale from 2^-23, below what the cache's writer chooses. A row with a scale
// above 2^-1, a rotated lane of 224 and more or a NaN scale is noticed while it is converted; the block then finds the shift that fits
// all its rows and starts over. Lanes 2^29 below the block's largest lose bits then; a scale below 2^-23 rounds to steps of 2^-32.
//
// Reached on an H200 (2026-11-23): 1.88 us a tile, about 3350 cycles, in which the way to shared memory is busy 94 %; 1.48 us without the
// producers' work.
//
// Roles: warpgroups 0 and 1 logits and softmax of even and odd tiles, left and right values of all; 2 and 3 producers.
#pragma once

#include "backends/cuda/device/warpgroup.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/cluster_merge.cuh"
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
  const Seat<kCut> seat(a, kHeadTile);

  ptx::launch_dependents();
  if (!seat.exists()) return;
  prepare(shared);
  __syncthreads();
  bring_near<Shared>(a, seat);

  // Every role runs over the tiles, meets the others, and runs once more with another key shift if a value did not fit. A split without
  // rows has nothing to do.
  const int role = own_warpgroup();
  uint32_t phases = 0;
  if (role < 2) {
    NormOf<kFormat> norm(a, seat.token);
    ptx::wait_for_previous_kernel();
    const auto lengths = seat.lengths(a);
    load_queries(a, shared, seat.batch, seat.query, seat.first_head, norm);
    const TokenRows rows = seat.rows(a, lengths);
    const BlockTiles tiles = seat.tiles(rows);
    if (!seat.has_work(rows)) return;
    ptx::registers_grow<Shared::kRoom.consumer>();
    const float2 scale = {a.scale_log2 * shared.q_scale[accumulator_row()], a.scale_log2 * shared.q_scale[accumulator_row() + 8]};
    Sums sums;
    float2 factors;
    for (bool again = false;; again = true) {
      const float unshift = pow2(-shared.key_shift);
      SoftmaxState state;
      clear(sums);
      consume(shared, role, tiles.end - tiles.first, phases, {scale.x * unshift, scale.y * unshift}, state, sums);
      phases = phases_behind(phases, tiles.end - tiles.first);
      const float2 sinks = load_sinks(a, seat.first_head);
      give_end(shared, role, state);
      __syncthreads();
      if (again || shared.overflow == 0) {
        const auto store_part = [&](int row, float lse, float maximum) {
          if constexpr (kInCluster) {
            part_ends(shared)[row] = {lse, maximum, unshift, 0.0f};
          } else {
            store_part_head(a, part_index(a, seat.token, seat.split, seat.first_head + row), lse, maximum, unshift);
          }
        };
        factors = finish_softmax(a, shared, role, state, sinks, unshift, seat.token, seat.is_part(rows), seat.first_head, store_part);
        break;
      }
      __syncthreads();
    }
    turn_sums(shared, sums, factors, role, seat.is_part(rows));
    if (kInCluster && seat.is_part(rows)) {
      rows.has(2) ? merge_in_cluster<3>(a, shared, seat.token, seat.split, seat.first_head)
                  : merge_in_cluster<2>(a, shared, seat.token, seat.split, seat.first_head);
    } else {
      if (role == 1 && a.positions != nullptr && !seat.is_part(rows)) rotate_turned(shared);
      store_turned(a, shared, role, seat.token, seat.split, seat.is_part(rows), seat.first_head);
    }
  } else {
    ptx::registers_shrink<Shared::kRoom.producer>();
    ptx::wait_for_previous_kernel();
    if constexpr (kCut == Cut::scheduled) {
      const TokenRows rows = seat.expected(a);
      const BlockTiles tiles = seat.tiles(rows);
      share_list(a, shared, seat.batch, seat.query, rows, tiles.end);
      produce_all(a, shared, tiles.first, tiles.end, FirstSlots<kFormat>(shared.list, tiles.first));
    } else {
      // Slots are asked for together with lengths, as if every entry were looked at, and once more only if that is not so.
      const Lengths lengths = seat.lengths(a);
      const TokenRows every = seat.expected(a);
      const BlockTiles tiles_of_every = seat.tiles(every);
      FirstSlots<kFormat> slots(RowList(a, seat.batch, seat.query, every, tiles_of_every.end), tiles_of_every.first);
      const TokenRows rows = seat.rows(a, lengths);
      const BlockTiles tiles = seat.tiles(rows);
      if (!seat.has_work(rows)) return;
      share_list(a, shared, seat.batch, seat.query, rows, tiles.end);
      if (!every.are_of(a, lengths)) slots = FirstSlots<kFormat>(shared.list, tiles.first);
      produce_all(a, shared, tiles.first, tiles.end, slots);
    }
  }
}

}  // namespace strata::cuda::sparse_decode
