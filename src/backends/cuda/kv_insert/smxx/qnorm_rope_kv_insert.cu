// Query norm + RoPE and key RoPE + quantise + insert in one launch: a warp per query head or two, and one more per token for the key row.
// Floor: 4 bytes per query value (3 with e4m3 queries) and about 1.7 KB per key; V4-Pro, 4096 tokens: 1.08 GB, 252 us at 4.3 TB/s. The row
// stays in registers between its read and its write. Reached on an H200: 256 us; with e4m3 queries 186 us, floor 189.
#include "backends/cuda/device/divisor.h"
#include "backends/cuda/device/insert_key.cuh"
#include "backends/cuda/device/query_norm.cuh"
#include "backends/cuda/kv_insert/impls.h"
#include "backends/cuda/runtime/early_launch.cuh"
#include "backends/cuda/runtime/grid.h"

namespace strata::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kBlocksPerSm = 10;  // 40 warps in flight; with 12 the key row spills registers
// From this many tokens on a warp has two heads where queries become e4m3: 186 us instead of 204 (4096 tokens, 128 heads).
constexpr int64_t kPairMinTokens = 9;
constexpr int kPairBlocksPerSm = 7;
// The widths of V4, for which the wide path and block formats are made.
constexpr int kDim = kQueryDim, kRotary = kQueryRotary;

struct Call {
  Rows<const Bf16> q;
  Rows<const Bf16> kv;
  KeyInsertArgs key;
  bool key_words;  // all rows are 16-byte aligned
  void* q_out;
  int64_t q_out_stride[2];
  int32_t heads, padded_heads, dim, rotary;
  float eps, q_scale_inv;
  Divisor rows_per_token;  // the warps with heads, and one for the key
  int32_t rows;
};

template <bool kWide, int kValues>
__device__ __forceinline__ void store_query(const Call&, Bf16* out, const float (&x)[kValues]) {
  store_values<kWide>(out, x);
}
template <bool kWide, int kValues>
__device__ __forceinline__ void store_query(const Call& c, E4m3* out, const float (&x)[kValues]) {
  store_quantized<kWide>(out, x, [s = c.q_scale_inv](float v) { return __fmul_rn(v, s); });
}

// kHeads neighbouring heads, so that each access of the warp is 512 consecutive bytes. The bits do not depend on kHeads.
template <int kHeads, class Out>
__device__ __forceinline__ void query_wide(const Call& c, int64_t n, int h, Out* out, int lane) {
  constexpr int kRun = kQueryRun, kSecond = kDim / 2;
  const int begin = lane * kRun;
  const int64_t position = __ldg(c.key.positions + n);
  float low[kHeads][kRun], high[kHeads][kRun], angles[kRun];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const Bf16* const q = c.q.row(n, h + i);
    load_values<true>(q + begin, low[i]);
    load_values<true>(q + kSecond + begin, high[i]);
  }
  load_query_angles<true>(c.key.cos_sin.row(position), lane, angles);
  norm_and_rotate(low, high, angles, c.eps, lane);
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    store_query<true>(c, out + i * c.q_out_stride[1] + begin, low[i]);
    store_query<true>(c, out + i * c.q_out_stride[1] + kSecond + begin, high[i]);
  }
}

// Any width and alignment; out may be q: a lane reads what it writes before it writes.
template <class Out>
__device__ void query(const Call& c, const Bf16* q, Out* out, int64_t n, int lane) {
  float sum = 0.0f;
  for (int i = lane; i < c.dim; i += kWarpSize) sum += to_float(q[i]) * to_float(q[i]);
  const float scale = rsqrtf(lanes_sum(sum) / static_cast<float>(c.dim) + c.eps);
  const int nope = c.dim - c.rotary;
  for (int i = lane; i < nope; i += kWarpSize) {
    const float value[1] = {to_float(q[i]) * scale};
    store_query<false>(c, out + i, value);
  }
  const float* const row = c.key.cos_sin.row(__ldg(c.key.positions + n));
  for (int i = nope + 2 * lane; i < c.dim; i += 2 * kWarpSize) {
    float pair[2], angles[2];
    load_values<false>(q + i, pair);
    load_angles<false>(row, c.rotary, i - nope, angles);
    pair[0] *= scale;
    pair[1] *= scale;
    rotate_values(pair, angles);
    store_query<false>(c, out + i, pair);
  }
}

// A lane has the 16 values from 16 * lane on.
__device__ void insert_key_words(const Call& c, int64_t n, int lane) {
  const int64_t slot = __ldg(c.key.slots + n);
  uint32_t words[kKeyRun / 2];
  load_wide(reinterpret_cast<const uint8_t*>(c.kv.row(n) + kKeyRun * lane), words);
  const auto get_angles = [&](float(&angles)[kKeyRun]) {
    load_angles<true>(c.key.cos_sin.row(__ldg(c.key.positions + n)), kKeyRotary, key_rope_dim(lane), angles);
  };
  insert_words(c.key, slot, words, get_angles, lane);
}

