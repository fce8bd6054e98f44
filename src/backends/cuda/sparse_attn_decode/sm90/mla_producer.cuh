// The producers' loop for rows of fp8_ds_mla (V3.2): 512 e4m3 values, four fp32 scales and 64 bf16 values in 656 bytes.
//
// The loop maximises loads in flight with few instructions between them. ptxas uses one scoreboard for all loads that cross a branch, so a
// wait for one load waits for the latest. Loads are therefore issued right after a conversion, in order. The only branches are the waits
// for a stage and the loop itself. One lane computes a row's address for the four that load it, and overflow is tested at the end. Rows
// start at any multiple of 16 bytes, so loads share 32-byte sectors with their neighbours: L1 keeps these. Scales, and their products, are
// rounded to fp16, not to bf16 (docs/numerics.md).
#pragma once

#include "backends/cuda/device/warp_barrier.cuh"
#include "backends/cuda/ptx/mbarrier.cuh"
#include "backends/cuda/ptx/memory.cuh"
#include "backends/cuda/sparse_attn_decode/sm90/row_units.cuh"

namespace strata::cuda::sparse_decode {

// Addresses of the rows of two tiles that a warp's threads load, one per lane; the upper half of the warp repeats the lower half. Null: not
// attended.
class MlaRows {
 public:
  // Slots of the first four tiles.
  struct Slots {
    int32_t now, ahead;
    __device__ __forceinline__ Slots(const RowList& list, int32_t first)
        : now(list.slot(position(first))), ahead(list.slot(position(first) + 2 * kRowTile)) {}
  };

  __device__ __forceinline__ MlaRows(const DecodeArgs& a, const RowList& list, int32_t first, const Slots& slots)
      : a_(a), list_(list), slot_(slots.ahead) {
    now_ = address(slots.now, position(first));
  }
  // Computes the addresses of the two tiles after those from `first` on, whose slots have been loaded by now.
  __device__ __forceinline__ void look_ahead(int32_t first) {
    const int32_t at = position(first);
    ahead_ = address(slot_, at + 2 * kRowTile);
    slot_ = list_.slot(at + 4 * kRowTile);
  }
  // Advances to the two tiles from `first` on, which follow the current ones.
  __device__ __forceinline__ void advance(int32_t first) {
    now_ = ahead_;
    look_ahead(first);
  }
  // The row of this thread in tile `tile` of the current two and the next two.
  __device__ __forceinline__ const uint8_t* get(int tile) const {
    return reinterpret_cast<const uint8_t*>(__shfl_sync(~0u, tile < 2 ? now_ : ahead_, tile % 2 * 8 + threadIdx.x % 32 / 4));
  }

 private:
  static __device__ __forceinline__ int32_t position(int32_t first) {
    const int lane = threadIdx.x % 32, warp = (threadIdx.x - kConsumerThreads) / 32;
    return (first + lane / 8 % 2) * kRowTile + warp * 8 + lane % 8;
  }
  __device__ __forceinline__ unsigned long long address(int32_t slot, int32_t at) const {
    const Scope &m = a_.scope[0], &e = a_.scope[1];
    const bool in_main = at < list_.main;
    const int32_t page = in_main ? m.page_size.divide(slot) : e.page_size.divide(slot);
    const int32_t in_page = slot - page * (in_main ? m.page_size.value() : e.page_size.value());
    const uint8_t* data = (in_main ? m.data : e.data) + page * (in_main ? m.page_stride : e.page_stride) +
                          static_cast<int64_t>(in_page) * RowAddress<KvFormat::fp8_ds_mla>::kRowBytes;
    return static_cast<uint32_t>(slot) < (in_main ? m.num_slots : e.num_slots) ? reinterpret_cast<unsigned long long>(data) : 0;
  }

  const DecodeArgs& a_;
  const RowList& list_;
  unsigned long long now_, ahead_;  // of the current two tiles and the next two
  int32_t slot_;                    // entry of the two tiles after those
};

template <class Shared>
class MlaProducer {
 public:
  __device__ __forceinline__ MlaProducer(const DecodeArgs& a, Shared& shared, int32_t first, int32_t end, uint32_t phases, float key_factor,
                                         const MlaRows::Slots& slots)
      : shared_(shared),
        position_((threadIdx.x - kConsumerThreads) / 4, threadIdx.x % 4),
        rows_(a, shared.list, first, slots),
        first_(first),
        tiles_(end - first),
        phases_(phases),
        key_factor_(key_factor) {}

  // Produces all tiles. Returns false when a value may not fit.
  __device__ __forceinline__ bool produce() {
#pragma unroll
    for (int i = 0; i < kPrefetchDistance; ++i) load(i);
    rows_.look_ahead(first_);
    prefetch(rows_.get(kPrefetchTiles));
#pragma unroll 1
    for (; pair_ < tiles_; pair_ += 2) {
      convert_half<0>(0);
      convert_half<1>(kLeft);
      if (pair_ + 1 == tiles_) break;
      convert_half<1>(kOddRight);
      convert_half<0>(kOddLeft);
    }
    const float scale = __uint_as_float(largest_scale_) * key_factor_,
                rotated = __uint_as_float(max(largest_ & 0xFFFFu, largest_ >> 16) << 16);
    return scale <= 128.0f && rotated * key_factor_ <= kLargestKey;
  }

