// Attention of a token's heads over shared key-value rows on the matrix engine: V4 specification 14.1, MLA specification 8. A work-group
// computes 16 heads over one split of the rows, 32 rows at a time. Each sub-group decodes two rows into local memory, multiplies a slice of
// the dimensions of 16 rows by the queries in its registers, computes the softmax of one head, and sums 32 columns of the values. Softmax
// weights are rounded to bf16 for the value product; their sum is that of the unrounded weights (docs/numerics.md).
#pragma once

#include <cstdint>

#include "backends/opencl/attention/call.h"
#include "backends/opencl/attention/token.h"
#include "backends/opencl/device/matrix.h"
#include "backends/opencl/device/reduce.h"

namespace strata::opencl {

constexpr int kMatrixItems = kMatrixSubgroups * STRATA_SUBGROUP;
constexpr int kTileRows = 32;
constexpr int kRowHalves = 2;                                // of a tile, 16 rows each; a sub-group computes logits of one half
constexpr int kDepthSlices = kMatrixSubgroups / kRowHalves;  // sub-groups per half, each with a slice of the dimensions
constexpr int kHeadBlocks = kAttnHeads / STRATA_SUBGROUP;    // fragments across the heads
constexpr int kOwnColumns = kAttnValues / kMatrixSubgroups;  // value columns per sub-group
constexpr int kColumnBlocks = kOwnColumns / STRATA_SUBGROUP;
constexpr int kSliceStride = kAttnHeads + 1;           // floats per row: rows lie in different banks
constexpr int kOwnRows = kTileRows / STRATA_SUBGROUP;  // rows per item in the softmax
static_assert(kMatrixSubgroups == kAttnHeads && 2 * kMatrixSubgroups == kTileRows, "a sub-group has one head and two rows");

// Local memory of a group, 55488 bytes with 576 dimensions.
#define STRATA_MATRIX_ATTN_LOCAL(head_dim)                                                    \
  __local uint32_t tile[kTileRows / 2 * (head_dim)] __attribute__((aligned(64)));             \
  __local float slices[kDepthSlices * kTileRows * kSliceStride] __attribute__((aligned(64))); \
  __local uint16_t weights[kTileRows * kAttnHeads] __attribute__((aligned(64)));              \
  __local float rescale[kAttnHeads] __attribute__((aligned(64)));                             \
  __local float factors[kTileRows] __attribute__((aligned(64)));                              \
  const MatrixAttnLocal local_memory { tile, slices, weights, rescale, factors }
struct MatrixAttnLocal {
  __local uint32_t* tile;     // [row / 2][column]: bf16 values of two rows, the first in the lower half
  __local float* slices;      // [slice][row][head]: partial logits
  __local uint16_t* weights;  // multiplied by the row's factor; layout: weight_index
  __local float* rescale;     // [head]; after the last tile, the factor of the result
  __local float* factors;     // [row]; 0 for rows that are not attended
};

// Fragments from local memory.
// A of the logit product: eight rows of the tile, 16 columns.
inline FragmentA key_fragment(const __local uint32_t* tile, int stride) {
  const int lane = get_sub_group_local_id();
#if STRATA_SUBGROUP == 16
  const __local uint32_t* own = tile + lane;
  return as_short8((uint4)(own[0], own[stride], own[2 * stride], own[3 * stride]));
#else
  const __local uint32_t* own = tile + 2 * lane;
  const uint2 a = *(const __local uint2*)own, b = *(const __local uint2*)(own + stride);
  const uint2 c = *(const __local uint2*)(own + 2 * stride), d = *(const __local uint2*)(own + 3 * stride);
  return as_int8((uint8)(lows_of(a.x, a.y), highs_of(a.x, a.y), lows_of(b.x, b.y), highs_of(b.x, b.y), lows_of(c.x, c.y),
                         highs_of(c.x, c.y), lows_of(d.x, d.y), highs_of(d.x, d.y)));
#endif
}
// B of the value product: 16 rows of the tile, one column per item.
inline FragmentB value_fragment(const __local uint32_t* tile, int stride) {
  const __local uint32_t* own = tile + (int)get_sub_group_local_id();
  return as_int8(
      (uint8)(own[0], own[stride], own[2 * stride], own[3 * stride], own[4 * stride], own[5 * stride], own[6 * stride], own[7 * stride]));
}
// A of the value product: the weights of eight heads and 16 rows. Local memory has the fragment's layout, so that an item reads one vector.
#if STRATA_SUBGROUP == 16
inline int weight_index(int row, int head) { return row * kAttnHeads + head; }
inline FragmentA weight_fragment(const __local uint16_t* weights, int first_head, int first_row) {
  const int row = first_row + (int)get_sub_group_local_id();
  return as_short8(*(const __local uint4*)(weights + weight_index(row, first_head)));
}
#else
inline int weight_index(int row, int head) { return (row / 2 * kAttnHeads + head) * 2 + row % 2; }
inline FragmentA weight_fragment(const __local uint16_t* weights, int first_head, int first_row) {
  const int row = first_row + 2 * (int)get_sub_group_local_id();
  return *(const __local int8*)(weights + weight_index(row, first_head));
}
#endif
// B of the logit product: 16 values of the query of the item's head.
inline FragmentB query_fragment(const __global uint16_t* q) { return (int8)(((const __global int4*)q)[0], ((const __global int4*)q)[1]); }

// Two rows of one format. A row with factor 0 is stored as zeros, whatever its memory holds.
struct RowPair {
  RowAddress even, odd;
};
// Stores eight columns of both rows.
inline void store_pair(const RowPair& rows, uint4 even, uint4 odd, __local uint32_t* to) {
  const uint4 a = rows.even.factor == 0.0f ? (uint4)(0, 0, 0, 0) : even, b = rows.odd.factor == 0.0f ? (uint4)(0, 0, 0, 0) : odd;
  __local uint4* pairs = (__local uint4*)to;
  pairs[0] = (uint4)(lows_of(a.x, b.x), highs_of(a.x, b.x), lows_of(a.y, b.y), highs_of(a.y, b.y));
  pairs[1] = (uint4)(lows_of(a.z, b.z), highs_of(a.z, b.z), lows_of(a.w, b.w), highs_of(a.w, b.w));
}

// scales_of: all scales of a row that begins at a multiple of 16 bytes. scale_of_run: the scale of one run.
template <KvFormat kFormat>
inline uint4 scales_of(const RowAddress& row) {
  if (kFormat == KvFormat::fp8_ds_mla_v4) return (uint4)(*(const __global uint2*)row.scales, (uint2)(0, 0));
  if (kFormat == KvFormat::fp8_ds_mla) return *(const __global uint4*)(row.data + kMlaScaleOffset);
  return (uint4)(0, 0, 0, 0);
}
template <KvFormat kFormat>
inline float scale_of_run(uint4 scales, int run) {
  if (kFormat == KvFormat::fp8_ds_mla_v4) {
    const int block = run / (kKvBlock / kRun);
    return to_float(E8m0{(uint8_t)((block < 4 ? scales.x : scales.y) >> block % 4 * 8)});
  }
  if (kFormat != KvFormat::fp8_ds_mla) return 1.0f;
  const int block = run / (kMlaTile / kRun);
  const uint2 two = block < 2 ? scales.xy : scales.zw;
  return as_float(block % 2 == 0 ? two.x : two.y);
}
// Loads and decodes kSteps runs of e4m3 values of both rows: run, run + STRATA_SUBGROUP, ...
template <KvFormat kFormat, int kSteps>
inline void load_fp8(const RowPair& rows, uint4 even_scales, uint4 odd_scales, int run, __local uint32_t* to) {
  uint2 even[kSteps], odd[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    even[i] = ((const __global uint2*)rows.even.data)[run + i * STRATA_SUBGROUP];
    odd[i] = ((const __global uint2*)rows.odd.data)[run + i * STRATA_SUBGROUP];
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int own = run + i * STRATA_SUBGROUP;
    constexpr bool kIsRounded = kFormat == KvFormat::fp8_ds_mla;
    store_pair(rows, decode_words(even[i], scale_of_run<kFormat>(even_scales, own), kIsRounded),
               decode_words(odd[i], scale_of_run<kFormat>(odd_scales, own), kIsRounded), to + own * kRun);
  }
}
// The same for bf16 values, which begin at even_data and odd_data.
template <int kSteps>
inline void load_bf16(const RowPair& rows, const __global uint8_t* even_data, const __global uint8_t* odd_data, int run,
                      __local uint32_t* to) {
  uint4 even[kSteps], odd[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    even[i] = ((const __global uint4*)even_data)[run + i * STRATA_SUBGROUP];
    odd[i] = ((const __global uint4*)odd_data)[run + i * STRATA_SUBGROUP];
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) store_pair(rows, even[i], odd[i], to + (run + i * STRATA_SUBGROUP) * kRun);
}
// Rows begin at multiples of 16 bytes. A row has e4m3 values, then bf16 values.
template <KvFormat kFormat, int kHeadDim>
inline void load_pair_as(const RowPair& rows, __local uint32_t* to) {
  constexpr int kRuns = kHeadDim / kRun;
  constexpr int kFp8Runs = kFormat == KvFormat::bf16            ? 0
                           : kFormat == KvFormat::fp8_ds_mla_v4 ? kV4NopeDim / kRun
                           : kFormat == KvFormat::fp8_ds_mla    ? kMlaLatentDim / kRun
                                                                : kRuns;
  const int lane = get_sub_group_local_id();
  if (kFp8Runs > 0) {
    constexpr int kSteps = kFp8Runs / STRATA_SUBGROUP, kBatch = 2, kRest = kSteps % kBatch;
    const uint4 even_scales = scales_of<kFormat>(rows.even), odd_scales = scales_of<kFormat>(rows.odd);
    int run = lane;
#pragma unroll 1
    for (int i = 0; i < kSteps / kBatch; ++i, run += kBatch * STRATA_SUBGROUP)
      load_fp8<kFormat, kBatch>(rows, even_scales, odd_scales, run, to);
    if (kRest > 0) load_fp8<kFormat, kRest == 0 ? 1 : kRest>(rows, even_scales, odd_scales, run, to);
    run += kRest * STRATA_SUBGROUP;
    if (kFp8Runs % STRATA_SUBGROUP != 0 && run < kFp8Runs) load_fp8<kFormat, 1>(rows, even_scales, odd_scales, run, to);
  }
  if (kRuns > kFp8Runs) {
    constexpr int kBf16Runs = kRuns - kFp8Runs, kSteps = kBf16Runs / STRATA_SUBGROUP, kBatch = 2;
    const int offset = kFormat == KvFormat::fp8_ds_mla ? kMlaRopeOffset : kFp8Runs * kRun;
    const __global uint8_t* even = rows.even.data + offset;
    const __global uint8_t* odd = rows.odd.data + offset;
    __local uint32_t* own = to + kFp8Runs * kRun;
    int run = lane;
#pragma unroll 1
    for (int i = 0; i < kSteps / kBatch; ++i, run += kBatch * STRATA_SUBGROUP) load_bf16<kBatch>(rows, even, odd, run, own);
    if (run < kBf16Runs) load_bf16<1>(rows, even, odd, run, own);
    static_assert(kBf16Runs <= (kSteps / kBatch * kBatch + 1) * STRATA_SUBGROUP);
  }
}
template <int kHeadDim>
inline void load_zeros(__local uint32_t* to) {
#pragma unroll 1
  for (int i = get_sub_group_local_id(); i < kHeadDim / 4; i += STRATA_SUBGROUP) ((__local uint4*)to)[i] = (uint4)(0, 0, 0, 0);
}
// If one row is missing, the address of the other row is read instead.
template <int kHeadDim>
inline void load_pair(RowPair rows, __local uint32_t* to) {
  if (rows.even.factor == 0.0f && rows.odd.factor == 0.0f) return load_zeros<kHeadDim>(to);
  if (rows.even.factor == 0.0f) rows.even = {rows.odd.data, rows.odd.scales, rows.odd.format, 0.0f};
  if (rows.odd.factor == 0.0f) rows.odd = {rows.even.data, rows.even.scales, rows.even.format, 0.0f};
  switch (rows.even.format) {
    case KvFormat::bf16: return load_pair_as<KvFormat::bf16, kHeadDim>(rows, to);
    case KvFormat::fp8_tensor: return load_pair_as<KvFormat::fp8_tensor, kHeadDim>(rows, to);
    case KvFormat::fp8_ds_mla_v4:
      if (kHeadDim == 512) load_pair_as<KvFormat::fp8_ds_mla_v4, 512>(rows, to);
      return;
    default:
      if (kHeadDim == 576) load_pair_as<KvFormat::fp8_ds_mla, 576>(rows, to);
  }
}

// `rows`: as in attend_rows.h; an even entry and the next one have the same format. Queries and rows begin at multiples of 16 bytes.
// Group numbers: 0 is (token, head tile), 1 the split, 2 the block of kAttnValues columns.
template <int kHeadDim, class Rows>
inline void attend_rows_xmx(const RowAttention& a, const Rows& rows, int64_t token, int head_tile, const MatrixAttnLocal& m) {
  constexpr int kDepthSteps = kHeadDim / kMatrixDepth, kSliceSteps = (kDepthSteps + kDepthSlices - 1) / kDepthSlices;
  constexpr int kOwnSteps = kSliceSteps == 4 ? 4 : 3;
  const int lane = get_sub_group_local_id(), subgroup = sub_group_broadcast((int)get_sub_group_id(), 0);
  const int split = get_group_id(1), first_column = get_group_id(2) * kAttnValues + subgroup * kOwnColumns;
  const int num_tiles = (rows.count() + kTileRows - 1) / kTileRows;
  const int tiles_per_split = (num_tiles + a.work.splits - 1) / a.work.splits;
  const int begin = min(split * tiles_per_split, num_tiles), end = min(begin + tiles_per_split, num_tiles);
  const int first_head = head_tile * kAttnHeads, last_head = a.num_heads - 1, own_head = first_head + subgroup;
  const int row_half = subgroup % kRowHalves, slice = subgroup / kRowHalves;

  // A slice has the steps slice, slice + kDepthSlices, ... of the dimensions. The first kOwnSteps stay in registers, which have no room
  // for more. The others are loaded again for every tile.
  FragmentB queries[kOwnSteps][kHeadBlocks];
  const __global uint16_t* own_queries[kHeadBlocks];
#pragma unroll
  for (int n = 0; n < kHeadBlocks; ++n) {
    const int head = min(first_head + n * STRATA_SUBGROUP + lane, last_head);
    own_queries[n] = at<const uint16_t>(a.q) + offset_of(a, a.q_stride, token, head) + slice * kMatrixDepth;
#pragma unroll
    for (int j = 0; j < kOwnSteps; ++j) queries[j][n] = query_fragment(own_queries[n] + j * kDepthSlices * kMatrixDepth);
  }
  FragmentC out[2][kColumnBlocks];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int n = 0; n < kColumnBlocks; ++n) out[h][n] = 0.0f;
  }
  float largest = -INFINITY, total = 0.0f;  // the running maximum of the sub-group's head; the sum of weights of the item's rows
  int even_index = rows.index(begin * kTileRows + 2 * subgroup), odd_index = rows.index(begin * kTileRows + 2 * subgroup + 1);
  for (int t = begin; t < end; ++t) {
    const int entry = t * kTileRows + 2 * subgroup;
    // Always 0, but the compiler does not know it. Otherwise it keeps every local address in a register throughout the loop.
    const int zero = (uint32_t)t >> 26;
    __local uint32_t* const tile = m.tile + zero;
    __local float* const slices = m.slices + zero;
    {
      const RowAddress even = even_index < 0 ? no_row() : rows.address(entry, even_index);
      const RowAddress odd = odd_index < 0 ? no_row() : rows.address(entry + 1, odd_index);
      load_pair<kHeadDim>({even, odd}, tile + subgroup * kHeadDim);
      if (lane == 0) {
        m.factors[2 * subgroup] = even.factor;
        m.factors[2 * subgroup + 1] = odd.factor;
      }
    }
    even_index = rows.index(entry + kTileRows);
    odd_index = rows.index(entry + kTileRows + 1);
    barrier(CLK_LOCAL_MEM_FENCE);

#pragma unroll 1
    for (int r = 0; r < 2; ++r) {
      const int first_row = (2 * row_half + r) * kMatrixRows;
      const __local uint32_t* keys = tile + first_row / 2 * kHeadDim + slice * kMatrixDepth;
      FragmentC logits[kHeadBlocks];
#pragma unroll
      for (int n = 0; n < kHeadBlocks; ++n) logits[n] = 0.0f;
#pragma unroll
      for (int j = 0; j < kOwnSteps; ++j) {
        const FragmentA own_keys = key_fragment(keys + j * kDepthSlices * kMatrixDepth, kHeadDim);
#pragma unroll
        for (int n = 0; n < kHeadBlocks; ++n) logits[n] = multiply_add(own_keys, queries[j][n], logits[n]);
      }
#pragma unroll
      for (int j = kOwnSteps; j < kSliceSteps; ++j) {
        if ((j + 1) * kDepthSlices <= kDepthSteps || slice + j * kDepthSlices < kDepthSteps) {
          const FragmentA own_keys = key_fragment(keys + j * kDepthSlices * kMatrixDepth, kHeadDim);
#pragma unroll
          for (int n = 0; n < kHeadBlocks; ++n) {
            logits[n] = multiply_add(own_keys, query_fragment(own_queries[n] + j * kDepthSlices * kMatrixDepth), logits[n]);
          }
        }
      }
      __local float* own = slices + (slice * kTileRows + first_row) * kSliceStride + lane;
#pragma unroll
      for (int n = 0; n < kHeadBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < kMatrixRows; ++i) own[i * kSliceStride + n * STRATA_SUBGROUP] = logits[n][i];
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    float logit[kOwnRows], factor[kOwnRows], top = largest;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const int row = i * STRATA_SUBGROUP + lane;
      float sum = 0.0f;
#pragma unroll 4
      for (int s = 0; s < kDepthSlices; ++s) sum += slices[(s * kTileRows + row) * kSliceStride + subgroup];
      factor[i] = m.factors[row];
      logit[i] = factor[i] == 0.0f ? -INFINITY : sum * (a.scale * factor[i]);
      top = fmax(top, logit[i]);
    }
    top = sub_group_reduce_max(top);
    const float rescale = largest == -INFINITY ? 0.0f : exp(largest - top);
    largest = top;
    total *= rescale;
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const float weight = logit[i] == -INFINITY ? 0.0f : exp(logit[i] - top);
      total += weight;
      m.weights[weight_index(i * STRATA_SUBGROUP + lane, subgroup)] = (uint16_t)bf16_bits(weight * factor[i]);
    }
    if (lane == 0) m.rescale[subgroup] = rescale;
    barrier(CLK_LOCAL_MEM_FENCE);

    if (first_column < a.value_dim) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float8 head_rescale = ((const __local float8*)m.rescale)[h];
