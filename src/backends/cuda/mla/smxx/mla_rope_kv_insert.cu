// Rotation of queries and keys and the cache write in one launch: warps of the first CTAs have a key row each, threads of the others a few
// runs of query dimensions. Floor: 4 bytes per rotary query value (all values with llama_4_scaling), 2 more into q_pe_out, and about 2.4 KB
// per key; V3, 128 heads, 4096 tokens: 144 MB, 33 us at 4.3 TB/s. Reached on an H200: 44 us (76%).
#include "backends/cuda/device/run.cuh"
#include "backends/cuda/device/store_row.cuh"
#include "backends/cuda/mla/impls.h"
#include "backends/cuda/runtime/early_launch.cuh"
#include "backends/cuda/runtime/grid.h"

namespace strata::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kManyRuns = 2;  // per thread, where one each would not fit on the device at once
constexpr int blocks_per_sm(int runs) { return runs == 1 ? 8 : 12; }

struct Call {
  Rows<Bf16> q;
  Rows<const Bf16> latent;
  Rows<Bf16> k_pe;
  const int64_t* positions;
  Rows<const float> cos_sin;  // data null: no rotation
  int64_t num_angles;
  const float* llama_4_scaling;
  Rows<Bf16> q_pe_out;
  int64_t absorbed;  // rows of q_pe_out
  const int64_t* slots;
  int64_t num_slots;  // entries of slots
  PagedCache cache;
  CacheRows cache_rows;
  StoreOptions options;
  int32_t latent_dim, rotary;
  int64_t keys;
  unsigned key_blocks;  // 0: nothing to do for keys
  bool touches;         // all CTAs are on the device at once: prefetches of later CTAs delay none
  RunPlan plan;
};

__device__ __forceinline__ const float* angles_of(const Call& c, int64_t t) {
  return c.cos_sin.data == nullptr ? nullptr : c.cos_sin.row(__ldg(c.positions + t));
}

// Rotates the pair of rotary key dimensions 2 * i, rounds it, and writes it back to k_pe.
__device__ __forceinline__ void rotate_key_pair(const Call& c, Bf16* k_pe, const float* angles_row, int i, float (&pair)[2]) {
  load_values<false>(k_pe + 2 * i, pair);
  if (angles_row == nullptr) return;
  float angles[2];
  load_angles<false>(angles_row, c.rotary, 2 * i, angles);
  rotate_values(pair, angles);
  pair[0] = round_to_bf16(pair[0]);
  pair[1] = round_to_bf16(pair[1]);
  store_values<false>(k_pe + 2 * i, pair);
}

__device__ void key(const Call& c, int64_t t, int lane) {
  const int64_t slot = t < c.num_slots ? __ldg(c.slots + t) : -1;
  const float* const angles_row = angles_of(c, t);
  Bf16* const k_pe = c.k_pe.row(t);
  const Bf16* const latent = c.latent.row(t);
  float pair[2];
  if (c.latent_dim == kMlaLatentDim && c.rotary == kMlaRopeDim) {
    float values[kMlaLatentDim / kWarpSize];
    load_bf16(reinterpret_cast<const uint8_t*>(latent + 16 * lane), values);  // the slot loads at the same time
    rotate_key_pair(c, k_pe, angles_row, lane, pair);
    if (slot >= 0) store_mla_row<true>(c.cache, c.cache_rows.row(slot), values, pair, lane, c.options);
    return;
  }
  const RowAddress to = slot >= 0 ? c.cache_rows.row(slot) : RowAddress{};
  const TensorScale scale(c.cache.scale, c.options.divide);
  for (int i = lane; i < c.rotary / 2; i += kWarpSize) {
    rotate_key_pair(c, k_pe, angles_row, i, pair);
    if (slot < 0) continue;
    store_element(c.cache, to.data, c.latent_dim + 2 * i, pair[0], scale);
    store_element(c.cache, to.data, c.latent_dim + 2 * i + 1, pair[1], scale);
  }
  if (slot < 0) return;
  for (int i = lane; i < c.latent_dim; i += kWarpSize) store_element(c.cache, to.data, i, to_float(latent[i]), scale);
}

template <bool kWide, int kRuns>
__device__ __forceinline__ void touch_first(const Call& c) {
  const int lane = threadIdx.x % kWarpSize;
  const bool key = blockIdx.x < c.key_blocks;
  const int64_t first = int64_t{blockIdx.x - c.key_blocks} * (kThreads * kRuns) + threadIdx.x;
  const int64_t t = key                    ? int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize
                    : first < c.plan.total ? run_position<kWide>(c.plan, static_cast<int32_t>(first)).token
                                           : c.keys;
  if (t >= c.keys) return;
  const int64_t slot = key && t < c.num_slots ? speculative_load(c.slots + t) : -1;
  if (c.cos_sin.data != nullptr)
    touch_angles(c.cos_sin.data, c.cos_sin.stride0, c.num_angles, c.rotary, speculative_load(c.positions + t), lane);
  if (lane == 0) c.cache_rows.touch_row(slot);
}

