// Attention of a token's heads over shared key-value rows, in fp32: V4 specification 14.1, MLA specification 8. A work-group computes 16
// heads over one split of the rows. It decodes 16 rows at a time into local memory. Floor: with many heads, the fp32 products; with few,
// the bytes of the rows.
#pragma once

#include <cstdint>

#include "backends/opencl/attention/bf16_rows.h"
#include "backends/opencl/attention/call.h"
#include "backends/opencl/attention/products.h"
#include "backends/opencl/attention/token.h"

namespace strata::opencl {

constexpr int kRowItems = kAttnItems / kAttnRows;     // that load one row
constexpr int kMaxRuns = 576 / kRun;                  // per row
constexpr int kTileStride = kMaxRuns + 2;             // in runs: four rows lie in different banks
constexpr int kSlices = 8;                            // that the products of a logit are summed in
constexpr int kSumHeadStride = 20, kSumStride = 336;  // floats between heads, and between slices: no bank conflicts
constexpr int kValueItems = kAttnValues / kRun;

// Local memory of a group, 31936 bytes.
#define STRATA_ATTN_LOCAL                             \
  __local uint4 tile[kAttnRows * kTileStride];        \
  __local float sums[kSlices * kSumStride];           \
  __local float4 logits[kAttnHeads * kAttnRows / 4];  \
  __local float4 weights[kAttnRows * kAttnHeads / 4]; \
  __local float4 rescale[kAttnHeads / 4];             \
  __local float factors[kAttnRows];                   \
  __local float totals[kAttnHeads];                   \
  const AttnLocal local_memory { tile, sums, logits, weights, rescale, factors, totals }
struct AttnLocal {
  __local uint4* tile;      // [row][run]
  __local float* sums;      // [slice][head][row]: partial logits
  __local float4* logits;   // [head][row]
  __local float4* weights;  // [row][head], multiplied by the row's factor
  __local float4* rescale;  // [head]
  __local float* factors;   // [row]; 0 for rows that are not attended
  __local float* totals;    // [head]: first the maximum, then the factor of the result
};

// Loads an item's runs first_run, first_run + 16, ... All loads are issued first. The runs are then decoded one by one, which saves
// registers.
template <int kSteps>
inline void load_runs(const RowAddress& row, int first_run, __local uint4* tile_row) {
  uint4 stored[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) stored[i] = load_aligned(row, (first_run + i * kRowItems) * kRun);
#pragma unroll 1
  for (int i = 0; i < kSteps; ++i) {
    const int run = first_run + i * kRowItems;
    tile_row[run] = decode(row, run * kRun, stored[0]);
#pragma unroll
    for (int k = 0; k + 1 < kSteps; ++k) stored[k] = stored[k + 1];
  }
}
// 16 items load a row, eight values at a time. kHeadDim: head_dim, or 0 for any head_dim.
template <int kHeadDim>
inline void load_tile(const RowAddress& row, int first_run, int head_dim, __local uint4* tile_row) {
  if (row.factor == 0.0f) {
    for (int run = first_run; run * kRun < head_dim; run += kRowItems) tile_row[run] = (uint4)(0, 0, 0, 0);
  } else if (kHeadDim != 0 && row.is_aligned()) {
    constexpr int kRuns = kHeadDim / kRun;
    load_runs<kRuns / kRowItems>(row, first_run, tile_row);
    if (first_run < kRuns % kRowItems) load_runs<1>(row, first_run + kRuns / kRowItems * kRowItems, tile_row);
  } else {
#pragma unroll 1
    for (int run = first_run; run * kRun < head_dim; run += kRowItems) {
      const int column = run * kRun;
      tile_row[run] = decode(row, column, load_unaligned(row, column, min(kRun, head_dim - column)));
    }
  }
}

// `rows` has count(), index(entry) and address(entry, index). index() is negative if there is no row; it is called one tile ahead.
// Group numbers: 0 is (token, head tile), 1 the split, 2 the block of kAttnValues columns. kHeadDim: as in load_tile.
template <int kHeadDim, class Rows>
inline void attend_rows(const RowAttention& a, const Rows& rows, int64_t token, int head_tile, const AttnLocal& m) {
  const int item = get_local_id(0);
  const int split = get_group_id(1), first_column = get_group_id(2) * kAttnValues;
  const int num_tiles = (rows.count() + kAttnRows - 1) / kAttnRows;
  const int tiles_per_split = (num_tiles + a.work.splits - 1) / a.work.splits;
  const int begin = min(split * tiles_per_split, num_tiles), end = min(begin + tiles_per_split, num_tiles);
  const int head_dim = kHeadDim != 0 ? kHeadDim : a.head_dim;
  const int first_head = head_tile * kAttnHeads, last_head = a.num_heads - 1;

  // The item's share of each phase: a run of a row; a slice of the products of two heads and four rows; one logit; eight columns of four
  // heads.
  const int own_row = item / kRowItems, own_run = item % kRowItems;
  const int slice = item / 16 % 2 + item / 64 * 2, item_head = item / 4 % 4 + item / 32 % 2 * 4, item_row = item % 4;
  const int logit_head = item / kAttnRows, logit_row = item % kAttnRows;
  const int value_heads = item / kValueItems, value_run = first_column / kRun + item % kValueItems;
  const int column = value_run * kRun;

  const __global uint16_t* q0 = at<const uint16_t>(a.q) + offset_of(a, a.q_stride, token, first_head);
  const __global uint16_t* q[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    q[j] = q0 + min(item_head + 8 * j, last_head - first_head) * a.q_stride.head;
  }
  float out[4][kRun];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int i = 0; i < kRun; ++i) out[j][i] = 0.0f;
  }
  float largest = -INFINITY, total = 0.0f;  // the running maximum of the logit's head; the sum of weights of its head and row
  int index = rows.index(begin * kAttnRows + own_row);
  for (int t = begin; t < end; ++t) {
    const int entry = t * kAttnRows + own_row;
    const RowAddress row = index < 0 ? no_row() : rows.address(entry, index);
    load_tile<kHeadDim>(row, own_run, head_dim, m.tile + own_row * kTileStride);
    if (own_run == 0) m.factors[own_row] = row.factor;
    index = rows.index(entry + kAttnRows);
    barrier(CLK_LOCAL_MEM_FENCE);

    float logits[2][4];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) logits[j][i] = 0.0f;
    }