#pragma unroll
        for (int n = 0; n < kColumnBlocks; ++n) out[h][n] *= head_rescale;
      }
#pragma unroll 1
      for (int row = 0; row < kTileRows; row += kMatrixDepth) {
        const FragmentA low = weight_fragment(m.weights, 0, row), high = weight_fragment(m.weights, kMatrixRows, row);
#pragma unroll
        for (int n = 0; n < kColumnBlocks; ++n) {
          const FragmentB values = value_fragment(tile + row / 2 * kHeadDim + first_column + n * STRATA_SUBGROUP, kHeadDim);
          out[0][n] = multiply_add(low, values, out[0][n]);
          out[1][n] = multiply_add(high, values, out[1][n]);
        }
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }

  total = sub_group_reduce_add(total);
  const bool is_whole = a.work.splits == 1;
  const int64_t first_sum = (((token - a.work.first_token) * a.num_heads + first_head) * a.work.splits + split);
  if (lane == 0) {
    float factor = 1.0f;
    if (own_head <= last_head) {
      if (is_whole) factor = factor_of(a, own_head, largest, total);
      if (get_group_id(2) == 0) {
        if (is_whole) {
          store_statistics(a, token, own_head, largest, total);
        } else {
          at<float2>(a.work.statistics)[first_sum + subgroup * a.work.splits] = (float2)(largest, total);
        }
      }
    }
    m.rescale[subgroup] = factor;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (!is_whole && begin == end) return;
  const int64_t sum_step = (int64_t)a.work.splits * a.work.sum_stride;  // between heads
  const int first_own = first_column + lane, heads = min(kAttnHeads, last_head - first_head + 1);
  __global uint16_t* to = at<uint16_t>(a.out) + offset_of(a, a.out_stride, token, first_head) + first_own;
  __global float* to_sums = at<float>(a.work.sums) + first_sum * a.work.sum_stride + first_own;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int i = 0; i < kMatrixRows; ++i) {
      const int head = h * kMatrixRows + i;
      if (head < heads) {
        const float factor = m.rescale[head];
#pragma unroll
        for (int n = 0; n < kColumnBlocks; ++n) {
          if (first_own + n * STRATA_SUBGROUP < a.value_dim) {
            if (is_whole) {
              to[n * STRATA_SUBGROUP] = (uint16_t)bf16_bits(out[h][n][i] * factor);
            } else {
              to_sums[n * STRATA_SUBGROUP] = out[h][n][i];
            }
          }
        }
      }
      to += a.out_stride.head;
      to_sums += sum_step;
    }
  }
}

}  // namespace strata::opencl