template <bool kWide, int kRuns>
__global__ void __launch_bounds__(kThreads, blocks_per_sm(kRuns)) mla_rope_kv_insert_kernel(const __grid_constant__ Call c) {
  start_early([&] {
    if (c.touches) touch_first<kWide, kRuns>(c);
  });
  if (blockIdx.x < c.key_blocks) {
    const int64_t t = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
    if (t < c.keys) key(c, t, threadIdx.x % kWarpSize);
    return;
  }
  const int64_t first = int64_t{blockIdx.x - c.key_blocks} * (kThreads * kRuns) + threadIdx.x;
  Run<kWide> runs[kRuns];
  RunPosition positions[kRuns];
  const float* angles_rows[kRuns];
#pragma unroll
  for (int k = 0; k < kRuns; ++k) {
    const int64_t i = first + k * kThreads;
    if (i >= c.plan.total) continue;
    const RunPosition at = positions[k] = run_position<kWide>(c.plan, static_cast<int32_t>(i));
    runs[k].load(c.q.row(at.token, at.head) + at.dim, at.count);
    angles_rows[k] = at.dim >= c.plan.nope ? angles_of(c, at.token) : nullptr;
  }
#pragma unroll
  for (int k = 0; k < kRuns; ++k) {
    if (first + k * kThreads >= c.plan.total) continue;
    const RunPosition at = positions[k];
    const int rope_dim = at.dim - c.plan.nope;
    if (angles_rows[k] != nullptr) {
      float angles[Run<kWide>::kDims];
      load_angles<kWide>(angles_rows[k], c.rotary, rope_dim, angles);
      runs[k].transform([&](float(&values)[Run<kWide>::kDims]) { rotate_values(values, angles); });
    }
    if (c.llama_4_scaling != nullptr) {
      const float scaling = __ldg(c.llama_4_scaling + at.token);
      runs[k].transform([&](float(&values)[Run<kWide>::kDims]) {
        for (float& v : values) v *= scaling;
      });
    }
    if (angles_rows[k] != nullptr || c.llama_4_scaling != nullptr) runs[k].store(c.q.row(at.token, at.head) + at.dim, at.count);
    if (rope_dim >= 0 && at.token < c.absorbed) runs[k].store(c.q_pe_out.row(at.token, at.head) + rope_dim, at.count);
  }
}

template <bool kWide>
void launch(const MlaRopeKvInsertParams& p, const ExecutionContext& context) {
  const int64_t tokens = p.q.shape[0], rotary = p.k_pe.shape[1];
  const bool llama = p.llama_4_scaling.present(), rotate = p.cos_sin.present();
  const int64_t absorbed = p.q_pe_out.present() ? p.q_pe_out.shape[0] : 0, inserts = p.slot_mapping.present() ? p.slot_mapping.shape[0] : 0;
  Call c{
      .q = Rows<Bf16>(p.q),
      .latent = Rows<const Bf16>(p.c),
      .k_pe = Rows<Bf16>(p.k_pe),
      .positions = p.positions.ptr<int64_t>(),
      .cos_sin = Rows<const float>(p.cos_sin),
      .num_angles = p.cos_sin.present() ? p.cos_sin.shape[0] : 0,
      .llama_4_scaling = p.llama_4_scaling.ptr<float>(),
      .q_pe_out = Rows<Bf16>(p.q_pe_out),
      .absorbed = absorbed,
      .slots = p.slot_mapping.ptr<int64_t>(),
      .num_slots = inserts,
      .cache = p.cache,
      .cache_rows = CacheRows(p.cache),
      .options = {.ue8m0 = p.ue8m0, .divide = true},
      .latent_dim = static_cast<int32_t>(p.c.shape[1]),
      .rotary = static_cast<int32_t>(rotary),
      .keys = tokens,
      .key_blocks = blocks_for(rotate || inserts > 0 ? tokens : 0, kWarps),
      .touches = false,
      .plan = RunPlan(tokens, p.q.shape[1], p.q.shape[2] - rotary, rotary, Run<kWide>::kDims, llama, rotate || llama || absorbed > 0),
  };
  const auto blocks_of = [&](int runs) { return c.key_blocks + blocks_for(c.plan.total, int64_t{kThreads} * runs); };
  const unsigned at_once = static_cast<unsigned>(blocks_per_sm(1) * capabilities(context.device).num_sms);
  const bool many = blocks_of(1) > at_once;
  const unsigned blocks = blocks_of(many ? kManyRuns : 1);
  if (blocks == 0) return;
  c.touches = blocks <= at_once;
  const auto kernel = many ? mla_rope_kv_insert_kernel<kWide, kManyRuns> : mla_rope_kv_insert_kernel<kWide, 1>;
  launch_early("mla_rope_kv_insert_kernel", kernel, {blocks, kThreads}, context, c);
}

void run(const MlaRopeKvInsertParams& p, const ExecutionContext& context) {
  const bool wide =
      p.q.shape[2] % 8 == 0 && p.k_pe.shape[1] % 8 == 0 && rows_aligned(p.q) && rows_aligned(p.q_pe_out) && rows_aligned(p.cos_sin);
  wide ? launch<true>(p, context) : launch<false>(p, context);
}

}  // namespace

Implementation<MlaRopeKvInsertParams> mla_rope_kv_insert_smxx() { return smxx_implementation<MlaRopeKvInsertParams>({.run = run}); }

}  // namespace strata::cuda