 private:
  static constexpr uint32_t kMagnitude = 0x7FFFFFFFu;
  // The 16-byte loads of a row in two consecutive tiles, in the order of conversion: in an even tile the left half first, in an odd tile
  // the right half first (consumer.cuh).
  static constexpr int kQuantizedLoads = 4, kRotaryLoads = 2;  // per half; in addition in the right half
  static constexpr int kLeft = kQuantizedLoads, kRight = kQuantizedLoads + kRotaryLoads, kTile = kLeft + kRight, kCount = 2 * kTile;
  static constexpr int kOddRight = kTile, kOddLeft = kTile + kRight;
  // Loads that a thread has issued beyond those converted, and tiles whose rows it has prefetched to L2 beyond that. Measured.
  static constexpr int kPrefetchDistance = 5, kPrefetchTiles = 2;
  static_assert(kPrefetchDistance <= kTile, "what is known of a tile's rows is replaced by that of the tile after next");

  __device__ __forceinline__ void load(int at) {
    const int tile = at / kTile % 2, in_pair = at % kCount;
    if (at % kTile == 0) {
      if (at == kCount) rows_.advance(first_ + pair_ + 2);
      const uint8_t* row = rows_.get(tile);
      attended_[tile] = row != nullptr;
      scale_[tile] = load_scale(row);
      row_ = row + 16 * position_.quarter();
      if (at > 0) prefetch(rows_.get(tile + kPrefetchTiles));
    }
    const int half = in_pair < kLeft || in_pair >= kOddLeft ? 0 : 1;
    const int i = in_pair - (in_pair < kLeft ? 0 : in_pair < kOddRight ? kLeft : in_pair < kOddLeft ? kOddRight : kOddLeft);
    const int offset =
        i < kQuantizedLoads ? (half * kLeftChunks + i) * kChunkDims : kMlaRopeOffset + 64 * ((i - kQuantizedLoads) ^ (position_.row() & 1));
    units_[in_pair] = ptx::ld_quad_if(attended_[tile], row_ + offset);
  }
  // One of the row's four scales: each of its four lanes loads another.
  __device__ __forceinline__ uint32_t load_scale(const uint8_t* row) const {
    const uint8_t* p = row + kMlaScaleOffset + 4 * position_.quarter();
    return ptx::ld_if(row != nullptr, p, kNeutral);
  }
  __device__ __forceinline__ void prefetch(const uint8_t* row) const {
    constexpr int kBytes = RowAddress<KvFormat::fp8_ds_mla>::kRowBytes, kLine = 128;
    const int quarter = position_.quarter();
#pragma unroll
    for (int at = 0; at < kBytes; at += 4 * kLine)
      ptx::prefetch_l2_if(row != nullptr && at + quarter * kLine < kBytes, row + at + quarter * kLine);
  }

  // Converts half of a tile, from load `at` on.
  template <int kHalf>
  __device__ __forceinline__ void convert_half(int at) {
    const int tile = at / kTile;
    const uint32_t stage = tile, parity = phase_of(phases_, stage, pair_);
    position_.forget();
    ptx::mbarrier_wait(ptx::shared_address(&shared_.empty[stage][kHalf]), parity ^ 1u);
    const uint32_t half_tile = ptx::shared_address(shared_.k[stage][kHalf * kLeftChunks]);
    const auto signal = [&](int fill) {
      __syncwarp();
      if (kForRacecheck || position_.first_of_warp()) ptx::mbarrier_arrive(ptx::shared_address(&shared_.full[stage][kHalf][fill]));
    };
    if (at % kTile == 0) largest_scale_ = max(largest_scale_, scale_[tile] & kMagnitude);
    __half2 scale;
#pragma unroll
    for (int i = 0; i < kQuantizedLoads; ++i) {
      const uint4 v = units_[at + i];
      if (i % 2 == 0) scale = __float2half2_rn(__uint_as_float(__shfl_sync(~0u, scale_[tile], 2 * kHalf + i / 2, 4)) * key_factor_);
      ptx::st_shared(half_tile + i * kChunkBytes + position_.values, scaled_e4m3(v.x, v.y, scale));
      ptx::st_shared(half_tile + i * kChunkBytes + (position_.values ^ 16), scaled_e4m3(v.z, v.w, scale));
      if (i == 1) signal(0);
      load(at + i + kPrefetchDistance);
      __syncwarp();
    }
    if constexpr (kHalf == 1) {
#pragma unroll
      for (int i = 0; i < kRotaryLoads; ++i) {
        const uint4 v = units_[at + kQuantizedLoads + i];
        constexpr uint32_t kBoth = 0x7FFF7FFFu;
        largest_ = __vmaxu2(largest_, __vmaxu2(__vmaxu2(v.x & kBoth, v.y & kBoth), __vmaxu2(v.z & kBoth, v.w & kBoth)));
        ptx::st_shared(half_tile + kLeftChunks * kChunkBytes + (position_.rotated ^ 64 * i), bf16_to_f16(v, key_factor_));
        load(at + kQuantizedLoads + i + kPrefetchDistance);
        __syncwarp();
      }
      const uint32_t word = __ballot_sync(~0u, attended_[tile]);
      if (position_.first_of_warp()) shared_.attended[stage][position_.row() / 8] = word;
    }
    signal(1);
  }
  static constexpr uint32_t kNeutral = 0x38000000u;  // about 2^-15; any finite scale works, because the values are zero

  Shared& shared_;
  ThreadPosition position_;
  MlaRows rows_;
  const int32_t first_, tiles_;
  const uint32_t phases_;
  const float key_factor_;
  int32_t pair_ = 0;
  const uint8_t* row_;  // this thread's 16 of each 64 bytes of the row
  bool attended_[2];
  uint4 units_[kCount];
  uint32_t scale_[2];                         // each of a row's four lanes has another of its four scales
  uint32_t largest_scale_ = 0, largest_ = 0;  // magnitudes of scales, and of pairs of rotary values
};

}  // namespace strata::cuda::sparse_decode
