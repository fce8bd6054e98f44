// Inserts rotated bf16 keys into a paged cache. insert_block_rows.cuh has the formats of attention and indexer keys; here, for other
// formats and alignments, a warp per row, or a quarter warp per row of 128 values. Floor: 2 bytes read per value and the record written;
// fp8_ds_mla_v4, 4096 rows: 6.6 MB, which copying takes 2.7 us for on an H200. Reached: 3.2 us, 0.9 us for 64 rows.
#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/device/store_row.cuh"
#include "backends/cuda/kv_insert/impls.h"
#include "backends/cuda/kv_insert/smxx/insert_block_rows.cuh"
#include "backends/cuda/runtime/early_launch.cuh"
#include "backends/cuda/runtime/grid.h"

namespace strata::cuda {
namespace {

constexpr int kWarps = 4;

struct Call {
  Rows<const Bf16> k;
  const int64_t* slots;
  PagedCache cache;
  CacheRows cache_rows;
  int32_t rows;
  StoreOptions options;
  bool touches;  // few rows only: with many the latencies are hidden
};

// Rows are read before it is known whether they have a slot: both loads are in flight at the same time.
__device__ void insert_row_512(const Call& c, const uint8_t* k, int64_t slot, int lane) {
  float values[16];
  load_bf16(k + 32 * lane, values);
  if (slot >= 0) store_row_512<true>(c.cache, c.cache_rows.row(slot), values, lane, c.options);
}

__device__ void insert_mla_row(const Call& c, const uint8_t* k, int64_t slot, int lane) {
  float latent[kMlaLatentDim / kWarpSize], rope[kMlaRopeDim / kWarpSize];
  load_bf16(k + 32 * lane, latent);
  load_bf16(k + 2 * kMlaLatentDim + 4 * lane, rope);
  if (slot >= 0) store_mla_row<true>(c.cache, c.cache_rows.row(slot), latent, rope, lane, c.options);
}

// kLanes: of a row. 8 for rows of 128 values in formats that only they have, else 32.
template <int kLanes>
__global__ void __launch_bounds__(kWarps* kWarpSize) quantize_and_insert_k_kernel(const __grid_constant__ Call c) {
  const int64_t n = (int64_t{blockIdx.x} * (kWarps * kWarpSize) + threadIdx.x) / kLanes;
  const int lane = threadIdx.x % kLanes;
  start_early([&] {
    if (c.touches && n < c.rows && lane == 0) c.cache_rows.touch_row(speculative_load(c.slots + n));
  });
  if constexpr (kLanes < kWarpSize) {
    const int64_t there = min(n, int64_t{c.rows} - 1);  // lanes past the end take part in reductions
    const int64_t slot = n < c.rows ? __ldg(c.slots + there) : -1;
    float values[kIndexerDim / kLanes];
    load_bf16(reinterpret_cast<const uint8_t*>(c.k.row(there) + kIndexerDim / kLanes * lane), values);
    const bool valid = slot >= 0;
    store_row_128<true>(c.cache, c.cache_rows.row(valid ? slot : 0), values, lane, valid, c.options);
    return;
  }
  if (n >= c.rows) return;
  const int64_t slot = __ldg(c.slots + n);
  const auto* const k = reinterpret_cast<const uint8_t*>(c.k.row(n));
  switch (c.cache.row_dim) {
    case 512: return insert_row_512(c, k, slot, lane);
    case kMlaLatentDim + kMlaRopeDim: return insert_mla_row(c, k, slot, lane);
    default: {
      if (slot < 0) return;
      const RowAddress to = c.cache_rows.row(slot);
      const TensorScale scale(c.cache.scale, c.options.divide);
      for (int i = lane; i < c.cache.row_dim; i += kWarpSize) {
        store_element(c.cache, to.data, i, to_float(Bf16{load_u16(k + 2 * i)}), scale);
      }
    }
  }
}

void run_block_rows(const QuantizeAndInsertKParams& p, const ExecutionContext& context) {
  const int64_t rows = p.slot_mapping.shape[0];
  const int row_lanes = p.cache.format == KvFormat::indexer_fp8 ? kRowLanes<KvFormat::indexer_fp8> : kWarpSize;
  const unsigned blocks = blocks_for(rows, kInsertThreads / row_lanes);
  const InsertRows c{.k = Rows<const Bf16>(p.k),
                     .slots = p.slot_mapping.ptr<int64_t>(),
                     .cache = p.cache,
                     .cache_rows = CacheRows(p.cache),
                     .rows = static_cast<int32_t>(rows),
                     .ue8m0 = p.ue8m0,
                     .touches = blocks <= 2u * static_cast<unsigned>(capabilities(context.device).num_sms)};
  const auto kernel = p.cache.format == KvFormat::fp8_ds_mla_v4 ? insert_block_rows_kernel<KvFormat::fp8_ds_mla_v4>
                      : p.cache.format == KvFormat::fp8_ds_mla  ? insert_block_rows_kernel<KvFormat::fp8_ds_mla>
                                                                : insert_block_rows_kernel<KvFormat::indexer_fp8>;
  launch_early("quantize_and_insert_k", kernel, {blocks, kInsertThreads}, context, c);
}

void run(const QuantizeAndInsertKParams& p, const ExecutionContext& context) {
  const int64_t rows = p.slot_mapping.shape[0];
  if (rows == 0) return;
  if (rows_of_words(p.cache) && rows_aligned(p.k)) return run_block_rows(p, context);
  // Per-tensor MLA rows are divided by their scale, V4 rows multiplied by its reciprocal: the two specifications differ.
  const StoreOptions options{.ue8m0 = p.ue8m0, .divide = p.cache.row_dim == fixed_row_dim(KvFormat::fp8_ds_mla)};
  const bool short_rows = p.cache.row_dim == kIndexerDim;
  const int64_t block_rows = short_rows ? 4 * kWarps : kWarps;
  const bool touches = rows <= (short_rows ? 8 : 1) * block_rows * capabilities(context.device).num_sms;
  const Call c{
      Rows<const Bf16>(p.k), p.slot_mapping.ptr<int64_t>(), p.cache, CacheRows(p.cache), static_cast<int32_t>(rows), options, touches};
  const auto kernel = short_rows ? quantize_and_insert_k_kernel<8> : quantize_and_insert_k_kernel<kWarpSize>;
  launch_early("quantize_and_insert_k_kernel", kernel, {blocks_for(rows, block_rows), kWarps * kWarpSize}, context, c);
}

}  // namespace

Implementation<QuantizeAndInsertKParams> quantize_and_insert_k_smxx() {
  return smxx_implementation<QuantizeAndInsertKParams>({.run = run});
}

}  // namespace strata::cuda
