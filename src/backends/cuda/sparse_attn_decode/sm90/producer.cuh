// The producers of the Hopper decode kernel: two warpgroups that load cache rows, convert them to fp16 and store them to shared memory.
// This file has the loop for rows of fp8_ds_mla_v4, mla_producer.cuh that for fp8_ds_mla.
//
// A row is read by ordinary 16-byte loads, four lanes per 64 e4m3 values of one scale, one tile after the prefetch that brought the row to
// L2. e4m3 -> fp16 is one exact instruction per pair; the scale is one packed product. Eight lanes (two neighbouring rows, four even or odd
// 16-byte units) hit all banks of the swizzled tile: 512 cycles of stores for 64 rows, the floor.
#pragma once

#include <cuda_fp16.h>

#include <type_traits>

#include "backends/cuda/device/warp_barrier.cuh"
#include "backends/cuda/ptx/convert.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/ptx/warpgroup.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/mla_producer.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/next_weights.cuh"

namespace strata::cuda::sparse_decode {

// One half of a row of fp8_ds_mla_v4: quantisation blocks of 64 e4m3 values, and in the right half the 64 bf16 rotary values.
template <int kHalf>
struct HalfRow {
  static constexpr int kFirstChunk = kHalf * kLeftChunks;
  static constexpr bool kRope = kHalf == 1;
  static constexpr int kBlocks = kRope ? 3 : 4;
  static constexpr int kUnits = kBlocks + (kRope ? 2 : 0);
};

// A thread's loads of one row, as in memory.
template <int kHalf>
struct RawRow {
  using Half = HalfRow<kHalf>;
  uint4 units[Half::kUnits];
  uint32_t scales;  // four ue8m0 bytes
  bool attended;