__device__ void insert_key(const Call& c, int64_t n, int lane) {
  if (n >= c.key.num_slots) return;
  if (c.key_words) return insert_key_words(c, n, lane);
  const int64_t slot = __ldg(c.key.slots + n);
  const Bf16* const kv = c.kv.row(n);
  const float* const cos_sin = c.key.cos_sin.row(__ldg(c.key.positions + n));
  if (c.dim == kDim && c.rotary == kRotary) {
    constexpr int kRun = kDim / kWarpSize;
    float values[kRun];
    load_bf16(reinterpret_cast<const uint8_t*>(kv + kRun * lane), values);  // not after the slot: both loads are in flight together
    if (slot < 0) return;
    const int rope_lane = kRun * lane - (kDim - kRotary);
    if (rope_lane >= 0) {
      float angles[kRun];
      load_angles<false>(cos_sin, kRotary, rope_lane, angles);
      rotate_values(values, angles);
    }
    store_row_512(c.key.cache, c.key.rows_of_cache.row(slot), values, lane);
    return;
  }
  if (slot < 0) return;
  const RowAddress to = c.key.rows_of_cache.row(slot);
  const TensorScale scale(c.key.cache.scale, false);
  const int nope = c.dim - c.rotary;
  for (int i = lane; i < nope; i += kWarpSize) store_element(c.key.cache, to.data, i, to_float(kv[i]), scale);
  for (int i = nope + 2 * lane; i < c.dim; i += 2 * kWarpSize) {
    float pair[2], angles[2];
    load_values<false>(kv + i, pair);
    load_angles<false>(cos_sin, c.rotary, i - nope, angles);
    rotate_values(pair, angles);
    store_element(c.key.cache, to.data, i, pair[0], scale);
    store_element(c.key.cache, to.data, i + 1, pair[1], scale);
  }
}

// kHeads: of a warp. Two only for wide rows, and where no heads are added (q_out has no more heads than q).
template <class Out, bool kWide, int kHeads>
__global__ void __launch_bounds__(kWarps* kWarpSize, kHeads == 1 ? kBlocksPerSm : kPairBlocksPerSm)
    qnorm_rope_kv_insert_kernel(const __grid_constant__ Call c) {
  start_early();
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  if (row >= c.rows) return;
  const int32_t n = c.rows_per_token.divide(static_cast<int32_t>(row));
  const int32_t h = (static_cast<int32_t>(row) - n * c.rows_per_token.value()) * kHeads;
  if (h == c.padded_heads) return insert_key(c, n, lane);
  Out* const out = static_cast<Out*>(c.q_out) + n * c.q_out_stride[0] + h * c.q_out_stride[1];
  if (h >= c.heads) {
    if constexpr (kWide) {
      constexpr float kZero[8] = {};
      for (int i = 8 * lane; i < kDim; i += 8 * kWarpSize) store_query<true>(c, out + i, kZero);
    } else {
      for (int i = lane; i < c.dim; i += kWarpSize) out[i] = Out{0};
    }
  } else if constexpr (kWide) {
    query_wide<kHeads>(c, n, h, out, lane);
  } else {
    query(c, c.q.row(n, h), out, n, lane);
  }
}

void run(const QNormRopeKvInsertParams& p, const ExecutionContext& context) {
  const int64_t tokens = p.q.shape[0], padded_heads = p.q_out.shape[1];
  const int64_t inserts = p.slot_mapping.present() ? p.slot_mapping.shape[0] : 0;
  const bool wide =
      p.q.shape[2] == kDim && p.cos_sin.shape[1] == kRotary && rows_aligned(p.q) && rows_aligned(p.q_out) && rows_aligned(p.cos_sin);
  const bool quantized = p.q_out.dtype == DType::e4m3;
  const bool pairs = wide && quantized && tokens >= kPairMinTokens && p.q.shape[1] == padded_heads && padded_heads % 2 == 0;
  const int64_t per_token = (pairs ? padded_heads / 2 : padded_heads) + (inserts > 0 ? 1 : 0), rows = tokens * per_token;
  if (rows == 0) return;
  const unsigned blocks = blocks_for(rows, kWarps);
  const Call c{
      .q = Rows<const Bf16>(p.q),
      .kv = Rows<const Bf16>(p.kv),
      .key = {.slots = p.slot_mapping.ptr<int64_t>(),
              .num_slots = static_cast<int32_t>(inserts),
              .positions = p.positions.ptr<int64_t>(),
              .cos_sin = Rows<const float>(p.cos_sin),
              .cache = p.cache,
              .rows_of_cache = CacheRows(p.cache)},
      .key_words = inserts > 0 && rows_aligned(p.kv) && inserts_words(p.cache, p.cos_sin),
      .q_out = p.q_out.data,
      .q_out_stride = {p.q_out.stride[0], p.q_out.stride[1]},
      .heads = static_cast<int32_t>(p.q.shape[1]),
      .padded_heads = static_cast<int32_t>(padded_heads),
      .dim = static_cast<int32_t>(p.q.shape[2]),
      .rotary = static_cast<int32_t>(p.cos_sin.shape[1]),
      .eps = p.eps,
      .q_scale_inv = p.q_scale_inv,
      .rows_per_token = Divisor(static_cast<int32_t>(per_token)),
      .rows = static_cast<int32_t>(rows),
  };
  const auto kernel = pairs       ? qnorm_rope_kv_insert_kernel<E4m3, true, 2>
                      : quantized ? (wide ? qnorm_rope_kv_insert_kernel<E4m3, true, 1> : qnorm_rope_kv_insert_kernel<E4m3, false, 1>)
                                  : (wide ? qnorm_rope_kv_insert_kernel<Bf16, true, 1> : qnorm_rope_kv_insert_kernel<Bf16, false, 1>);
  launch_early("qnorm_rope_kv_insert_kernel", kernel, {blocks, kWarps * kWarpSize}, context, c);
}

}  // namespace

Implementation<QNormRopeKvInsertParams> qnorm_rope_kv_insert_smxx() { return smxx_implementation<QNormRopeKvInsertParams>({.run = run}); }

}  // namespace strata::cuda
