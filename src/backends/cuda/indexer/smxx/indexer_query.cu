// The indexer's queries of any shape: a warp per head, the vector in shared memory. The shapes of the models go to
// indexer_query_128.cu.
#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/indexer/impls.h"
#include "backends/cuda/indexer/indexer.h"
#include "backends/cuda/indexer/indexer_query.cuh"
#include "backends/cuda/indexer/smxx/indexer_vector.cuh"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/implementation.h"
#include "formats/quantize.h"

namespace strata::cuda {
namespace {

constexpr int kWarps = 4;

__device__ float store_e4m3(const IndexerQueryArgs& a, int64_t head, const float* x, int lane) {
  float most = 0.0f;
  for (int32_t i = lane; i < a.dim; i += kWarpSize) most = fmaxf(most, fabsf(x[i]));
  const int exponent = e4m3_exponent(fmaxf(lanes_max(most), a.amax_floor));
  for (int32_t i = lane; i < a.dim; i += kWarpSize) a.q_out[head * a.dim + i] = to_e4m3(x[i] * pow2(-exponent)).bits;
  // Not through a byte: see BlockScale. amax_floor may be so small that the scale is subnormal.
  return exponent < -126 ? 0x1p-127f : BlockScale{exponent}.value();
}

__device__ void store_mxfp4(const IndexerQueryArgs& a, int64_t head, const float* x, int lane) {
  for (int32_t block = lane; block < a.dim / kMxfp4Block; block += kWarpSize) {
    const int64_t at = head * a.dim + block * kMxfp4Block;
    a.q_scale_out[at / kMxfp4Block] = quantize_mxfp4_block(x + block * kMxfp4Block, a.q_out + at / 2).bits;
  }
}

__global__ void indexer_query_kernel(const __grid_constant__ IndexerQueryArgs a, QueryFormat format) {
  extern __shared__ float vectors[];
  const int lane = static_cast<int>(threadIdx.x % kWarpSize), warp = static_cast<int>(threadIdx.x / kWarpSize);
  const int64_t t = blockIdx.x;
  const int32_t h = static_cast<int32_t>(blockIdx.y) * kWarps + warp;
  if (h >= a.heads) return;
  float* const x = vectors + warp * a.dim;
  const uint8_t* const q = a.q + t * a.token_stride + h * a.head_stride;
  for (int32_t i = lane; i < a.dim; i += kWarpSize) x[i] = to_float(reinterpret_cast<const Bf16*>(q)[i]);
  __syncwarp();
  if (a.cos_sin != nullptr) rotate_vector(x, a.cos_sin + a.positions[t] * a.cos_sin_stride, a.first_rotary, a.rotary, a.pairing, lane);
  if (a.hadamard) {
    hadamard_vector(x, a.dim, lane);
    for (int32_t i = lane; i < a.dim; i += kWarpSize) x[i] = round_to_bf16(x[i]);
    __syncwarp();
  }
  const int64_t head = t * a.heads + h;
  float q_scale = 1.0f;
  if (format == QueryFormat::e4m3) {
    q_scale = store_e4m3(a, head, x, lane);
  } else if (format == QueryFormat::mxfp4) {
    store_mxfp4(a, head, x, lane);
  } else {
    for (int32_t i = lane; i < a.dim; i += kWarpSize) reinterpret_cast<Bf16*>(a.q_out)[head * a.dim + i] = to_bf16(x[i]);
  }
  if (lane == 0) a.weights_out[head] = a.scaled_weight(a.weight(t, h), q_scale);
}

}  // namespace

IndexerQueryArgs indexer_query_args(const IndexerQueryParams& p) {
  const bool rotates = p.cos_sin.present();
  const int64_t dim = p.q.shape[2], rotary = rotates ? p.cos_sin.shape[1] : 0;
  const bool bf16_weights = p.weights.dtype == DType::bf16;
  return {.q = p.q.ptr<uint8_t>(),
          .token_stride = p.q.stride[0] * 2,
          .head_stride = p.q.stride[1] * 2,
          .heads = static_cast<int32_t>(p.q.shape[1]),
          .dim = static_cast<int32_t>(dim),
          .weights = p.weights.ptr<uint8_t>(),
          .weights_stride = p.weights.stride[0] * (bf16_weights ? 2 : 4),
          .bf16_weights = bf16_weights,
          .positions = p.positions.ptr<int64_t>(),
          .cos_sin = p.cos_sin.ptr<float>(),
          .cos_sin_stride = p.cos_sin.stride[0],
          .table_rows = rotates ? p.cos_sin.shape[0] : 0,
          .rotary = static_cast<int32_t>(rotary),
          .first_rotary = static_cast<int32_t>(p.rope_slice == RopeSlice::last ? dim - rotary : 0),
          .pairing = p.pairing,
          .hadamard = p.hadamard,
          .softmax_scale = p.softmax_scale,
          .head_scale = p.head_scale,
          .amax_floor = p.amax_floor,
          .q_out = p.q_out.ptr<uint8_t>(),
          .q_scale_out = p.q_scale_out.ptr<uint8_t>(),
          .weights_out = p.weights_out.ptr<float>()};
}

bool suits_indexer_query_128(const IndexerQueryParams& p) {
  if (p.q.shape[2] != 128 || !begins_aligned(p.q.data) || p.q.stride[0] % 8 != 0 || p.q.stride[1] % 8 != 0 || !begins_aligned(p.q_out.data))
    return false;
  if (p.amax_floor < 0x1p-100f) return false;
  return !p.cos_sin.present() || (p.cos_sin.shape[1] == 64 && begins_aligned(p.cos_sin.data) && p.cos_sin.stride[0] % 4 == 0);
}

void launch_indexer_query(const IndexerQueryParams& p, const ExecutionContext& context) {
  const int64_t num_tokens = p.q.shape[0];
  if (num_tokens == 0 || p.q.shape[1] == 0) return;
  const IndexerQueryArgs args = indexer_query_args(p);
  const QueryFormat format = p.q_out.dtype == DType::e4m3 ? QueryFormat::e4m3
                             : p.q_out.dtype == DType::u8 ? QueryFormat::mxfp4
                                                          : QueryFormat::bf16;
  if (suits_indexer_query_128(p)) return launch_indexer_query_128(args, format, num_tokens, context);
  const dim3 grid(static_cast<uint32_t>(num_tokens), static_cast<uint32_t>((args.heads + kWarps - 1) / kWarps));
  const size_t shared_bytes = sizeof(float) * kWarps * static_cast<size_t>(args.dim);
  indexer_query_kernel<<<grid, kWarps * kWarpSize, shared_bytes, native(context.stream)>>>(args, format);
  check_launch("indexer_query");
}

Implementation<IndexerQueryParams> indexer_query_smxx() { return smxx_implementation<IndexerQueryParams>({.run = launch_indexer_query}); }

}  // namespace strata::cuda