  // `row`: address of this thread's quarter. A 128-byte line holds two of a row's 64-byte groups: the second load hits in L1.
  __device__ __forceinline__ void load(int i, uint64_t row, const ThreadPosition& position) {
    const auto* p = reinterpret_cast<const uint8_t*>(row + offset(i, position));
    units[i] = ptx::ld_quad_if(attended, p);
  }
  static __device__ __forceinline__ int offset(int i, const ThreadPosition& position) {
    return i < Half::kBlocks ? (Half::kFirstChunk + i) * kChunkDims : kV4NopeDim + 64 * ((i - Half::kBlocks) ^ (position.row() & 1));
  }
};

// A row's scales, of both halves.
__device__ __forceinline__ uint2 load_scales(bool attended, const uint8_t* p) {
  constexpr uint32_t kNeutral = 0x70707070u;  // 2^-15 each; any finite scale works, because the values are zero
  return ptx::ld_pair_if(attended, p, kNeutral);
}

// True when every scale byte is in 105 .. 126: with the usual shift the scale is a normal fp16 and products stay below 2^16.
__device__ __forceinline__ bool usual_scales(uint32_t bytes) {
  constexpr uint32_t kTops = 0x80808080u;
  return (((bytes + 0x01010101u) | bytes) & kTops) == 0 && (((bytes | kTops) - 0x69696969u) & kTops) == kTops;
}
// 2^(byte i of `bytes` - 127 + 8) as an fp16 pair, for usual scales: the byte minus 104 is the exponent field.
__device__ __forceinline__ uint32_t usual_scale(uint32_t bytes, int i) {
  return __byte_perm((bytes - 0x68686868u) << 2, 0, 0x0404u | static_cast<uint32_t>(i) << 4 | static_cast<uint32_t>(i) << 12);
}
static_assert(kUsualKeyShift == 8);
constexpr uint32_t kInfinities = 0x7C007C00u;  // an fp16 pair

// Converts a thread's loads and stores them; after(i) is called after load i. `largest`: running maximum of the rotary values' magnitudes,
// two fp16. It exceeds kLargestKey when a value may not fit fp16, because key_factor = 2^key_shift is too large.
template <int kHalf, class After>
__device__ __forceinline__ void store_row(const RawRow<kHalf>& raw, const ThreadPosition& position, float key_factor, uint32_t half_tile,
                                          uint32_t& largest, const After& after) {
  using Half = HalfRow<kHalf>;
  const auto store_values = [&](int i, uint4 first, uint4 second) {
    ptx::st_shared(half_tile + i * kChunkBytes + position.values, first);
    ptx::st_shared(half_tile + i * kChunkBytes + (position.values ^ 16), second);
  };
  const uint32_t bytes = Half::kBlocks == 4 ? raw.scales : raw.scales & 0x00FFFFFFu | 0x70000000u;
  const bool usual = usual_scales(bytes) && key_factor == pow2(kUsualKeyShift);
  uint32_t scales[Half::kBlocks];
#pragma unroll
  for (int i = 0; i < Half::kBlocks; ++i) scales[i] = usual_scale(bytes, i);
  if (!usual) {
#pragma unroll
    for (int i = 0; i < Half::kBlocks; ++i) {
      // 2^(byte - 127). The NaN byte becomes an infinity here, and NaN by the second product.
      const float power = __uint_as_float((bytes >> (8 * i) & 0xFFu) << 23);
      const float scale = fmaf(power, key_factor, __fmul_rn(power, 0.0f));
      scales[i] = ptx::cvt_f16x2(scale, scale);
      if (!(scale <= 128.0f)) largest = kInfinities;
    }
  }
#pragma unroll
  for (int i = 0; i < Half::kBlocks; ++i) {
    const uint4 v = raw.units[i];
    store_values(i, scaled_e4m3(v.x, v.y, as_half2(scales[i])), scaled_e4m3(v.z, v.w, as_half2(scales[i])));
    after(i);
  }
  if constexpr (Half::kRope) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 v = raw.units[Half::kBlocks + i];
      const uint4 f = bf16_to_f16(v, key_factor);
      const __half2 larger = __hmax2(as_half2(largest), __hmax2(__hmax2(__habs2(as_half2(f.x)), __habs2(as_half2(f.y))),
                                                                __hmax2(__habs2(as_half2(f.z)), __habs2(as_half2(f.w)))));
      largest = *reinterpret_cast<const uint32_t*>(&larger);
      asm volatile("" : "+r"(largest));  // one register, not two of 16 bits each
      ptx::st_shared(half_tile + Half::kBlocks * kChunkBytes + (position.rotated ^ 64 * i), f);
      after(Half::kBlocks + i);
    }
  }
}

// Initialises the barriers and the producers' results; one thread, before anything else.
template <class Shared>
__device__ __forceinline__ void prepare(Shared& shared) {
  if (threadIdx.x > 0) return;
  for (int stage = 0; stage < kStages; ++stage) {
    for (int half = 0; half < kHalves; ++half) {
      for (uint64_t& fill : shared.full[stage][half]) ptx::mbarrier_init(ptx::shared_address(&fill), kProducerThreads / 32 * kWarpArrivals);
      ptx::mbarrier_init(ptx::shared_address(&shared.empty[stage][half]), kWarpgroup / 32 * kWarpArrivals);
    }
  }
  shared.overflow = 0;
  shared.key_shift = kUsualKeyShift;
  ptx::fence_mbarrier_init();
}

// Converts this thread's values of half of a tile.
template <int kHalf, class Shared, class After>
__device__ __forceinline__ void fill(Shared& shared, const RawRow<kHalf>& raw, uint32_t stage, uint32_t parity,
                                     const ThreadPosition& position, float key_factor, uint32_t& largest, const After& after) {
  ptx::mbarrier_wait(ptx::shared_address(&shared.empty[stage][kHalf]), parity ^ 1u);
  constexpr int kFirstChunk = HalfRow<kHalf>::kFirstChunk;
  store_row(raw, position, key_factor, ptx::shared_address(shared.k[stage][kFirstChunk]), largest, after);
  if constexpr (kHalf == 1) {
    const uint32_t word = __ballot_sync(~0u, raw.attended);
    if (position.first_of_warp()) shared.attended[stage][position.row() / 8] = word;
  }
}