#pragma unroll 1
    for (int run = slice; run * kRun < head_dim; run += kSlices) {
      float queries[2][kRun];
#pragma unroll
      for (int j = 0; j < 2; ++j) unpack(load_query(q[j], run * kRun, head_dim, a.is_q_aligned), queries[j]);
#pragma unroll
      for (int i = 0; i < 4; ++i) add_products<2>(queries, m.tile[(item_row + 4 * i) * kTileStride + run], i, logits);
    }
    __local float* own = m.sums + slice * kSumStride + item_head * kSumHeadStride + item_row;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) own[8 * j * kSumHeadStride + 4 * i] = logits[j][i];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float logit = 0.0f;
#pragma unroll
    for (int s = 0; s < kSlices; ++s) logit += m.sums[s * kSumStride + logit_head * kSumHeadStride + logit_row];
    const float factor = m.factors[logit_row];
    logit = factor == 0.0f ? -INFINITY : logit * (a.scale * factor);
    ((__local float*)m.logits)[item] = logit;
    barrier(CLK_LOCAL_MEM_FENCE);
    float top = largest;
#pragma unroll
    for (int i = 0; i < kAttnRows / 4; ++i) {
      const float4 l = m.logits[logit_head * (kAttnRows / 4) + i];
      top = fmax(top, fmax(fmax(l.x, l.y), fmax(l.z, l.w)));
    }
    const float weight = logit == -INFINITY ? 0.0f : exp(logit - top);
    const float rescale = largest == -INFINITY ? 0.0f : exp(largest - top);
    largest = top;
    total = fma(total, rescale, weight);
    ((__local float*)m.weights)[logit_row * kAttnHeads + logit_head] = weight * factor;
    if (logit_row == 0) ((__local float*)m.rescale)[logit_head] = rescale;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (column < a.value_dim) {
      const float4 head_rescale = m.rescale[value_heads];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int i = 0; i < kRun; ++i) out[j][i] *= head_rescale[j];
      }
#pragma unroll 2
      for (int r = 0; r < kAttnRows; ++r)
        add_values(m.weights[r * (kAttnHeads / 4) + value_heads], m.tile[r * kTileStride + value_run], out);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }

  m.sums[logit_head * kSumHeadStride + logit_row] = total;
  if (logit_row == 0) m.totals[logit_head] = largest;
  barrier(CLK_LOCAL_MEM_FENCE);
  const bool is_whole = a.work.splits == 1;
  const int64_t first_sum = (((token - a.work.first_token) * a.num_heads + first_head) * a.work.splits + split);
  if (item < kAttnHeads) {
    float sum = 0.0f;
#pragma unroll
    for (int r = 0; r < kAttnRows; ++r) sum += m.sums[item * kSumHeadStride + r];
    const int head = first_head + item;
    const float top = m.totals[item];
    float out_factor = 1.0f;
    if (head <= last_head && is_whole) out_factor = factor_of(a, head, top, sum);
    if (head <= last_head && first_column == 0) {
      if (is_whole) {
        store_statistics(a, token, head, top, sum);
      } else {
        at<float2>(a.work.statistics)[first_sum + item * a.work.splits] = (float2)(top, sum);
      }
    }
    m.totals[item] = out_factor;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (column < a.value_dim && (is_whole || begin < end)) {
    const int own_head = first_head + value_heads * 4;
    __global uint16_t* to = at<uint16_t>(a.out) + offset_of(a, a.out_stride, token, own_head) + column;
    __global float4* to_sums = at<float4>(a.work.sums) + ((first_sum + value_heads * 4 * a.work.splits) * a.work.sum_stride + column) / 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (own_head + j <= last_head) {
        if (is_whole) {
          store_result(a, to + j * a.out_stride.head, column, out[j], m.totals[value_heads * 4 + j]);
        } else {
          __global float4* of_head = to_sums + j * a.work.splits * (a.work.sum_stride / 4);
          of_head[0] = (float4)(out[j][0], out[j][1], out[j][2], out[j][3]);
          of_head[1] = (float4)(out[j][4], out[j][5], out[j][6], out[j][7]);
        }
      }
    }
  }
}

}  // namespace strata::opencl
