// The producers of the Hopper decode kernel: two warpgroups that load cache rows, turn them into fp16 and put them into shared memory.
//
// A row comes in 16-byte pieces by plain loads, four lanes to the 64 codes of one scale, a tile behind the prefetch that brought it to L2.
// e4m3 -> fp16 is one exact instruction a pair, the scale one packed product. Eight lanes (two neighbouring rows, four even or odd
// 16-byte units) hit all banks of the swizzled tile: 512 cycles of stores for 64 rows, the floor.
#pragma once

#include <cuda_fp16.h>

#include "backends/cuda/ptx/convert.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/ptx/programmatic_launch.cuh"
#include "backends/cuda/ptx/warpgroup.cuh"
#include "backends/cuda/sm90/sparse_decode/shared_memory.cuh"

namespace strata::cuda::sparse_decode {

// Any alignment.
__device__ __forceinline__ uint4 load_bytes(const uint8_t* p) {
  uint32_t w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = uint32_t{load_u16(p + 4 * i)} | uint32_t{load_u16(p + 4 * i + 2)} << 16;
  return {w[0], w[1], w[2], w[3]};
}
// Zero when not wanted.
template <bool kAligned>
__device__ __forceinline__ uint4 load_16(bool wanted, const void* p) {
  if constexpr (kAligned) return ptx::ld_once_if(wanted, p);
  return wanted ? load_bytes(static_cast<const uint8_t*>(p)) : uint4{};
}

__device__ __forceinline__ uint32_t mul_f16x2(uint32_t a, __half2 b) {
  const __half2 product = __hmul2(*reinterpret_cast<const __half2*>(&a), b);
  return *reinterpret_cast<const uint32_t*>(&product);
}

// A bf16 pair times `factor`, a power of two, as fp16.
__device__ __forceinline__ uint32_t bf16x2_to_f16x2(uint32_t pair, float factor) {
  return ptx::cvt_f16x2(__uint_as_float(pair << 16) * factor, __uint_as_float(pair & 0xFFFF0000u) * factor);
}
__device__ __forceinline__ uint4 bf16_to_f16(uint4 v, float factor) {
  return {bf16x2_to_f16x2(v.x, factor), bf16x2_to_f16x2(v.y, factor), bf16x2_to_f16x2(v.z, factor), bf16x2_to_f16x2(v.w, factor)};
}
// The largest |bits| of bf16 values: monotonous in their magnitude.
__device__ __forceinline__ uint32_t max_bf16_bits(uint4 v) {
  constexpr uint32_t kMagnitude = 0x7FFF7FFFu;
  const uint32_t m = __vmaxu2(__vmaxu2(v.x & kMagnitude, v.y & kMagnitude), __vmaxu2(v.z & kMagnitude, v.w & kMagnitude));
  return max(m & 0xFFFFu, m >> 16);
}
// Queries times 2^-exponent have their largest, of these bits, in [2^14, 2^15): nothing overflows fp16.
__device__ __forceinline__ int query_exponent(uint32_t largest_bits) { return max(static_cast<int>(largest_bits >> 7) - 127 - 14, -100); }

// Byte offset of a 16-byte unit in a [64 rows][8 units] chunk.
__device__ __forceinline__ uint32_t unit_offset(int row, int unit) { return static_cast<uint32_t>(row * 128 + ((unit ^ (row & 7)) << 4)); }

// What one half of a tile is made of: blocks of 64 codes, then perhaps the 64 bf16 lanes of the rotated part.
template <KvFormat kFormat, int kHalf>
struct HalfRow {
  static constexpr bool kV4 = kFormat == KvFormat::fp8_ds_mla_v4;
  static constexpr int kFirstChunk = kHalf * kLeftChunks;
  static constexpr int kBlocks = kV4 && kHalf == 1 ? 3 : 4;
  static constexpr bool kRope = kHalf == 1;
  static constexpr int kRopeOffset = kV4 ? kV4NopeDim : kMlaRopeOffset;
  static constexpr int kPieces = kBlocks + (kRope ? 2 : 0);
};

// A producer thread's place in a tile: a row, and 16 of the 64 bytes of each block of codes. All of it follows from `codes`, so that
// nothing more is kept in registers.
struct Place {
  uint32_t codes;    // byte offset of its first unit of values in a chunk; the second is at codes ^ 16
  uint32_t rotated;  // and of its first unit of rotated lanes; the second is at rotated ^ 64