// A producer's thread index, read anew. Where it is rarely needed, values derived from it are recomputed: the loop needs all registers.
__device__ __forceinline__ int producer_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread - kConsumerThreads;
}

// Slots of a producing warp's rows of four tiles, one per lane, and of the next four tiles.
struct Slots {
  static constexpr int kTiles = 4, kWarpRows = 32 / kTiles;
  int32_t now, ahead;

  __device__ __forceinline__ Slots(const RowList& list, int32_t first) : now(load(list, first)), ahead(load(list, first + kTiles)) {}
  static __device__ __forceinline__ int32_t position(int32_t tile) {
    const int thread = producer_thread(), lane = thread % 32, warp = thread / 32;
    return (tile + lane / kWarpRows) * kRowTile + warp * kWarpRows + lane % kWarpRows;
  }
  static __device__ __forceinline__ int32_t load(const RowList& list, int32_t tile) { return list.slot(position(tile)); }
};

// Addresses of a producing warp's rows of eight tiles, in shared memory. The warp's lanes compute them for four tiles at a time, one each.
// An address is a chain of waits for constants and products, which the four threads of a row would otherwise repeat for every tile.
template <class Shared>
class FoundRows {
 public:
  __device__ __forceinline__ FoundRows(const DecodeArgs& a, Shared& shared, int32_t first, const Slots& slots)
      : a_(a), shared_(shared), first_(first), ahead_(slots.ahead) {
    find(0, slots.now);
  }
  // Computes the addresses of the four tiles after the four from `index` on.
  __device__ __forceinline__ void look_ahead(int32_t index) {
    find(index + Slots::kTiles, ahead_);
    ahead_ = Slots::load(shared_.list, first_ + index + 2 * Slots::kTiles);
  }
  __device__ __forceinline__ RowAddress<Shared::kFormat> get(const ThreadPosition& position, int32_t index) const {
    const uint4 v = ptx::ld_shared(address(position.row() / Slots::kWarpRows, index, position.row() % Slots::kWarpRows));
    RowAddress<Shared::kFormat> row;
    row.data = reinterpret_cast<const uint8_t*>(uint64_t{v.y} << 32 | v.x);
    row.scales = reinterpret_cast<const uint8_t*>(uint64_t{v.w} << 32 | v.z);
    return row;
  }

 private:
  static constexpr int kHeldTiles = 2 * Slots::kTiles;
  static_assert(sizeof(Shared::of_warp[0]) >= kHeldTiles * Slots::kWarpRows * sizeof(uint4));

  __device__ __forceinline__ uint32_t address(int warp, int32_t index, int of_tile) const {
    return ptx::shared_address(shared_.of_warp[warp]) + (index % kHeldTiles * Slots::kWarpRows + of_tile) * static_cast<int>(sizeof(uint4));
  }
  __device__ __forceinline__ void find(int32_t index, int32_t slot) const {
    const RowAddress<Shared::kFormat> row(a_, Slots::position(first_ + index) < shared_.list.main, slot);
    const auto data = reinterpret_cast<uint64_t>(row.data), scales = reinterpret_cast<uint64_t>(row.scales);
    const int thread = producer_thread();
    ptx::st_shared(address(thread / 32, index, thread % 32), {static_cast<uint32_t>(data), static_cast<uint32_t>(data >> 32),
                                                              static_cast<uint32_t>(scales), static_cast<uint32_t>(scales >> 32)});
    __syncwarp();
  }

  const DecodeArgs& a_;
  Shared& shared_;
  const int32_t first_;
  int32_t ahead_;  // this lane's slot of the tiles after those
};

