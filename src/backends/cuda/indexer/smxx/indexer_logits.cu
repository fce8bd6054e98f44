// Logits of the lightning indexer on every architecture: V4 10.3, MLA 11.6. Any format, head count, width, page size and alignment.
//
// A CTA scores tiles of 64 entries for one token: entries are the rows of the tensor-core product (16 a warp), heads its columns, so that
// the ReLU and the weighted sum over heads stay within the four lanes that share a row. Both operands are 16-bit and exact (operand.cuh),
// products are summed in fp32.
// Floor: 2 * heads * dim flops per (token, entry) at the 16-bit tensor-core rate; a tile is converted once per token, which for 64 heads
// costs about half of that again.
#include <algorithm>

#include "backends/cuda/device/divisor.h"
#include "backends/cuda/indexer/indexer.h"
#include "backends/cuda/indexer/smxx/operand.cuh"
#include "backends/cuda/ptx/relu.cuh"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/cuda_device.h"
#include "backends/cuda/runtime/launch_config.h"

namespace strata::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kTile = 64;       // entries of a tile
constexpr int kHeadGroup = 32;  // heads whose sums a warp holds at a time

struct Args {
  const uint8_t* q;        // [T, heads, q_row_bytes]
  const uint8_t* q_scale;  // [T, heads, dim / 32]
  const float* weights;    // [T, heads]
  PagedCache cache;
  Divisor page_size;
  const int32_t* block_table;
  int64_t table_stride;
  const int32_t* token_to_req;
  const int32_t* lengths;
  int32_t skip;
  float* logits;
  int64_t logits_stride;
  int heads, dim;
  int padded_dim;  // a multiple of 16
  int chunk;       // heads in shared memory at a time, a multiple of kHeadGroup
  int blocks_per_token;
};

// Shared rows are 16 bytes longer than the vectors: eight consecutive rows start in eight different bank groups.
__host__ __device__ constexpr int row_stride(int padded_dim) { return padded_dim + 8; }

template <KvFormat kFormat>
__global__ void __launch_bounds__(kThreads) indexer_logits_kernel(const Args a) {
  extern __shared__ uint4 shared[];
  const int stride = row_stride(a.padded_dim);
  auto* const keys = reinterpret_cast<uint16_t*>(shared);
  uint16_t* const queries = keys + kTile * stride;
  auto* const weights = reinterpret_cast<float*>(queries + a.chunk * stride);
  float* const key_scales = weights + a.chunk;

  const int64_t t = blockIdx.x / a.blocks_per_token;
  const int length = a.lengths[t];
  if (length <= a.skip) return;
  const int first_tile = static_cast<int>(blockIdx.x % a.blocks_per_token);
  if (int64_t{first_tile} * kTile >= length) return;
  const int32_t* const table = a.block_table + a.token_to_req[t] * a.table_stride;
  const int chunks_of_row = a.padded_dim / 8;
  const int64_t data_bytes = row_data_bytes(kFormat, a.dim), scale_bytes = row_scale_bytes(kFormat);

  const auto load_queries = [&](int first_head) {
    for (int i = threadIdx.x; i < a.chunk * chunks_of_row; i += kThreads) {
      const int h = i / chunks_of_row, c = i % chunks_of_row;
      uint4 v = make_uint4(0, 0, 0, 0);
      if (first_head + h < a.heads) {
        const int64_t head = t * a.heads + first_head + h;
        v = load_operand<kFormat>(a.q + head * data_bytes, a.q_scale + head * scale_bytes, 8 * c, a.dim);
      }
      *reinterpret_cast<uint4*>(queries + h * stride + 8 * c) = v;
    }
    for (int h = threadIdx.x; h < a.chunk; h += kThreads)
      weights[h] = first_head + h < a.heads ? a.weights[t * a.heads + first_head + h] : 0.0f;
  };
  const auto load_keys = [&](int first_row) {
    for (int i = threadIdx.x; i < kTile * chunks_of_row; i += kThreads) {
      const int r = i / chunks_of_row, c = i % chunks_of_row, j = first_row + r;
      uint4 v = make_uint4(0, 0, 0, 0);
      if (j < length) {
        const int block = a.page_size.divide(j), row = j - block * a.page_size.value();
        const uint8_t* page = static_cast<const uint8_t*>(a.cache.data) + table[block] * a.cache.page_stride;
        const uint8_t* scales = page + a.page_size.value() * data_bytes + row * scale_bytes;
        v = load_operand<kFormat>(page + row * data_bytes, scales, 8 * c, a.dim);
        if (c == 0) key_scales[r] = kFormat == KvFormat::indexer_fp8 ? load_f32(scales) : 1.0f;
      }
      *reinterpret_cast<uint4*>(keys + r * stride + 8 * c) = v;
    }
  };

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // ldmatrix: tiles of a are (rows, k), (rows + 8, k), (rows, k + 8), (rows + 8, k + 8); of b two pairs of (heads, k), (heads, k + 8).
  const uint32_t key_address = ptx::shared_address(keys + (16 * warp + lane % 16) * stride + lane / 16 * 8);
  const uint32_t query_address = ptx::shared_address(queries + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8);
  const bool one_chunk = a.heads <= a.chunk;
  if (one_chunk) load_queries(0);

  for (int64_t tile = first_tile; tile * kTile < length; tile += a.blocks_per_token) {
    const int first_row = static_cast<int>(tile) * kTile;
    __syncthreads();  // the previous tile has been read
    load_keys(first_row);
    float sums[2] = {};  // of rows lane / 4 and lane / 4 + 8
    for (int first_head = 0; first_head < a.heads; first_head += a.chunk) {
      if (!one_chunk) {
        __syncthreads();
        load_queries(first_head);
      }
      __syncthreads();
      for (int group = 0; group < a.chunk && first_head + group < a.heads; group += kHeadGroup) {
        float acc[kHeadGroup / 8][4] = {};
        for (int k = 0; k < a.padded_dim; k += 16) {
          uint32_t rows[4];
          ptx::ldmatrix_x4(rows, key_address + 2 * k);
#pragma unroll
          for (int n = 0; n < kHeadGroup / 8; n += 2) {
            uint32_t heads[4];
            ptx::ldmatrix_x4(heads, query_address + 2 * ((group + 8 * n) * stride + k));
            mma_operands<kFormat>(acc[n], rows, heads[0], heads[1]);
            mma_operands<kFormat>(acc[n + 1], rows, heads[2], heads[3]);
          }
        }
        // Skips heads that do not exist: 0 times an infinite key is NaN.
        const int heads_left = a.heads - first_head - group - lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < kHeadGroup / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (8 * n + i % 2 < heads_left) sums[i / 2] += weights[group + 8 * n + lane % 4 * 2 + i % 2] * ptx::relu_nan(acc[n][i]);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = sums[i] + __shfl_xor_sync(0xFFFFFFFFu, sums[i], 1);
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
      const int r = 16 * warp + lane / 4 + 8 * i;
      if (lane % 4 == 0 && first_row + r < length) a.logits[t * a.logits_stride + first_row + r] = sum * key_scales[r];
    }
  }
}

template <KvFormat kFormat>
void launch(const Args& args, int64_t blocks, const ExecutionContext& context) {
  const int bytes = (kTile + args.chunk) * row_stride(args.padded_dim) * 2 + (kTile + args.chunk) * 4;
  allow_shared_bytes(indexer_logits_kernel<kFormat>, static_cast<size_t>(capabilities(context.device).max_shared_bytes));
  indexer_logits_kernel<kFormat><<<static_cast<unsigned>(blocks), kThreads, static_cast<size_t>(bytes), native(context.stream)>>>(args);
  check_launch("indexer_logits");
}

}  // namespace

