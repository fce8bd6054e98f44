// Linear layers in fp32 on any machine: the path of machines without bf16 products (AVX512_BF16, AMX), of builds without oneDNN, and of
// weights that are not packed. Both operands are widened to fp32 (activations once per call), so that scales of any kind are applied in
// fp32 and the only rounding is that of the result.
// Floor: M*N*K multiply-adds at two fp32 vectors a cycle; for few rows, N*K bytes of e4m3 from memory, or widening them at a vector in
// three cycles.
// A task is 32 output features. Of more than four rows its weights are widened 1024 columns at a time, into L2; tiles of rows x 4 features
// are dot products along K, whose operands are contiguous as the checkpoint stores them. Of up to four rows they are widened in registers.
// Each y[t, o] is summed in the same order whatever the number of rows.
#include "backends/cpu/linear_impls.h"
#include "backends/cpu/linear_quant.h"
#include "backends/cpu/simd_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/linear_simd.cpp"
#include <hwy/foreach_target.h>

#include "backends/cpu/simd_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t kTileColumns = 4;

// sums[r * stride + c] += x[r] . w[c] over depth floats, a multiple of 16.
template <size_t kRows>
HWY_INLINE void tile(const float* HWY_RESTRICT x, int64_t x_stride, const float* HWY_RESTRICT w, int64_t w_stride, int64_t depth,
                     float* HWY_RESTRICT sums, int64_t stride) {
  const F32 df;
  VF acc[kRows][kTileColumns];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < kTileColumns; ++c) acc[r][c] = hn::Zero(df);
  }
  for (int64_t i = 0; i < depth; i += kLanes) {
    VF b[kTileColumns];
    for (size_t c = 0; c < kTileColumns; ++c) b[c] = hn::LoadU(df, w + static_cast<int64_t>(c) * w_stride + i);
    for (size_t r = 0; r < kRows; ++r) {
      const VF a = hn::LoadU(df, x + static_cast<int64_t>(r) * x_stride + i);
      for (size_t c = 0; c < kTileColumns; ++c) acc[r][c] = hn::MulAdd(a, b[c], acc[r][c]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < kTileColumns; ++c) sums[static_cast<int64_t>(r) * stride + static_cast<int64_t>(c)] += sum(acc[r][c]);
  }
}

// sums[rows, columns] += x [rows, depth] * w [columns, depth]^T; columns is a multiple of 4 and the stride of sums.
void AddProducts(const float* x, int64_t x_stride, int64_t rows, const float* w, int64_t w_stride, int64_t columns, int64_t depth,
                 float* sums) {
  // As many accumulators as the registers hold beside the operands: 4 x 4 of 32, 3 x 4 of 16.
  constexpr int64_t kMost = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_NEON ? 4 : 3;
  for (int64_t t = 0; t < rows; t += kMost) {
    const float* a = x + t * x_stride;
    for (int64_t c = 0; c < columns; c += kTileColumns) {
      const float* b = w + c * w_stride;
      float* s = sums + t * columns + c;
      switch (rows - t < kMost ? rows - t : kMost) {
        case 1: tile<1>(a, x_stride, b, w_stride, depth, s, columns); break;
        case 2: tile<2>(a, x_stride, b, w_stride, depth, s, columns); break;
        case 3: tile<3>(a, x_stride, b, w_stride, depth, s, columns); break;
        default: tile<4>(a, x_stride, b, w_stride, depth, s, columns); break;
      }
    }
  }
}

// Pairs of vectors of four rows of weights, as fp32. begin_block(i) before the first of each block.
struct Bf16Rows {
  const Bf16* row[kTileColumns];
  static constexpr int64_t block() { return int64_t{1} << 40; }
  void begin_block(int64_t) {}
  HWY_INLINE void load(size_t c, int64_t i, VF& first, VF& second) const {
    first = load_bf16(row[c] + i), second = load_bf16(row[c] + i + kLanes);
  }
};

