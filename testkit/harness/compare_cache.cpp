#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "testkit/harness/compare.h"
#include "formats/kv_rows.h"

namespace strata::testkit {
namespace {

// The distance between neighbouring quantised values at this magnitude in dimension i, for a block of this absmax. Computed from values,
// because two blocks whose absmax differs in its last bit may have different scales.
double step(const PagedCache& cache, int64_t i, double magnitude, double block_amax) {
  constexpr double kBf16 = 1.0 / 128, kE4m3 = 1.0 / 8;
  constexpr double kE4m3Subnormal = 0x1p-9;
  switch (cache.format) {
    case KvFormat::bf16: return kBf16 * magnitude;
    case KvFormat::fp8_tensor: return std::max(kE4m3 * magnitude, kE4m3Subnormal * cache.scale);
    case KvFormat::fp8_ds_mla_v4:
      if (i >= kV4NopeDim) return kBf16 * magnitude;
      break;
    case KvFormat::fp8_ds_mla:
      if (i >= kMlaLatentDim) return kBf16 * magnitude;
      break;
    case KvFormat::indexer_mxfp4: return std::max(magnitude / 2, block_amax / 6);  // scale <= absmax / 3; steps 0.5, 1 (from 2), 2 (from 4)
    case KvFormat::state_f32: return 1e-6 * magnitude;
    case KvFormat::indexer_fp8: break;
  }
  return std::max(kE4m3 * magnitude, kE4m3Subnormal * 2 * block_amax / kE4m3Max);  // scale <= 2 absmax / 448
}

int64_t block_of(KvFormat format) {
  switch (format) {
    case KvFormat::fp8_ds_mla_v4: return kKvBlock;
    case KvFormat::indexer_mxfp4: return kMxfp4Block;
    default: return kMlaTile;
  }
}

struct Tally {
  int64_t values = 0;
  int64_t inexact = 0;
  int64_t beyond = 0;
  std::string first_inexact;
  std::string first_beyond;
  std::string first_wrong;  // of what no share of the values may be
};

void compare_row(const std::string& name, const PagedCache& got, const PagedCache& want, int64_t slot, double noise, Tally& tally) {
  std::vector<float> g(static_cast<size_t>(want.row_dim)), w(g.size());
  load_row(got, slot, g.data());
  load_row(want, slot, w.data());
  const int64_t block = block_of(want.format);
  for (int64_t begin = 0; begin < want.row_dim; begin += block) {
    const int64_t end = std::min<int64_t>(begin + block, want.row_dim);
    double block_amax = 0;
    for (int64_t i = begin; i < end; ++i) {
      for (const float v : {g[i], w[i]}) {
        if (std::isfinite(v)) block_amax = std::max<double>(block_amax, std::abs(v));
      }
    }
    for (int64_t i = begin; i < end; ++i) {
      ++tally.values;
      if (g[i] == w[i]) continue;
      const auto text = [&] { return fmt::format("{} row {} lane {} is {:.9g}, must be {:.9g}", name, slot, i, g[i], w[i]); };
      if (!std::isfinite(g[i]) || !std::isfinite(w[i])) {
        // No rounding makes a NaN or an infinity of a number.
        if (tally.first_wrong.empty()) tally.first_wrong = text();
        continue;
      }
      if (tally.inexact++ == 0) tally.first_inexact = text();
      const double allowed = 1.01 * step(want, i, std::max(std::abs(g[i]), std::abs(w[i])), block_amax) + noise * block_amax;
      if (std::abs(double{g[i]} - w[i]) <= allowed) continue;
      if (tally.beyond++ == 0) tally.first_beyond = text();
    }
  }
  if (want.format == KvFormat::fp8_ds_mla_v4 && row_scale(got, slot)[kV4NumBlocks] != 0 && tally.first_wrong.empty()) {
    tally.first_wrong =
        fmt::format("{} row {}: byte {} of the scale row is {}, must be 0", name, slot, kV4NumBlocks, row_scale(got, slot)[kV4NumBlocks]);
  }
}

// Marks the bytes of a row.
void mark(const PagedCache& cache, int64_t slot, std::vector<bool>& computed) {
  const int64_t data = cache.data_offset(slot), scale = cache.scale_offset(slot);
  std::fill_n(computed.begin() + data, row_data_bytes(cache.format, cache.row_dim), true);
  std::fill_n(computed.begin() + scale, row_scale_bytes(cache.format), true);
}

}  // namespace

std::string compare_caches(const std::string& name, const PagedCache& got, const PagedCache& want, std::span<const int64_t> computed,
                           const Tolerance& tolerance) {
  const int64_t bytes = want.num_pages * want.page_stride;
  std::vector<bool> skip(static_cast<size_t>(bytes), false);
  if (tolerance.kind != Tolerance::Kind::exact) {
    for (int64_t slot : computed) mark(want, slot, skip);
  }
  const auto* g = static_cast<const uint8_t*>(got.data);
  const auto* w = static_cast<const uint8_t*>(want.data);
  int64_t wrong = 0, first = -1;
  for (int64_t i = 0; i < bytes; ++i) {
    if (g[i] == w[i] || skip[static_cast<size_t>(i)]) continue;
    if (wrong++ == 0) first = i;
  }
  if (wrong > 0) {
    return fmt::format("{} byte {} (page {}, byte {} of it) is {:#04x}, must be {:#04x}; {} of {} bytes differ", name, first,
                       first / want.page_stride, first % want.page_stride, g[first], w[first], wrong, bytes);
  }
  if (tolerance.kind == Tolerance::Kind::exact) return "";

  Tally tally;
  for (int64_t slot : computed) compare_row(name, got, want, slot, tolerance.abs_rms, tally);
  if (!tally.first_wrong.empty()) return tally.first_wrong;
  if (static_cast<double>(tally.beyond) > tolerance.beyond * static_cast<double>(tally.values)) {
    return fmt::format("{}; {} of {} values are more than one code away", tally.first_beyond, tally.beyond, tally.values);
  }
  if (static_cast<double>(tally.inexact) > tolerance.inexact * static_cast<double>(tally.values) + 2.0) {
    return fmt::format("{}; {} of {} values differ, of which {:.2g} may", tally.first_inexact, tally.inexact, tally.values,
                       tolerance.inexact);
  }
  return "";
}

std::string compare_selection(const std::string& name, const HostArray& got, const HostArray& want, const HostArray& logits,
                              std::span<const int32_t> lengths, double slack_of_max) {
  const int64_t k = want.shape[1];
  for (int64_t t = 0; t < want.shape[0]; ++t) {
    const int32_t* g = got.ptr<int32_t>() + t * k;
    const int32_t* w = want.ptr<int32_t>() + t * k;
    const int64_t length = lengths[static_cast<size_t>(t)];
    const int64_t count = std::min(length, k);
    double threshold = INFINITY, square = 0, largest = 0;
    const float* row = logits.ptr<float>() + t * logits.shape[1];
    for (int64_t i = 0; i < count; ++i) threshold = std::min<double>(threshold, row[w[i]]);
    for (int64_t j = 0; j < length; ++j) {
      square += double{row[j]} * row[j];
      largest = std::max<double>(largest, std::abs(row[j]));
    }
    // fp32 noise of a logit is relative to its terms, which may cancel: measured by the size of the row's logits.
    const double noise = length > 0 ? 1e-5 * (std::abs(threshold) + std::sqrt(square / static_cast<double>(length))) : 0.0;
    const double slack = std::max(noise, slack_of_max * largest);
    for (int64_t i = 0; i < count; ++i) {
      if (row[w[i]] <= threshold + slack || std::find(g, g + count, w[i]) != g + count) continue;
      return fmt::format("{}[{}] lacks {}: its logit {:.9g} is above the smallest chosen one {:.9g}", name, t, w[i], row[w[i]], threshold);
    }
    for (int64_t i = 0; i < k; ++i) {
      const auto wrong = [&](const std::string& why) { return fmt::format("{}[{}, {}] is {}: {}", name, t, i, g[i], why); };
      if (i >= count) {
        if (g[i] != -1) return wrong(fmt::format("must be -1 after {} entries", count));
        continue;
      }
      if (g[i] < 0 || g[i] >= length) return wrong(fmt::format("must be in [0, {})", length));
      if (i > 0 && g[i] <= g[i - 1]) return wrong(fmt::format("must be above {}", g[i - 1]));
      if (std::binary_search(w, w + count, g[i])) continue;
      if (!(row[g[i]] >= threshold - slack)) {
        return wrong(fmt::format("its logit {:.9g} is below the smallest chosen one {:.9g}", row[g[i]], threshold));
      }
    }
  }
  return "";
}

}  // namespace strata::testkit
