// Both linear ops, one way: tiles of operands widened to double (exact: every format has few significant bits), double accumulation, one
// rounding.
#include <algorithm>

#include "backends/reference/reference.h"
#include "formats/quantize.h"

namespace strata::reference {
namespace {

constexpr int64_t kTokens = 16, kOutputs = 64, kDepth = kActivationBlock;  // one tile
using Tile = double[kDepth][kTokens];

// W[row, k0 .. k0 + depth).
void load_weight(const LinearWeight& w, int64_t row, int64_t k0, int64_t depth, double* out) {
  const int64_t end = k0 + depth;
  if (w.weight.dtype == DType::bf16) {
    for (int64_t k = k0; k < end; ++k) *out++ = to_float(w.weight.row<Bf16>(row)[k]);
    return;
  }
  const float* scales = w.scale.row<float>(row / w.block_n);
  for (int64_t k = k0; k < end;) {
    const int64_t block = k / w.block_k, block_end = std::min(end, (block + 1) * w.block_k);
    for (; k < block_end; ++k) *out++ = double{kE4m3Values[w.weight.row<E4m3>(row)[k].bits]} * scales[block];
  }
}

// store(t, o, sum over k of x[t, k] * W[group * n + o, k]) for all t and o; load(t, k0, depth, column of tile) gives x[t, k0..k0+depth).
template <class Load, class Store>
void product(const LinearWeight& w, int64_t group, int64_t tokens, const Load& load, const Store& store) {
  for (int64_t t0 = 0; t0 < tokens; t0 += kTokens) {
    const int64_t num_t = std::min(kTokens, tokens - t0);
    for (int64_t o0 = 0; o0 < w.n; o0 += kOutputs) {
      const int64_t num_o = std::min(kOutputs, w.n - o0);
      double sums[kOutputs][kTokens] = {};
      for (int64_t k0 = 0; k0 < w.k; k0 += kDepth) {
        const int64_t depth = std::min(kDepth, w.k - k0);
        Tile x;
        for (int64_t t = 0; t < num_t; ++t) load(t0 + t, k0, depth, x, t);
        for (int64_t o = 0; o < num_o; ++o) {
          double weights[kDepth];
          load_weight(w, group * w.n + o0 + o, k0, depth, weights);
          for (int64_t k = 0; k < depth; ++k) {
            for (int64_t t = 0; t < num_t; ++t) sums[o][t] += weights[k] * x[k][t];
          }
        }
      }
      for (int64_t t = 0; t < num_t; ++t) {
        for (int64_t o = 0; o < num_o; ++o) store(t0 + t, o0 + o, static_cast<float>(sums[o][t]));
      }
    }
  }
}

void load_bf16(const Bf16* x, int64_t depth, Tile& tile, int64_t t) {
  for (int64_t k = 0; k < depth; ++k) tile[k][t] = to_float(x[k]);
}
void load_codes(const E4m3* codes, float scale, int64_t depth, Tile& tile, int64_t t) {
  for (int64_t k = 0; k < depth; ++k) tile[k][t] = double{kE4m3Values[codes[k].bits]} * scale;
}

void run_linear(const LinearParams& p) {
  const auto load = [&](int64_t t, int64_t k0, int64_t depth, Tile& tile, int64_t column) {
    if (p.x.dtype == DType::e4m3) {
      return load_codes(p.x.row<E4m3>(t) + k0, p.x_scale.row<float>(t)[k0 / kActivationBlock], depth, tile, column);
    }
    const Bf16* x = p.x.row<Bf16>(t) + k0;
    if (p.activation == ActivationFormat::bf16) return load_bf16(x, depth, tile, column);
    E4m3 codes[kActivationBlock];
    const float scale = quantize_activation(x, depth, p.activation == ActivationFormat::fp8_ue8m0, codes);
    load_codes(codes, scale, depth, tile, column);
  };
  product(*p.weight, 0, p.x.shape[0], load, [&](int64_t t, int64_t o, float y) {
    if (p.y.dtype == DType::f32) {
      p.y.row<float>(t)[o] = y;
    } else {
      p.y.row<Bf16>(t)[o] = to_bf16(y);
    }
  });
}

void run_grouped_linear(const GroupedLinearParams& p) {
  for (int64_t g = 0; g < p.x.shape[1]; ++g) {
    const auto load = [&](int64_t t, int64_t k0, int64_t depth, Tile& tile, int64_t column) {
      if (p.x.dtype == DType::bf16) return load_bf16(p.x.row<Bf16>(t, g) + k0, depth, tile, column);
      load_codes(p.x.row<E4m3>(t, g) + k0, p.x_scale.row<float>(t, g)[k0 / kActivationBlock], depth, tile, column);
    };
    product(*p.weight, g, p.x.shape[0], load, [&](int64_t t, int64_t o, float y) { p.y.row<Bf16>(t, g)[o] = to_bf16(y); });
  }
}

void run_quantize_rows(const ops::QuantizeRowsParams& p) {
  for (int64_t t = 0; t < p.x.shape[0]; ++t) {
    for (int64_t i = 0; i < p.x.shape[1]; i += kActivationBlock) {
      p.scale.row<float>(t)[i / kActivationBlock] =
          quantize_activation(p.x.row<Bf16>(t) + i, kActivationBlock, p.format == ActivationFormat::fp8_ue8m0, p.values.row<E4m3>(t) + i);
    }
  }
}

template <class Params>
std::vector<Implementation<Params>> row_major_only(std::vector<Implementation<Params>> implementations) {
  for (auto& impl : implementations) {
    impl.supports = [inner = impl.supports](const Params& p, const Device& device) {
      if (p.weight != nullptr && p.weight->packed.present()) {
        return Support::no("reads row-major weights only, this one is packed for " + p.weight->packing);
      }
      return inner(p, device);
    };
  }
  return implementations;
}

}  // namespace

std::vector<Implementation<LinearParams>> linear() { return row_major_only(always(run_linear)); }
std::vector<Implementation<GroupedLinearParams>> grouped_linear() { return row_major_only(always(run_grouped_linear)); }
std::vector<Implementation<ops::QuantizeRowsParams>> quantize_rows() { return always(run_quantize_rows); }

}  // namespace strata::reference