struct E4m3Rows {
  const E4m3* row[kTileColumns];
  const float* scale[kTileColumns];
  int64_t block_k;
  float times[kTileColumns] = {};
  int64_t block() const { return block_k; }
  HWY_INLINE void begin_block(int64_t i) {
    for (size_t c = 0; c < kTileColumns; ++c) times[c] = scale[c][i / block_k] * (STRATA_E4M3_PAIRS ? kE4m3PairUnit : 1.0f);
  }
  HWY_INLINE void load(size_t c, int64_t i, VF& first, VF& second) const {
    const VF s = hn::Set(F32(), times[c]);
#if STRATA_E4M3_PAIRS
    load_e4m3_pairs(row[c] + i, first, second);
#else
    first = load_e4m3(row[c] + i), second = load_e4m3(row[c] + i + kLanes);
#endif
    first = hn::Mul(first, s), second = hn::Mul(second, s);
  }
};

// sums[r * stride + c] += x[r] . w[c] over k floats, a multiple of 2 * kLanes, in the order of tile() on pieces of `depth`.
template <size_t kRows, class Weights>
HWY_INLINE void few_rows(const float* HWY_RESTRICT x, int64_t x_stride, Weights w, int64_t k, int64_t depth, float* HWY_RESTRICT sums,
                         int64_t stride) {
  const F32 df;
  for (int64_t piece = 0; piece < k; piece += depth) {
    const int64_t end = piece + depth < k ? piece + depth : k;
    VF acc[kRows][kTileColumns];
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t c = 0; c < kTileColumns; ++c) acc[r][c] = hn::Zero(df);
    }
    for (int64_t i = piece; i < end;) {
      const int64_t next = (i / w.block() + 1) * w.block(), block_end = next < end ? next : end;
      w.begin_block(i);
      for (; i < block_end; i += 2 * kLanes) {
        for (size_t c = 0; c < kTileColumns; ++c) {
          VF first, second;
          w.load(c, i, first, second);
          for (size_t r = 0; r < kRows; ++r) {
            const float* const a = x + static_cast<int64_t>(r) * x_stride + i;
            acc[r][c] = hn::MulAdd(hn::LoadU(df, a + kLanes), second, hn::MulAdd(hn::LoadU(df, a), first, acc[r][c]));
          }
        }
      }
    }
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t c = 0; c < kTileColumns; ++c) sums[static_cast<int64_t>(r) * stride + static_cast<int64_t>(c)] += sum(acc[r][c]);
    }
  }
}

template <class Weights>
void few_rows(const float* x, int64_t x_stride, int64_t rows, const Weights& w, int64_t k, int64_t depth, float* sums, int64_t stride) {
  switch (rows) {
    case 1: few_rows<1>(x, x_stride, w, k, depth, sums, stride); break;
    case 2: few_rows<2>(x, x_stride, w, k, depth, sums, stride); break;
    case 3: few_rows<3>(x, x_stride, w, k, depth, sums, stride); break;
    default: few_rows<4>(x, x_stride, w, k, depth, sums, stride); break;
  }
}