  // Odd rows take the two units of rotated lanes in the other order: see the header.
  __device__ __forceinline__ Place(int row, int quarter)
      : codes(unit_offset(row, 2 * quarter)), rotated(unit_offset(row, quarter + 4 * (row & 1))) {}
  __device__ __forceinline__ int row() const { return static_cast<int>(codes / 128); }
  __device__ __forceinline__ int quarter() const { return static_cast<int>((codes / 16 ^ codes / 128) % 8 / 2); }
  // What follows from it is computed again instead of being kept through a loop.
  __device__ __forceinline__ void forget() { asm volatile("" : "+r"(codes), "+r"(rotated)); }
  __device__ __forceinline__ bool first_of_warp() const { return codes % 1024 == 0; }
};

// A thread's pieces of one row, as they are in memory.
template <KvFormat kFormat, int kHalf>
struct RawRow {
  using Half = HalfRow<kFormat, kHalf>;
  // Scales of both halves are asked for when the row's address is known, so that the address of scales is not kept: where they are one
  // register a half.
  static constexpr bool kScalesFirst = Half::kV4;
  uint4 piece[Half::kPieces];
  uint32_t scale[2];  // V4: four ue8m0 bytes in scale[0]; V3.2: two fp32
  bool attended;

  // One piece; with the first the scales, if they are not asked for by themselves.
  template <bool kAligned>
  __device__ __forceinline__ void load(int i, const RowAddress<kFormat>& at, const Place& place) {
    if (i == 0) attended = at.data != nullptr;
    if (i == 0 && !kScalesFirst) load_scales<kAligned>(at);
    piece[i] = load_16<kAligned>(attended, at.data + offset(i, place));
  }
  static __device__ __forceinline__ int offset(int i, const Place& place) {
    return i < Half::kBlocks ? (Half::kFirstChunk + i) * kChunkLanes : Half::kRopeOffset + 64 * ((i - Half::kBlocks) ^ (place.row() & 1));
  }
  template <bool kAligned>
  __device__ __forceinline__ void load_scales(const RowAddress<kFormat>& at) {
    const bool attended = at.data != nullptr;
    const uint8_t* scales = Half::kV4 ? at.scales + 4 * kHalf : at.scales + 8 * kHalf;
#pragma unroll
    for (int i = 0; i < (Half::kV4 ? 1 : 2); ++i) {
      if constexpr (kAligned) {
        scale[i] = ptx::ld_if(attended, scales + 4 * i, kNeutralScales);
      } else {
        scale[i] = attended ? float_bits(load_f32(scales + 4 * i)) : kNeutralScales;
      }
    }
  }
  // V4: four bytes of 2^-15; V3.2: about 2^-15 too. Anything finite does, as the codes are zero.
  static constexpr uint32_t kNeutralScales = Half::kV4 ? 0x70707070u : 0x38000000u;
};

// Eight e4m3 codes as fp16.
__device__ __forceinline__ uint4 codes_f16(uint32_t w0, uint32_t w1) {
  const uint2 first = ptx::cvt_f16x4_e4m3x4(w0), second = ptx::cvt_f16x4_e4m3x4(w1);
  return {first.x, first.y, second.x, second.y};
}
// And times a scale that fp16 holds exactly.
__device__ __forceinline__ uint4 scaled_codes(uint32_t w0, uint32_t w1, __half2 scale) {
  const uint4 v = codes_f16(w0, w1);
  return {mul_f16x2(v.x, scale), mul_f16x2(v.y, scale), mul_f16x2(v.z, scale), mul_f16x2(v.w, scale)};
}
// The same with any scale: the product is rounded to bf16, as MLA 9.1 has it, which fp16 holds exactly.
__device__ __forceinline__ uint32_t rounded_pair(uint32_t codes_f16x2, float scale, float factor) {
  const float2 codes = __half22float2(*reinterpret_cast<const __half2*>(&codes_f16x2));
  return bf16x2_to_f16x2(ptx::cvt_bf16x2(codes.x * scale, codes.y * scale), factor);
}
__device__ __forceinline__ uint4 rounded_codes(uint32_t w0, uint32_t w1, float scale, float factor) {
  const uint4 v = codes_f16(w0, w1);
  return {rounded_pair(v.x, scale, factor), rounded_pair(v.y, scale, factor), rounded_pair(v.z, scale, factor),
          rounded_pair(v.w, scale, factor)};
}

// V4: true when every scale byte is in 105 .. 126: at the usual shift its power of two is a normal fp16 and products stay below 2^16.
__device__ __forceinline__ bool usual_scales(uint32_t bytes) {
  constexpr uint32_t kTops = 0x80808080u;
  return (((bytes + 0x01010101u) | bytes) & kTops) == 0 && (((bytes | kTops) - 0x69696969u) & kTops) == kTops;
}
// 2^(byte i of `bytes` - 127 + 8) as an fp16 pair, for usual scales: the byte less 104 is the exponent field.
__device__ __forceinline__ uint32_t usual_scale(uint32_t bytes, int i) {
  const uint32_t field = __byte_perm(bytes - 0x68686868u, 0, 0x0404u | static_cast<uint32_t>(i) << 4 | static_cast<uint32_t>(i) << 12);
  return field << 2;
}
static_assert(kUsualKeyShift == 8);

__device__ __forceinline__ __half2 as_half2(uint32_t pair) { return *reinterpret_cast<const __half2*>(&pair); }

// As large as codes become, and small enough that a mean of keys with rounded weights is finite too.
constexpr float kLargestKey = 448.0f * 128.0f;

// Converts a thread's pieces and stores them; `after(i)` follows piece i. Returns false when a value may not fit fp16: key_factor =
// 2^key_shift is too large.
template <KvFormat kFormat, int kHalf, class After>
__device__ __forceinline__ bool store_row(const RawRow<kFormat, kHalf>& raw, const Place& place, float key_factor, uint32_t half_tile,
                                          const After& after) {
  using Half = HalfRow<kFormat, kHalf>;
  bool fits = true;
  const auto store_codes = [&](int i, uint4 first, uint4 second) {
    ptx::st_shared(half_tile + i * kChunkBytes + place.codes, first);
    ptx::st_shared(half_tile + i * kChunkBytes + (place.codes ^ 16), second);
  };
  if constexpr (Half::kV4) {
    const uint32_t bytes = Half::kBlocks == 4 ? raw.scale[0] : raw.scale[0] & 0x00FFFFFFu | 0x70000000u;
    const bool usual = usual_scales(bytes) && key_factor == pow2(kUsualKeyShift);
    uint32_t scales[Half::kBlocks];
#pragma unroll
    for (int i = 0; i < Half::kBlocks; ++i) scales[i] = usual_scale(bytes, i);
    if (!usual) {
#pragma unroll
      for (int i = 0; i < Half::kBlocks; ++i) {
        // 2^(byte - 127); the byte of NaN makes an infinity here, and then NaN by the second product.
        const float power = __uint_as_float((bytes >> (8 * i) & 0xFFu) << 23);
        const float scale = fmaf(power, key_factor, __fmul_rn(power, 0.0f));
        fits &= scale <= 128.0f;
        scales[i] = ptx::cvt_f16x2(scale, scale);
      }
    }
#pragma unroll
    for (int i = 0; i < Half::kBlocks; ++i) {
      const uint4 v = raw.piece[i];
      store_codes(i, scaled_codes(v.x, v.y, as_half2(scales[i])), scaled_codes(v.z, v.w, as_half2(scales[i])));
      after(i);
    }
  } else {
#pragma unroll
    for (int i = 0; i < Half::kBlocks; ++i) {
      const uint4 v = raw.piece[i];
      const float scale = __uint_as_float(raw.scale[i / 2]), shifted = scale * key_factor;
      fits &= shifted <= 128.0f;
      if ((raw.scale[i / 2] & 0x7FFFFFu) == 0) {
        const __half2 scales = __float2half2_rn(shifted);
        store_codes(i, scaled_codes(v.x, v.y, scales), scaled_codes(v.z, v.w, scales));
      } else {
        store_codes(i, rounded_codes(v.x, v.y, scale, key_factor), rounded_codes(v.z, v.w, scale, key_factor));
      }
      after(i);
    }
  }
  if constexpr (Half::kRope) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 v = raw.piece[Half::kBlocks + i];
      fits &= __uint_as_float(max_bf16_bits(v) << 16) * key_factor <= kLargestKey;
      ptx::st_shared(half_tile + Half::kBlocks * kChunkBytes + (place.rotated ^ 64 * i), bf16_to_f16(v, key_factor));
      after(Half::kBlocks + i);
    }
  }
  return fits;
}