bool smxx::launch_indexer_logits(const IndexerLogitsParams& p, int32_t skip, const LogitsHints& hints, const ExecutionContext& context) {
  if (hints.query != nullptr) launch_indexer_query(*hints.query, context);
  const int64_t num_tokens = p.q.shape[0], columns = p.logits.shape[1];
  if (num_tokens == 0 || columns == 0) return false;
  const int padded_dim = (p.cache.row_dim + 15) / 16 * 16;
  // Fits 99 KB of shared memory together with a tile of keys.
  const int chunk = std::min(padded_dim <= 256 ? 64 : 32, static_cast<int>((p.q.shape[1] + kHeadGroup - 1) / kHeadGroup * kHeadGroup));
  // Enough CTAs for several on every SM; where lengths are short, the rest return at once.
  const int64_t needed_blocks = (int64_t{16} * capabilities(context.device).num_sms + num_tokens - 1) / num_tokens;
  const int64_t blocks_per_token = std::min(needed_blocks, (columns + kTile - 1) / kTile);
  const Args args{p.q.ptr<uint8_t>(),
                  p.q_scale.ptr<uint8_t>(),
                  p.weights.ptr<float>(),
                  p.cache,
                  Divisor(p.cache.page_size),
                  p.block_table.ptr<int32_t>(),
                  p.block_table.stride[0],
                  p.token_to_req.ptr<int32_t>(),
                  p.lengths.ptr<int32_t>(),
                  skip,
                  p.logits.ptr<float>(),
                  p.logits.stride[0],
                  static_cast<int>(p.q.shape[1]),
                  p.cache.row_dim,
                  padded_dim,
                  chunk,
                  static_cast<int>(blocks_per_token)};
  const int64_t blocks = num_tokens * blocks_per_token;
  switch (p.cache.format) {
    case KvFormat::indexer_fp8: launch<KvFormat::indexer_fp8>(args, blocks, context); break;
    case KvFormat::indexer_mxfp4: launch<KvFormat::indexer_mxfp4>(args, blocks, context); break;
    default: launch<KvFormat::bf16>(args, blocks, context); break;
  }
  return false;
}

}  // namespace strata::cuda
