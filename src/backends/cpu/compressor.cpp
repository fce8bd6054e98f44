// The KV compressor on the CPU. Floors, d = 512: save, 2 * row bytes per token (C4A 16 KB); compress, the pooled rows once for their
// maximum and once for the sum (C4A 32 KB per entry, C128A 512 KB per 128 tokens), and one exponential per pooled value.
// An entry is pooled row by row, all channels at a time: rows lie at power-of-two distances, channel by channel they would share cache
// sets.
#include <cmath>
#include <cstring>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/simd_dispatch.h"
#include "formats/hadamard.h"
#include "contracts/compressor_window.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/compressor.cpp"
#include <hwy/foreach_target.h>

#include <hwy/contrib/math/math-inl.h>

#include "backends/cpu/kv_insert_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kMaxDim = 512;

void SaveRow(const SavePartialStatesParams& p, int64_t t, int64_t slot) {
  const F32 df;
  const int64_t half = p.ape.shape[1];
  const float* const score = p.kv_score.row<float>(t) + half;
  const float* const ape = p.ape.row<float>(p.positions.ptr<int64_t>()[t] % p.ape.shape[0]);
  uint8_t* const row = static_cast<uint8_t*>(p.state.data) + p.state.data_offset(slot);
  std::memcpy(row, p.kv_score.row<float>(t), static_cast<size_t>(half) * sizeof(float));
  float* const sums = reinterpret_cast<float*>(row + half * static_cast<int64_t>(sizeof(float)));  // pages may be unaligned
  int64_t i = 0;
  for (; i < whole(half); i += kLanes) hn::StoreU(hn::Add(hn::LoadU(df, score + i), hn::LoadU(df, ape + i)), df, sums + i);
  for (; i < half; ++i) store_f32(reinterpret_cast<uint8_t*>(sums + i), score[i] + ape[i]);
}

// u[0, d) = the rows [window.begin, window.end) of the request, weighted channel by channel with the softmax of their scores.
void pool(const CompressNormRopeStoreParams& p, const CompressorWindow& window, int64_t request, int64_t d, float* HWY_RESTRICT u) {
  const F32 df;
  const int32_t* const pages = p.block_table.row<int32_t>(request);
  const int64_t page_size = p.state.page_size, score_offset = p.state.row_dim / 2;
  const auto state_row = [&](int64_t position) {
    const int64_t page = pages[position / page_size] > 0 ? pages[position / page_size] : 0;
    return reinterpret_cast<const float*>(row_data(p.state, page * page_size + position % page_size)) +
           pooled_column(window, position, p.ratio, d);
  };
  alignas(64) float peak[kMaxDim], weights[kMaxDim];
  for (int64_t position = window.begin; position < window.end; ++position) {
    const float* const score = state_row(position) + score_offset;
    for (int64_t c = 0; c < d; c += kLanes) {
      const VF s = hn::LoadU(df, score + c);
      hn::Store(position == window.begin ? s : hn::Max(s, hn::Load(df, peak + c)), df, peak + c);
    }
  }
  for (int64_t position = window.begin; position < window.end; ++position) {
    const float* const kv = state_row(position);
    const bool first = position == window.begin;
    for (int64_t c = 0; c < d; c += kLanes) {
      const VF w = hn::Exp(df, hn::Sub(hn::LoadU(df, kv + score_offset + c), hn::Load(df, peak + c)));
      hn::Store(first ? w : hn::Add(w, hn::Load(df, weights + c)), df, weights + c);
      const VF value = hn::Mul(w, hn::LoadU(df, kv + c));
      hn::Store(first ? value : hn::Add(value, hn::Load(df, u + c)), df, u + c);
    }
  }
  for (int64_t c = 0; c < d; c += kLanes) hn::Store(hn::Div(hn::Load(df, u + c), hn::Load(df, weights + c)), df, u + c);
}

void CompressEntry(const CompressNormRopeStoreParams& p, int64_t position, int64_t request, int64_t out_slot) {
  const F32 df;
  const CompressorWindow window = compressor_window(position, p.ratio);
  const int64_t d = p.norm_weight.shape[0], rotary = p.cos_sin.shape[1];  // d is 128 or 512
  alignas(64) float row[kMaxRowDim];
  pool(p, window, request, d, row);
  const VF scale = hn::Set(df, 1.0f / std::sqrt(sum_of_squares(row, d) / static_cast<float>(d) + p.eps));
  const float* const weight = p.norm_weight.ptr<float>();
  for (int64_t c = 0; c < d; c += kLanes) hn::Store(hn::Mul(hn::Mul(hn::Load(df, row + c), scale), hn::LoadU(df, weight + c)), df, row + c);
  apply_rope(row + d - rotary, p.cos_sin.row<float>(window.rope_position), rotary, false);
  if (p.hadamard) {
    for (int64_t c = 0; c < d; c += kLanes) hn::Store(round_bf16(hn::Load(df, row + c)), df, row + c);
    hadamard(row, d);
  }
  store_cache_row(p.cache, out_slot, row);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "backends/cpu/simd_implementation.h"

namespace strata::cpu {
namespace {

HWY_EXPORT(SaveRow);
HWY_EXPORT(CompressEntry);

void run_save(const SavePartialStatesParams& p, const ExecutionContext& context) {
  constexpr int64_t kRowsPerTask = 4;
  const auto save_row = HWY_DISPATCH_TABLE(SaveRow)[simd_index(context.device)];
  parallel_for(context.device, p.kv_score.shape[0], kRowsPerTask, [&](int64_t t) {
    const int64_t slot = p.state_slots.ptr<int64_t>()[t];
    if (slot >= 0) save_row(p, t, slot);
  });
}

void run_compress(const CompressNormRopeStoreParams& p, const ExecutionContext& context) {
  const auto compress_entry = HWY_DISPATCH_TABLE(CompressEntry)[simd_index(context.device)];
  // Tasks of about one entry of 128 rows, or four of 8.
  const int64_t tokens_per_task = p.ratio == 4 ? 16 : 128;
  parallel_for(context.device, p.positions.shape[0], tokens_per_task, [&](int64_t t) {
    const int64_t position = p.positions.ptr<int64_t>()[t], out_slot = p.out_slots.ptr<int64_t>()[t];
    if (p.state_slots.ptr<int64_t>()[t] < 0 || out_slot < 0 || !completes_entry(position, p.ratio)) return;
    compress_entry(p, position, p.token_to_req.ptr<int32_t>()[t], out_slot);
  });
}

}  // namespace

std::vector<Implementation<SavePartialStatesParams>> save_partial_states() { return simd_implementation(run_save); }
std::vector<Implementation<CompressNormRopeStoreParams>> compress_norm_rope_store() { return simd_implementation(run_compress); }

}  // namespace strata::cpu
#endif  // HWY_ONCE