// Barriers and what the producers tell; one thread, before anything else.
template <class Shared>
__device__ __forceinline__ void prepare(Shared& shared) {
  if (threadIdx.x > 0) return;
  for (int stage = 0; stage < kStages; ++stage) {
    for (int half = 0; half < kHalves; ++half) {
      for (uint64_t& part : shared.full[stage][half]) ptx::mbarrier_init(ptx::shared_address(&part), kProducerThreads / 32);
      ptx::mbarrier_init(ptx::shared_address(&shared.empty[stage][half]), kWarpgroup / 32);
    }
  }
  shared.overflow = 0;
  shared.key_shift = kUsualKeyShift;
  ptx::fence_mbarrier_init();
}

// Converts this thread's part of a half of a tile. Returns false when a value may not fit.
template <KvFormat kFormat, int kHalf, class Shared, class After>
__device__ __forceinline__ bool fill(Shared& shared, const RawRow<kFormat, kHalf>& raw, uint32_t stage, uint32_t parity, const Place& place,
                                     float key_factor, const After& after) {
  ptx::mbarrier_wait(ptx::shared_address(&shared.empty[stage][kHalf]), parity ^ 1u);
  constexpr int kFirstChunk = HalfRow<kFormat, kHalf>::kFirstChunk;
  const bool fits = store_row(raw, place, key_factor, ptx::shared_address(shared.k[stage][kFirstChunk]), after);
  if constexpr (kHalf == 1) {
    const uint32_t word = __ballot_sync(~0u, raw.attended);
    if (place.first_of_warp()) shared.attended[stage][place.row() / 8] = word;
  }
  return fits;
}