// sums[rows, columns] += x [rows, k] * (rows [first, first + columns) of w)^T: 1 to 4 rows, a multiple of 4 columns. Weights are widened on
// their way to the product, each row of them read from its beginning to its end.
void AddFewRows(const float* x, int64_t x_stride, int64_t rows, const LinearWeight& w, int64_t first, int64_t columns, int64_t depth,
                float* sums) {
  for (int64_t column = 0; column < columns; column += kTileColumns) {
    const auto row_of = [&](size_t c) { return first + column + static_cast<int64_t>(c); };
    if (w.weight.dtype == DType::bf16) {
      Bf16Rows weights;
      for (size_t c = 0; c < kTileColumns; ++c) weights.row[c] = w.weight.row<Bf16>(row_of(c));
      few_rows(x, x_stride, rows, weights, w.k, depth, sums + column, columns);
    } else {
      E4m3Rows weights{.row = {}, .scale = {}, .block_k = w.block_k};
      for (size_t c = 0; c < kTileColumns; ++c) {
        weights.row[c] = w.weight.row<E4m3>(row_of(c)), weights.scale[c] = w.scale.row<float>(row_of(c) / w.block_n);
      }
      few_rows(x, x_stride, rows, weights, w.k, depth, sums + column, columns);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <omp.h>

#include <algorithm>
#include <cstring>

#include "core/arena.h"

namespace strata::cpu {
namespace {

HWY_EXPORT(AddProducts);
HWY_EXPORT(AddFewRows);

constexpr int64_t kPanel = 32;       // output features of a task
constexpr int64_t kDepth = 1024;     // input features widened at a time: a panel of them is half of a small L2
constexpr int64_t kBlockRows = 256;  // tokens whose sums a task keeps
constexpr int64_t kFewRows = 4;      // tokens for which weights are not widened into memory
constexpr int64_t kRowAlign = 16;    // rows of widened operands end with zeros up to a multiple of this
static_assert(kDepth % kRowAlign == 0, "only the last piece of a row has zeros behind it");

int64_t padded(int64_t k) { return (k + kRowAlign - 1) / kRowAlign * kRowAlign; }

struct Layout {
  TensorView x;       // f32 [T, groups * padded(K)]
  TensorView panels;  // f32 [threads, kPanel * kDepth]
  TensorView sums;    // f32 [threads, kBlockRows * kPanel]
};

Layout layout(Arena& arena, int64_t tokens, int64_t groups, int64_t k, int threads) {
  Layout l;
  l.x = arena.tensor(DType::f32, {tokens, groups * padded(k)});
  l.panels = arena.tensor(DType::f32, {threads, kPanel * kDepth});
  l.sums = arena.tensor(DType::f32, {threads, kBlockRows * kPanel});
  return l;
}

void store_sums(const float* sums, int64_t n, const TensorView& y, int64_t t, int64_t column) {
  if (y.dtype == DType::f32) {
    std::memcpy(y.row<float>(t) + column, sums, static_cast<size_t>(n) * sizeof(float));
  } else {
    for (int64_t i = 0; i < n; ++i) y.row<Bf16>(t)[column + i] = to_bf16(sums[i]);
  }
}

// Whether AddFewRows takes a call: whole tiles and whole pairs of vectors, whichever the target; scales of all targets' pairs.
bool takes_few_rows(const LinearWeight& w, int64_t tokens) {
  constexpr int64_t kPair = 32;
  if (tokens > kFewRows || w.n % 4 != 0 || w.k % kPair != 0) return false;
  if (w.weight.dtype != DType::e4m3) return true;
  if (w.block_k % kPair != 0) return false;
  for (int64_t row = 0; row < w.scale.shape[0]; ++row) {
    const float* const scale = w.scale.row<float>(row);
    if (!std::all_of(scale, scale + w.scale.shape[1], scales_e4m3_pairs)) return false;
  }
  return true;
}

// The tasks of a call: panels of output features of a group.
template <class Task>
void for_each_panel(const LinearWeight& w, const Device& device, Task&& task) {
  const int64_t panels = (w.n + kPanel - 1) / kPanel;
  parallel_for(device, w.groups * panels, 1, [&](int64_t i) {
    const int64_t g = i / panels, first = i % panels * kPanel;
    task(g, first, std::min(kPanel, w.n - first));
  });
}

// y_of(g): y [T, N] of group g.
template <class Results>
void few_rows_product(const Layout& l, const LinearWeight& w, int64_t tokens, const Results& y_of, const Device& device) {
  const auto add_few_rows = HWY_DISPATCH_TABLE(AddFewRows)[simd_index(device)];
  for_each_panel(w, device, [&](int64_t g, int64_t first, int64_t columns) {
    float* const sums = l.sums.row<float>(omp_get_thread_num());
    std::fill_n(sums, tokens * columns, 0.0f);
    add_few_rows(l.x.row<float>(0) + g * padded(w.k), l.x.stride[0], tokens, w, g * w.n + first, columns, kDepth, sums);
    for (int64_t t = 0; t < tokens; ++t) store_sums(sums + t * columns, columns, y_of(g), t, first);
  });
}

// y = x W^T: columns [g * padded(k), ...) of the widened x for group g.
template <class Results>
void product(const Layout& l, const LinearWeight& w, int64_t tokens, const Results& y_of, const Device& device) {
  if (takes_few_rows(w, tokens)) return few_rows_product(l, w, tokens, y_of, device);
  const auto add_products = HWY_DISPATCH_TABLE(AddProducts)[simd_index(device)];
  const int64_t k = w.k;
  for_each_panel(w, device, [&](int64_t g, int64_t first, int64_t columns) {
    const TensorView y = y_of(g);
    const int64_t tile_columns = (columns + 3) / 4 * 4;
    float* const weights = l.panels.row<float>(omp_get_thread_num());
    float* const sums = l.sums.row<float>(omp_get_thread_num());
    for (int64_t t = 0; t < tokens; t += kBlockRows) {
      const int64_t rows = std::min(kBlockRows, tokens - t);
      std::fill_n(sums, rows * tile_columns, 0.0f);
      for (int64_t i = 0; i < k; i += kDepth) {
        const int64_t part = std::min(kDepth, k - i), stride = padded(part);
        for (int64_t c = 0; c < tile_columns; ++c) {
          float* const row = weights + c * stride;
          if (c < columns) load_weight_columns(device, w, g * w.n + first + c, i, part, row);
          std::fill(row + (c < columns ? part : 0), row + stride, 0.0f);
        }
        add_products(l.x.row<float>(t) + g * padded(k) + i, l.x.stride[0], rows, weights, stride, tile_columns, stride, sums);
      }
      for (int64_t r = 0; r < rows; ++r) store_sums(sums + r * tile_columns, columns, y, t + r, first);
    }
  });
}

void clear_padding(float* row, int64_t k) { std::fill(row + k, row + padded(k), 0.0f); }

void run_linear(const LinearParams& p, const ExecutionContext& context) {
  const int64_t k = p.x.shape[1];
  Arena arena(p.x.device, context.workspace);
  const Layout l = layout(arena, p.x.shape[0], 1, k, threads_of(context.device));
  parallel_for(context.device, p.x.shape[0], 4, [&](int64_t t) {
    load_activations(context.device, p.x, p.x_scale, p.activation, t, 0, k, l.x.row<float>(t));
    clear_padding(l.x.row<float>(t), k);
  });
  product(
      l, *p.weight, p.y.shape[0], [&](int64_t) { return p.y; }, context.device);
}

void run_grouped(const GroupedLinearParams& p, const ExecutionContext& context) {
  const int64_t groups = p.x.shape[1], k = p.x.shape[2];
  Arena arena(p.x.device, context.workspace);
  const Layout l = layout(arena, p.x.shape[0], groups, k, threads_of(context.device));
  parallel_for(context.device, p.x.shape[0] * groups, 4, [&](int64_t i) {
    const int64_t t = i / groups, g = i % groups;
    float* const row = l.x.row<float>(t) + g * padded(k);
    load_activations(context.device, group_view(p.x, g), group_view(p.x_scale, g), ActivationFormat::bf16, t, 0, k, row);
    clear_padding(row, k);
  });
  product(
      l, *p.weight, p.y.shape[0], [&](int64_t g) { return group_view(p.y, g); }, context.device);
}

Support support(const LinearWeight* w, const Device& device) {
  if (device.id().kind != DeviceKind::cpu) return Support::no("runs on the CPU only");
  if (w == nullptr) return Support::no("no weight");
  if (w->packed.present()) return Support::no(fmt::format("the weight is packed for {}", w->packing));
  return Support::yes();
}

}  // namespace

std::vector<Implementation<LinearParams>> simd_linear() {
  Implementation<LinearParams> impl;
  impl.name = "cpu/simd";
  impl.supports = [](const LinearParams& p, const Device& device) { return support(p.weight, device); };
  impl.workspace_bytes = [](const LinearParams& p, const Device& device) {
    Arena arena(p.x.device);
    layout(arena, p.x.shape[0], 1, p.x.shape[1], threads_of(device));
    return arena.peak();
  };
  impl.run = run_linear;
  return {std::move(impl)};
}

std::vector<Implementation<GroupedLinearParams>> simd_grouped_linear() {
  Implementation<GroupedLinearParams> impl;
  impl.name = "cpu/simd";
  impl.supports = [](const GroupedLinearParams& p, const Device& device) { return support(p.weight, device); };
  impl.workspace_bytes = [](const GroupedLinearParams& p, const Device& device) {
    Arena arena(p.x.device);
    layout(arena, p.x.shape[0], p.x.shape[1], p.x.shape[2], threads_of(device));
    return arena.peak();
  };
  impl.run = run_grouped;
  return {std::move(impl)};
}

}  // namespace strata::cpu
#endif  // HWY_ONCE