// A row's loads in two consecutive tiles, in the order of conversion: in an even tile the left half first, in an odd tile the right half
// first (consumer.cuh).
struct Order {
  static constexpr int kLeft = HalfRow<0>::kUnits, kRight = HalfRow<1>::kUnits, kTile = kLeft + kRight;
  static constexpr int kCount = 2 * kTile;
  static constexpr int kOddRight = kTile, kOddLeft = kTile + kRight;  // the first loads of an odd tile's halves
  static constexpr int kPrefetchTiles = 1;  // tiles whose rows have been prefetched to L2 beyond those loaded: measured
};

// Produces the tiles [first, end). The consumers execute the proxy fence, because a fence waits for every load of its thread in flight. So
// loads stay in flight across the producers' barriers, and each converted load is followed by issuing a later one.
template <class Shared>
__device__ __forceinline__ void produce(const DecodeArgs& a, Shared& shared, int32_t first, int32_t end, uint32_t phases, float key_factor,
                                        const Slots& slots) {
  // Loads that a thread has issued beyond those converted. More would not be further ahead: the compiler waits for all loads that cross a
  // branch at once.
  constexpr int kPrefetchDistance = Shared::kRoom.loads_ahead;
  const int thread = static_cast<int>(threadIdx.x - kConsumerThreads);
  const int32_t tiles = end - first;
  ThreadPosition position(thread / 4, thread % 4);
  FoundRows<Shared> rows(a, shared, first, slots);
  uint64_t row;
  RawRow<0> left[2];  // of even and odd tiles
  RawRow<1> right[2];
  int32_t pair = 0;
  uint32_t largest = 0;
  const auto load = [&](int at) {  // `at`: position in the order, counted from the even tile `pair`
    if (at % Order::kTile == 0) {
      const int32_t index = pair + at / Order::kTile;
      const auto found = rows.get(position, index);
      const bool attended = found.data != nullptr;
      row = reinterpret_cast<uint64_t>(found.data) + 16 * position.quarter();
      const int tile = at / Order::kTile % 2;
      const uint2 scales = load_scales(attended, found.scales);
      left[tile].scales = scales.x, right[tile].scales = scales.y;
      left[tile].attended = right[tile].attended = attended;
      // Rows of the first stages have already been prefetched (early_start.cuh).
      if (index + Order::kPrefetchTiles >= kStages) rows.get(position, index + Order::kPrefetchTiles).prefetch(position.quarter());
    }
    // After a run's first loads. The tile after the last is loaded too, and the one after that is prefetched: neither has rows.
    if (at == kPrefetchDistance && pair % Slots::kTiles == 0 && tiles + 1 >= pair + Slots::kTiles) rows.look_ahead(pair);
    at %= Order::kCount;
    if (at < Order::kLeft) {
      left[0].load(at, row, position);
    } else if (at < Order::kOddRight) {
      right[0].load(at - Order::kLeft, row, position);
    } else if (at < Order::kOddLeft) {
      right[1].load(at - Order::kOddRight, row, position);
    } else {
      left[1].load(at - Order::kOddLeft, row, position);
    }
  };
  const auto put = [&]<int kHalf>(const RawRow<kHalf>& raw, int at) {
    const uint32_t stage = at / Order::kTile, parity = phase_of(phases, stage, pair);
    position.forget();
    const auto signal = [&](int fill) {
      __syncwarp();
      if (kForRacecheck || position.first_of_warp()) ptx::mbarrier_arrive(ptx::shared_address(&shared.full[stage][kHalf][fill]));
    };
    constexpr int kFillChunks = kLeftChunks / kFillsPerHalf;
    fill<kHalf>(shared, raw, stage, parity, position, key_factor, largest, [&](int i) {
      if ((i + 1) % kFillChunks == 0 && i + 1 < kLeftChunks) signal(i / kFillChunks);
      load(at + i + kPrefetchDistance);
    });
    signal(kFillsPerHalf - 1);
  };
#pragma unroll
  for (int i = 0; i < kPrefetchDistance; ++i) load(i);
#pragma unroll 1
  for (; pair < tiles; pair += 2) {
    prefetch_next_weights<kProducerThreads / 32>(a, pair / 2, producer_thread() / 32);
    put(left[0], 0);
    put(right[0], Order::kLeft);
    if (pair + 1 == tiles) break;
    put(right[1], Order::kOddRight);
    put(left[1], Order::kOddLeft);
  }
  const __half2 of_all = as_half2(largest);
  if (!(__half2float(__hmax(__low2half(of_all), __high2half(of_all))) <= kLargestKey)) shared.overflow = 1;
}

