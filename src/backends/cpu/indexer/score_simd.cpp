// Index scores in fp32 vectors of any width: 4 key rows x 2 or 4 vectors of heads in registers, key values broadcast.
//
// Floor per row and 64 heads: 8192 multiply-adds, 256 AVX-512 or 512 AVX2 cycles with two FMA ports; decoding a row to fp32 is about
// a tenth of that and is shared by the tokens of a token block.
#include "backends/cpu/indexer/score.h"
#include "backends/cpu/simd_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/indexer/score_simd.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>

#include "backends/cpu/simd_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu::indexer {
namespace HWY_NAMESPACE {
namespace {

using namespace strata::cpu::HWY_NAMESPACE;  // NOLINT: the codecs

constexpr int64_t kWide = kLanes >= 16 ? 4 : 2;  // vectors of heads that fit the registers together with 4 rows

// The values of e2m1 bits in the lower four bits of each lane. `scaled` is right for magnitudes of at least 2; below, as for e4m3, it is
// twice that minus one.
HWY_INLINE VF e2m1_values(VU bits) {
  const F32 df;
  const U32 du;
  const VU magnitude = hn::And(bits, hn::Set(du, 7u));
  const VF scaled = hn::BitCast(df, hn::Add(hn::ShiftLeft<22>(magnitude), hn::Set(du, 126u << 23)));
  const VF subnormal = hn::Sub(hn::Add(scaled, scaled), hn::Set(df, 1.0f));
  const VF value = hn::IfThenElse(hn::RebindMask(df, hn::Lt(magnitude, hn::Set(du, 2u))), subnormal, scaled);
  return hn::BitCast(df, hn::Or(hn::BitCast(du, value), hn::ShiftLeft<28>(hn::And(bits, hn::Set(du, 8u)))));
}

// A row as fp32. MXFP4 rows come in an order of their own, the same for queries and keys.
void decode_row(KvFormat format, const uint8_t* row, const uint8_t* scales, float* out) {
  const F32 df;
  const U32 du;
  if (format == KvFormat::indexer_mxfp4) {
    for (int64_t i = 0; i < kDim / 2; i += kLanes) {
      const VF scale = hn::Set(df, to_float(E8m0{scales[i / (kMxfp4Block / 2)]}));
      const VU pairs = hn::PromoteTo(du, hn::LoadU(U8(), row + i));
      hn::StoreU(hn::Mul(e2m1_values(pairs), scale), df, out + 2 * i);
      hn::StoreU(hn::Mul(e2m1_values(hn::ShiftRight<4>(pairs)), scale), df, out + 2 * i + kLanes);
    }
    return;
  }
  const bool fp8 = format == KvFormat::indexer_fp8;
  for (int64_t i = 0; i < kDim; i += kLanes) hn::StoreU(fp8 ? load_e4m3(row + i) : load_bf16(row + 2 * i), df, out + i);
}

// A packed query: groups of kWide vectors of heads (the rest one by one), in each group [kDim][vectors][kLanes]; then the weights. Heads
// that do not exist are zeros with weight 0.
HWY_INLINE int64_t vectors_of(int64_t heads) { return (heads + kLanes - 1) / kLanes; }
HWY_INLINE int64_t group_width(int64_t vectors, int64_t first) { return vectors - first >= kWide ? kWide : 1; }

void PackQuery(const Queries& queries, int64_t token, std::byte* packed) {
  const int64_t heads = queries.heads();
  const int64_t vectors = vectors_of(heads);
  const KvFormat format = queries.cache.format;
  const int64_t row_bytes = row_data_bytes(format, kDim);
  const auto* const scales = static_cast<const uint8_t*>(queries.q_scale.data);  // null but for MXFP4
  float* out = reinterpret_cast<float*>(packed);
  for (int64_t first = 0; first < vectors;) {
    const int64_t lanes = group_width(vectors, first) * kLanes;
    float* group = out + first * kLanes * kDim;
    for (int64_t l = 0; l < lanes; ++l) {
      alignas(64) float row[kDim] = {};
      const int64_t h = first * kLanes + l;
      if (h < heads) {
        const int64_t index = token * heads + h;
        decode_row(format, static_cast<const uint8_t*>(queries.q.data) + index * row_bytes,
                   scales != nullptr ? scales + index * 4 : nullptr, row);
      }
      for (int64_t d = 0; d < kDim; ++d) group[d * lanes + l] = row[d];
    }
    first += group_width(vectors, first);
  }
  float* weights = out + vectors * kLanes * kDim;
  for (int64_t h = 0; h < vectors * kLanes; ++h) {
    weights[h] = h < heads ? queries.weights.ptr<float>()[token * heads + h] : 0.0f;
  }
}

// Adds w relu(q . k) of kVectors vectors of heads to the lane sums of four rows.
template <int64_t kVectors>
HWY_INLINE void add_heads(const float* keys, const float* query, const float* weights, VF sum[4]) {
  const F32 df;
  VF dot[4][kVectors];
  for (auto& row : dot) {
    for (VF& v : row) v = hn::Zero(df);
  }
  for (int64_t d = 0; d < kDim; ++d) {
    VF q[kVectors];
    for (int64_t v = 0; v < kVectors; ++v) q[v] = hn::LoadU(df, query + (d * kVectors + v) * kLanes);
    for (int64_t r = 0; r < 4; ++r) {
      const VF key = hn::Set(df, keys[r * kDim + d]);
      for (int64_t v = 0; v < kVectors; ++v) dot[r][v] = hn::MulAdd(q[v], key, dot[r][v]);
    }
  }
  for (int64_t v = 0; v < kVectors; ++v) {
    const VF w = hn::LoadU(df, weights + v * kLanes);
    for (int64_t r = 0; r < 4; ++r) {
      const VF x = dot[r][v];
      // Not Max, which may drop a NaN.
      sum[r] = hn::MulAdd(w, hn::IfThenZeroElse(hn::Lt(x, hn::Zero(df)), x), sum[r]);
    }
  }
}

void Score(const Queries& queries, const std::byte* packed, const KeyBlock& keys, int groups, KeyUse use, std::byte* scratch, float* out) {
  const F32 df;
  float* decoded = reinterpret_cast<float*>(scratch);
  const int rows = groups * kGroupRows;
  if (use != KeyUse::again) {
    for (int r = 0; r < rows; ++r) {
      hwy::Prefetch(keys.row[r + kLookahead]);
      decode_row(queries.cache.format, keys.row[r], reinterpret_cast<const uint8_t*>(keys.exponents + r), decoded + r * kDim);
    }
  }
  const int64_t vectors = vectors_of(queries.heads());
  const float* query = reinterpret_cast<const float*>(packed);
  const float* weights = query + vectors * kLanes * kDim;
  for (int r = 0; r < rows; r += 4) {
    VF sum[4] = {hn::Zero(df), hn::Zero(df), hn::Zero(df), hn::Zero(df)};
    for (int64_t v = 0; v < vectors; v += group_width(vectors, v)) {
      const float* group = query + v * kLanes * kDim;
      const float* w = weights + v * kLanes;
      if (group_width(vectors, v) == kWide) {
        add_heads<kWide>(decoded + r * kDim, group, w, sum);
      } else {
        add_heads<1>(decoded + r * kDim, group, w, sum);
      }
    }
    for (int i = 0; i < 4; ++i) out[r + i] = hn::GetLane(hn::SumOfLanes(df, sum[i])) * keys.scale[r + i];
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu::indexer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strata::cpu::indexer {
namespace {

HWY_EXPORT(PackQuery);
HWY_EXPORT(Score);

// Whole vectors of up to 16 lanes, whatever the target.
size_t query_bytes(int64_t heads) { return static_cast<size_t>((heads + 15) / 16 * 16) * (kDim + 1) * sizeof(float); }
size_t scratch_bytes(int64_t) { return size_t{kBlockRows} * kDim * sizeof(float); }
void nothing() {}

}  // namespace

Scorer simd_scorer(const Device& device) {
  const size_t target = simd_index(device);
  return {query_bytes, scratch_bytes, nothing, nothing, HWY_DISPATCH_TABLE(PackQuery)[target], HWY_DISPATCH_TABLE(Score)[target]};
}

}  // namespace strata::cpu::indexer
#endif  // HWY_ONCE
