// The V3.2 indexer's keys: LayerNorm, rotation, Hadamard, quantisation, insert: MLA 11.1-11.4 and 11.9. A warp per token. Floor: 256 bytes
// read and 132 written a token, which is nothing beside the launch up to thousands of tokens.
#include "backends/cuda/common/early_launch.cuh"
#include "backends/cuda/common/implementation.h"
#include "backends/cuda/common/store_row.cuh"
#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/smxx/indexer/indexer_vector.cuh"

namespace strata::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int32_t kLaneValues = 4;  // of a row of 128 values, the only one that is quantised

struct KeyArgs {
  const Bf16* k;
  int64_t k_stride;
  int32_t dim;
  const float* weight;
  const float* bias;
  float eps;
  const int64_t* positions;
  const float* cos_sin;  // null: no rotation
  int64_t cos_sin_stride;
  int32_t rotary, first_rotary;
  RopePairing pairing;
  bool hadamard;
  const int64_t* slot_mapping;
  int64_t num_slots;
  PagedCache cache;
};

// x = bf16(LayerNorm(k)).
__device__ void layer_norm(const KeyArgs& a, const Bf16* k, float* x, int lane) {
  float sum = 0.0f;
  for (int32_t i = lane; i < a.dim; i += kWarpSize) {
    x[i] = to_float(k[i]);
    sum += x[i];
  }
  const float mean = lanes_sum(sum) / static_cast<float>(a.dim);
  float squares = 0.0f;
  for (int32_t i = lane; i < a.dim; i += kWarpSize) squares = fmaf(x[i] - mean, x[i] - mean, squares);
  const float deviation = sqrtf(lanes_sum(squares) / static_cast<float>(a.dim) + a.eps);
  for (int32_t i = lane; i < a.dim; i += kWarpSize) x[i] = round_to_bf16((x[i] - mean) / deviation * a.weight[i] + a.bias[i]);
  __syncwarp();
}

__global__ void indexer_key_insert_kernel(const __grid_constant__ KeyArgs a) {
  extern __shared__ float vectors[];
  start_early();
  const int lane = static_cast<int>(threadIdx.x % kWarpSize), warp = static_cast<int>(threadIdx.x / kWarpSize);
  const int64_t t = int64_t{blockIdx.x} * kWarps + warp;
  if (t >= a.num_slots) return;
  const int64_t slot = a.slot_mapping[t];
  float* const x = vectors + warp * a.dim;
  layer_norm(a, a.k + t * a.k_stride, x, lane);  // does not wait for the slot: few tokens have none
  if (slot < 0) return;
  if (a.cos_sin != nullptr) rotate_vector(x, a.cos_sin + a.positions[t] * a.cos_sin_stride, a.first_rotary, a.rotary, a.pairing, lane);
  if (a.hadamard) hadamard_vector(x, a.dim, lane);  // storing rounds its result to bf16
  if (a.dim == kLaneValues * kWarpSize) {
    float row[kLaneValues];
#pragma unroll
    for (int i = 0; i < kLaneValues; ++i) row[i] = x[lane * kLaneValues + i];
    store_row(a.cache, slot, row, lane);
  } else {
    uint8_t* const out = row_address(a.cache, slot).data;
    for (int32_t i = lane; i < a.dim; i += kWarpSize) store_u16(out + 2 * i, to_bf16(x[i]).bits);
  }
}

void run(const IndexerKeyInsertParams& p, const ExecutionContext& context) {
  const int64_t num_slots = p.slot_mapping.shape[0];
  if (num_slots == 0) return;
  const int64_t dim = p.k.shape[1], rotary = p.cos_sin.present() ? p.cos_sin.shape[1] : 0;
  const KeyArgs args{.k = p.k.ptr<Bf16>(),
                     .k_stride = p.k.stride[0],
                     .dim = static_cast<int32_t>(dim),
                     .weight = p.weight.ptr<float>(),
                     .bias = p.bias.ptr<float>(),
                     .eps = p.eps,
                     .positions = p.positions.ptr<int64_t>(),
                     .cos_sin = p.cos_sin.ptr<float>(),
                     .cos_sin_stride = p.cos_sin.stride[0],
                     .rotary = static_cast<int32_t>(rotary),
                     .first_rotary = static_cast<int32_t>(p.lanes == RopeLanes::last ? dim - rotary : 0),
                     .pairing = p.pairing,
                     .hadamard = p.hadamard,
                     .slot_mapping = p.slot_mapping.ptr<int64_t>(),
                     .num_slots = num_slots,
                     .cache = p.cache};
  const size_t shared_bytes = sizeof(float) * kWarps * static_cast<size_t>(dim);
  const LaunchShape shape{static_cast<uint32_t>((num_slots + kWarps - 1) / kWarps), kWarps * kWarpSize, shared_bytes};
  launch_early("indexer_key_insert", indexer_key_insert_kernel, shape, context, args);
}

}  // namespace

std::vector<Implementation<IndexerKeyInsertParams>> indexer_key_insert() {
  return smxx_implementation<IndexerKeyInsertParams>({.run = run});
}

}  // namespace strata::cuda