// The largest key shift with which every value of the rows fits: the exact computation after an overflow. Called by all producer threads;
// the result is the minimum of their return values.
template <KvFormat kFormat>
__device__ __noinline__ int32_t fitting_key_shift(const DecodeArgs& a, const RowList& list, int32_t first) {
  int32_t shift = kUsualKeyShift;
  // value < 2^(exponent + 1) must stay below 2^(15 - slack) after the shift.
  const auto hold = [&](uint32_t fp32_bits, int32_t slack) {
    const int32_t exponent = static_cast<int32_t>(fp32_bits >> 23 & 0xFFu) - 127;
    if (exponent < 128) shift = min(shift, 14 - slack - exponent);  // infinities and NaN stay what they are with any shift
  };
  for (int32_t at = first * kRowTile + static_cast<int32_t>(threadIdx.x % kProducerThreads); at < list.end; at += kProducerThreads) {
    const RowAddress<kFormat> row(a, at < list.main, list.slot(at));
    if (row.data == nullptr) continue;
    // e4m3 values are at most 448 < 2^9: 2^e * value < 2^(e + 9), so e + 9 + shift <= 16 as 448 * 2^7 = 57344 fits.
    if constexpr (kFormat == KvFormat::fp8_ds_mla_v4) {
      for (int i = 0; i < kV4NumBlocks; ++i) hold(uint32_t{row.scales[i]} << 23, 7);
    } else {
      for (int i = 0; i < 4; ++i) hold(float_bits(load_f32(row.scales + 4 * i)) + 0x7FFFFFu, 7);
    }
    constexpr int kRopeOffset = kFormat == KvFormat::fp8_ds_mla_v4 ? kV4NopeDim : kMlaRopeOffset;
    for (int i = 0; i < 64; ++i) hold(uint32_t{load_u16(row.data + kRopeOffset + 2 * i)} << 16, 0);
  }
  return shift;
}

// A producer thread's first slots, loaded before its loop.
template <KvFormat kFormat>
using FirstSlots = std::conditional_t<kFormat == KvFormat::fp8_ds_mla, MlaRows::Slots, Slots>;

// The producers' work of a CTA: all tiles, and again with another key shift if a value did not fit.
template <class Shared>
__device__ __forceinline__ void produce_all(const DecodeArgs& a, Shared& shared, int32_t first, int32_t end,
                                            FirstSlots<Shared::kFormat> slots) {
  uint32_t phases = 0;
  for (bool again = false;; again = true) {
    const float key_factor = pow2(shared.key_shift);
    if constexpr (Shared::kFormat == KvFormat::fp8_ds_mla) {
      if (!MlaProducer<Shared>(a, shared, first, end, phases, key_factor, slots).produce()) shared.overflow = 1;
    } else {
      produce(a, shared, first, end, phases, key_factor, slots);
    }
    phases = phases_after(phases, end - first);
    if (threadIdx.x / 32 == kConsumerThreads / 32) load_rotation(a, shared.token, shared.rotation);
    __syncthreads();
    if (again || shared.overflow == 0) break;
    atomicMin(&shared.key_shift, fitting_key_shift<Shared::kFormat>(a, shared.list, first));
    slots = FirstSlots<Shared::kFormat>(shared.list, first);
    __syncthreads();
  }
}

}  // namespace strata::cuda::sparse_decode