// The slots of a producer thread's rows, those of its warp's rows of four tiles in one register a lane. They are asked for again before
// they are needed.
struct Slots {
  static constexpr int kTiles = 4;
  int32_t now, ahead;

  __device__ __forceinline__ Slots(const RowList& list, int32_t first) : now(load(list, first)), ahead(load(list, first + kTiles)) {}
  static __device__ __forceinline__ int32_t load(const RowList& list, int32_t tile) {
    const int lane = threadIdx.x % 32, warp = (threadIdx.x - kConsumerThreads) / 32;
    return list.slot((tile + lane / 8) * kRowTile + warp * 8 + lane % 8);
  }
  // To the tile `index` behind `first`; in order, from 0.
  __device__ __forceinline__ void advance(int32_t index) {
    if (index % kTiles == 0 && index > 0) now = ahead;
  }
  // Behind the last get() of that tile, which would wait for what is asked for here.
  __device__ __forceinline__ void ask(const RowList& list, int32_t first, int32_t index) {
    if (index % kTiles == 0 && index > 0) ahead = load(list, first + index + kTiles);
  }
  // Of the tile `more` < kTiles behind that of `index`.
  __device__ __forceinline__ int32_t get(int32_t index, int more) const {
    return __shfl_sync(~0u, index % kTiles + more < kTiles ? now : ahead, (index + more) % kTiles * 8 + threadIdx.x % 32 / 4);
  }
};

// A row's pieces in two tiles that follow each other, in the order in which they are converted: the left half of an even tile before its
// right, the right half of an odd one before its left (consumer.cuh).
template <KvFormat kFormat>
struct Order {
  static constexpr int kLeft = HalfRow<kFormat, 0>::kPieces, kRight = HalfRow<kFormat, 1>::kPieces, kTile = kLeft + kRight;
  static constexpr int kCount = 2 * kTile;
  static constexpr int kOddRight = kTile, kOddLeft = kTile + kRight;  // the first pieces of an odd tile's halves
  // A thread has asked for so many pieces more than it has converted, and for the rows of so many tiles more to come to L2: measured. More
  // pieces are spilled, and are no further ahead: the compiler waits for all loads that cross a branch at once.
  static constexpr bool kV4 = kFormat == KvFormat::fp8_ds_mla_v4;
  static constexpr int kAhead = kV4 ? 6 : 4, kTilesAhead = kV4 ? 1 : 2;
};

// The tiles [first, end); `step` counts the tiles this block has ever filled. The consumers have the fence, as it waits for every load of
// its thread that is in flight: so loads cross the producers' barriers, and each piece that has been converted is followed by the load of
// one further on.
template <bool kAligned, class Shared>
__device__ __forceinline__ void produce(const DecodeArgs& a, Shared& shared, int32_t first, int32_t end, uint32_t step, float key_factor) {
  constexpr KvFormat kFormat = Shared::kFormat;
  using Order = sparse_decode::Order<kFormat>;
  const int thread = static_cast<int>(threadIdx.x - kConsumerThreads);
  const int32_t tiles = end - first;
  Place place(thread / 4, thread % 4);
  Slots slots(shared.list, first);
  RowAddress<kFormat> row;
  RawRow<kFormat, 0> left[2];  // of even and odd tiles
  RawRow<kFormat, 1> right[2];
  int32_t pair = 0;
  const auto load = [&](int at) {  // `at`: in the order, from the even tile `pair` on
    if (at % Order::kTile == 0) {
      const int32_t index = pair + at / Order::kTile;
      slots.advance(index);
      const auto address = [&](int more, int quarter) {
        const int32_t row_at = (first + index + more) * kRowTile + place.row();
        return RowAddress<kFormat>(a, row_at < shared.list.main, slots.get(index, more), quarter);
      };
      row = address(0, place.quarter());
      if constexpr (RawRow<kFormat, 0>::kScalesFirst) {
        const int tile = at / Order::kTile % 2;
        left[tile].template load_scales<kAligned>(row), right[tile].template load_scales<kAligned>(row);
      }
      address(Order::kTilesAhead, 0).prefetch(place.quarter());
      slots.ask(shared.list, first, index);
    }
    at %= Order::kCount;
    if (at < Order::kLeft) {
      left[0].template load<kAligned>(at, row, place);
    } else if (at < Order::kOddRight) {
      right[0].template load<kAligned>(at - Order::kLeft, row, place);
    } else if (at < Order::kOddLeft) {
      right[1].template load<kAligned>(at - Order::kOddRight, row, place);
    } else {
      left[1].template load<kAligned>(at - Order::kOddLeft, row, place);
    }
  };
  bool fits = true;
  const auto put = [&]<int kHalf>(const RawRow<kFormat, kHalf>& raw, int at) {
    const uint32_t fill_step = step + pair + at / Order::kTile, stage = fill_step % kStages, parity = fill_step / kStages & 1u;
    place.forget();
    const auto tell = [&](int part) {
      __syncwarp();
      if (place.first_of_warp()) ptx::mbarrier_arrive(ptx::shared_address(&shared.full[stage][kHalf][part]));
    };
    constexpr int kPartChunks = kLeftChunks / kParts;
    fits &= fill<kFormat, kHalf>(shared, raw, stage, parity, place, key_factor, [&](int i) {
      if ((i + 1) % kPartChunks == 0 && i + 1 < kLeftChunks) tell(i / kPartChunks);
      load(at + i + Order::kAhead);
    });
    tell(kParts - 1);
  };
#pragma unroll
  for (int i = 0; i < Order::kAhead; ++i) load(i);
#pragma unroll 1
  for (; pair < tiles; pair += 2) {
    put(left[0], 0);
    put(right[0], Order::kLeft);
    if (pair + 1 == tiles) break;
    put(right[1], Order::kOddRight);
    put(left[1], Order::kOddLeft);
  }
  if (!fits) shared.overflow = 1;
}

// The largest key shift at which every value of the rows fits: the exact way after an overflow. All producer threads; the result is the
// minimum of what they return.
template <KvFormat kFormat>
__device__ __noinline__ int32_t fitting_key_shift(const DecodeArgs& a, const RowList& list, int32_t first) {
  int32_t shift = kUsualKeyShift;
  // value < 2^(exponent + 1) must stay below 2^(15 - slack) with the shift.
  const auto hold = [&](uint32_t fp32_bits, int32_t slack) {
    const int32_t exponent = static_cast<int32_t>(fp32_bits >> 23 & 0xFFu) - 127;
    if (exponent < 128) shift = min(shift, 14 - slack - exponent);  // infinities and NaN do not become anything else
  };
  for (int32_t at = first * kRowTile + static_cast<int32_t>(threadIdx.x % kProducerThreads); at < list.end; at += kProducerThreads) {
    const RowAddress<kFormat> row(a, at < list.main, list.slot(at));
    if (row.data == nullptr) continue;
    // codes are at most 448 < 2^9: 2^e * code < 2^(e + 9), so e + 9 + shift <= 16 as 448 * 2^7 = 57344 fits.
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

// The producers' part of a block: the tiles, and once more with another key shift if a value did not fit.
template <bool kAligned, class Shared>
__device__ __forceinline__ void produce_all(const DecodeArgs& a, Shared& shared, int32_t first, int32_t end) {
  uint32_t step = 0;
  for (bool again = false;; again = true) {
    produce<kAligned>(a, shared, first, end, step, pow2(shared.key_shift));
    step += end - first;
    __syncthreads();
    if (again || shared.overflow == 0) break;
    atomicMin(&shared.key_shift, fitting_key_shift<Shared::kFormat>(a, shared.list, first));
    __syncthreads();
  }
}

}  // namespace strata::cuda::sparse_decode
