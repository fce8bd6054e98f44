// Linear layers in fp32 on any machine: of e4m3 weights as the checkpoint has them on every machine without AMX, of bf16 weights on
// machines without bf16 products (AVX512_BF16, AMX), in builds without oneDNN, and where they are not packed. Both operands are widened to
// fp32 (activations once per call), so that scales of any kind are applied in fp32 and the only rounding to bf16 is that of the result.
// Floor: M*N*K multiply-adds at two fp32 vectors a cycle; for few rows, N*K bytes of e4m3 from memory.
// A task is 32 output features of up to 256 tokens. Of more than kSimdFewRows rows its weights are widened kDepth columns at a time, into
// L2; tiles of rows x 4 features are dot products along K, whose operands are contiguous as the checkpoint stores them. Of up to
// kSimdFewRows rows they are widened in registers. Each y[t, o] is summed in the same order whatever the number of rows.

// The target with instructions that look bytes up (AVX512_VBMI), which Highway leaves out unless it is wanted. This file alone has it: in
// Highway 1.0.3 its TruncateTo of 32 to 8 bits loses values (the quantisers use it).
#define HWY_WANT_AVX3_DL
#include <type_traits>

#include "backends/cpu/linear/impls.h"
#include "backends/cpu/linear/quant.h"
#include "backends/cpu/simd_dispatch.h"

// After simd_dispatch.h, which chooses the targets.
#include <hwy/cache_control.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/linear/simd.cpp"
#include <hwy/foreach_target.h>

#include "backends/cpu/linear/e4m3_groups-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t kTileColumns = 4;
// As many accumulators as the registers hold next to the operands: 6 x 4 of 32, 3 x 4 of 16.
constexpr int64_t kTileRows = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_NEON ? 6 : 3;

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void add_lanes(const VF (&acc)[kTileColumns], float* HWY_RESTRICT sums) {
  for (size_t c = 0; c < kTileColumns; ++c) sums[c] += sum(acc[c]);
}
#else
// sums[c] += the sum of v's lanes c, c + 4, c + 8, ...
template <class D>
HWY_INLINE void add_blocks(D d, hn::Vec<D> v, float* HWY_RESTRICT sums) {
  if constexpr (hn::MaxLanes(d) > kTileColumns) {
    const hn::Half<D> half;
    add_blocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), sums);
  } else {
    hn::StoreU(hn::Add(hn::LoadU(d, sums), v), d, sums);
  }
}

// sums[c] += the sum of acc[c]'s lanes.
HWY_INLINE void add_lanes(const VF (&acc)[kTileColumns], float* HWY_RESTRICT sums) {
  const F32 df;
  const hn::RepartitionToWide<U32> d64;
  const VF ab = hn::Add(hn::InterleaveLower(df, acc[0], acc[1]), hn::InterleaveUpper(df, acc[0], acc[1]));
  const VF cd = hn::Add(hn::InterleaveLower(df, acc[2], acc[3]), hn::InterleaveUpper(df, acc[2], acc[3]));
  const auto lower = hn::InterleaveLower(d64, hn::BitCast(d64, ab), hn::BitCast(d64, cd));
  const auto upper = hn::InterleaveUpper(d64, hn::BitCast(d64, ab), hn::BitCast(d64, cd));
  add_blocks(df, hn::Add(hn::BitCast(df, lower), hn::BitCast(df, upper)), sums);
}
#endif

// sums[r * stride + c] += x[r] . w[c] over depth floats, a multiple of kLanes.
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
  for (size_t r = 0; r < kRows; ++r) add_lanes(acc[r], sums + static_cast<int64_t>(r) * stride);
}

// f(integral constant of `rows`): 1 to kMost.
template <size_t kMost, class F>
HWY_INLINE void with_rows(int64_t rows, const F& f) {
  if constexpr (kMost > 1) {
    if (rows < static_cast<int64_t>(kMost)) return with_rows<kMost - 1>(rows, f);
  }
  f(std::integral_constant<size_t, kMost>());
}

// sums[rows, columns] += x [rows, depth] * w [columns, depth]^T; columns is a multiple of 4 and the stride of sums.
void AddProducts(const float* x, int64_t x_stride, int64_t rows, const float* w, int64_t w_stride, int64_t columns, int64_t depth,
                 float* sums) {
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows, even = (rows + tiles - 1) / tiles;  // rather 4 and 4 rows than 6 and 2
  for (int64_t t = 0, tile_rows; t < rows; t += tile_rows) {
    tile_rows = rows - t < even ? rows - t : even;
    with_rows<kTileRows>(tile_rows, [&](auto count) HWY_ATTR {
      for (int64_t c = 0; c < columns; c += kTileColumns) {
        tile<decltype(count)::value>(x + t * x_stride, x_stride, w + c * w_stride, w_stride, depth, sums + t * columns + c, columns);
      }
    });
  }
}

// Groups of up to four rows of weights, as fp32. begin_block(index) before the first of each block of channels.
class Bf16Rows {
 public:
  Bf16Rows(const LinearWeight& w, int64_t first, size_t rows) {
    for (size_t c = 0; c < rows; ++c) row_[c] = w.weight.row<Bf16>(first + static_cast<int64_t>(c));
  }
  static constexpr int64_t block() { return int64_t{1} << 40; }
  void begin_block(int64_t) {}
  HWY_INLINE void load(size_t c, int64_t i, VF (&values)[kGroupVectors]) const {
    for (int64_t v = 0; v < kGroupVectors; ++v) values[v] = load_bf16(row_[c] + i + v * kLanes);
  }
  HWY_INLINE void prefetch(size_t c, int64_t i) const { hwy::Prefetch(row_[c] + i); }

 private:
  const Bf16* row_[kTileColumns];
};

class E4m3Rows {
 public:
  E4m3Rows(const LinearWeight& w, int64_t first, size_t rows) : block_k_(w.block_k) {
    for (size_t c = 0; c < rows; ++c) {
      const int64_t row = first + static_cast<int64_t>(c);
      row_[c] = w.weight.row<E4m3>(row), scale_[c] = w.scale.row<float>(row / w.block_n);
    }
    rows_ = rows;
  }
  int64_t block() const { return block_k_; }
  HWY_INLINE void begin_block(int64_t index) {
    for (size_t c = 0; c < rows_; ++c) times_[c] = scale_[c][index] * kE4m3Unit;
  }
  HWY_INLINE void load(size_t c, int64_t i, VF (&values)[kGroupVectors]) const {
    load_e4m3_group(row_[c] + i, values);
    const VF times = hn::Set(F32(), times_[c]);
    for (int64_t v = 0; v < kGroupVectors; ++v) values[v] = hn::Mul(values[v], times);
  }
  HWY_INLINE void prefetch(size_t c, int64_t i) const { hwy::Prefetch(row_[c] + i); }

 private:
  const E4m3* row_[kTileColumns];
  const float* scale_[kTileColumns];
  float times_[kTileColumns];
  int64_t block_k_;
  size_t rows_;
};

// Columns of a tile of few rows: as many accumulators as the registers hold next to a group's values.
constexpr size_t few_columns(size_t rows) {
  constexpr size_t kAccumulators = kTileRows > 3 ? 16 : 8;
  return rows * 4 <= kAccumulators ? 4 : rows * 2 <= kAccumulators ? 2 : 1;
}

// sums[r * stride + c] += x[r] . w[c] over the channels [begin, end), whole groups, in the order of tile(). ahead: how many weights ahead
// to prefetch; 0: none.
template <size_t kRows, class Weights>
HWY_INLINE void few_rows(const float* HWY_RESTRICT x, int64_t x_stride, Weights w, int64_t begin, int64_t end, int64_t ahead,
                         float* HWY_RESTRICT sums, int64_t stride) {
  constexpr size_t kColumns = few_columns(kRows);
  const F32 df;
  VF acc[kRows][kColumns];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < kColumns; ++c) acc[r][c] = hn::Zero(df);
  }
  int64_t i = begin;
  for (int64_t block = begin / w.block(); i < end; ++block) {
    const int64_t next = (block + 1) * w.block(), block_end = next < end ? next : end;
    w.begin_block(block);
    for (; i < block_end; i += kGroup) {
      for (size_t c = 0; c < kColumns; ++c) {
        VF values[kGroupVectors];
        w.load(c, i, values);
        if (ahead != 0) w.prefetch(c, i + ahead);
        for (int64_t v = 0; v < kGroupVectors; ++v) {
          const float* const a = x + i + v * kLanes;
          for (size_t r = 0; r < kRows; ++r) {
            acc[r][c] = hn::MulAdd(hn::LoadU(df, a + static_cast<int64_t>(r) * x_stride), values[v], acc[r][c]);
          }
        }
      }
    }
  }
  for (size_t first = 0; first < kRows * kColumns; first += kTileColumns) {
    VF four[kTileColumns];
    float totals[kTileColumns] = {};
    for (size_t j = 0; j < kTileColumns; ++j) {
      const size_t at = first + j;
      four[j] = at < kRows * kColumns ? acc[at / kColumns][at % kColumns] : hn::Zero(df);
    }
    add_lanes(four, totals);
    for (size_t j = 0; j < kTileColumns && first + j < kRows * kColumns; ++j) {
      sums[static_cast<int64_t>((first + j) / kColumns) * stride + static_cast<int64_t>((first + j) % kColumns)] += totals[j];
    }
  }
}

template <size_t kRows, class Weights>
void few_rows_of(const float* x, int64_t x_stride, const LinearWeight& w, int64_t first, int64_t columns, int64_t depth, float* sums) {
  constexpr size_t kColumns = few_columns(kRows);
  // Rows of up to two pages end before the hardware's own prefetching has caught up: those of the next tile are requested.
  constexpr int64_t kShortRow = 2048;
  const int64_t ahead = w.k <= kShortRow ? static_cast<int64_t>(kColumns) * w.k : 0;
  for (int64_t column = 0; column < columns; column += static_cast<int64_t>(kColumns)) {
    Weights weights(w, first + column, kColumns);
    for (int64_t begin = 0; begin < w.k; begin += depth) {
      few_rows<kRows>(x, x_stride, weights, begin, begin + depth < w.k ? begin + depth : w.k, ahead, sums + column, columns);
    }
  }
}

// sums[rows, columns] += x [rows, k] * (rows [first, first + columns) of w)^T: 1 to kSimdFewRows rows, a multiple of 4 columns, `depth`
// channels at a time. Weights are widened on their way to the product.
void AddFewRows(const float* x, int64_t x_stride, int64_t rows, const LinearWeight& w, int64_t first, int64_t columns, int64_t depth,
                float* sums) {
  with_rows<kSimdFewRows>(rows, [&](auto count) HWY_ATTR {
    constexpr size_t kRows = decltype(count)::value;
    if (w.weight.dtype == DType::bf16) {
      few_rows_of<kRows, Bf16Rows>(x, x_stride, w, first, columns, depth, sums);
    } else {
      few_rows_of<kRows, E4m3Rows>(x, x_stride, w, first, columns, depth, sums);
    }
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cstring>

#include "core/arena.h"

namespace strata::cpu {
namespace {

HWY_EXPORT(AddProducts);
HWY_EXPORT(AddFewRows);

constexpr int64_t kPanel = 32;                  // output features of a task
constexpr int64_t kDepth = 1024;                // input features widened at a time: a panel of them is half of a small L2
constexpr int64_t kBlockRows = 256;             // tokens whose sums a task keeps
constexpr int64_t kRowAlign = 16;               // rows of widened operands end with zeros up to a multiple of this
constexpr int64_t kPitch = kDepth + kRowAlign;  // of widened rows: a power of two would put all of them into the same sets of the L1 cache
static_assert(kDepth % kRowAlign == 0, "only the last chunk of a row has zeros after it");

int64_t padded(int64_t k) { return (k + kRowAlign - 1) / kRowAlign * kRowAlign; }

struct Layout {
  TensorView x;       // f32 [T, groups * padded(K)]
  TensorView panels;  // f32 [threads, kPanel * kPitch]
  TensorView sums;    // f32 [threads, kBlockRows * kPanel]
};

Layout layout(Arena& arena, int64_t tokens, int64_t groups, int64_t k, int threads) {
  Layout l;
  l.x = arena.tensor(DType::f32, {tokens, groups * padded(k)});
  l.panels = arena.tensor(DType::f32, {threads, kPanel * kPitch});
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

// Whether AddFewRows takes a call: whole tiles and whole groups of values, for every SIMD target; scales that stay finite for all targets.
bool takes_few_rows(const LinearWeight& w, int64_t tokens) {
  constexpr int64_t kTile = 4, kGroup = 64;
  if (tokens > kSimdFewRows || w.n % kTile != 0 || w.k % kGroup != 0) return false;
  if (w.weight.dtype != DType::e4m3) return true;
  if (w.block_k % kGroup != 0) return false;
  for (int64_t row = 0; row < w.scale.shape[0]; ++row) {
    const float* const scale = w.scale.row<float>(row);
    if (!std::all_of(scale, scale + w.scale.shape[1], scales_e4m3_pairs)) return false;
  }
  return true;
}

// The tasks of a call: panels of output features of a group, times blocks of kBlockRows tokens. Those of one block run next to each other,
// so that its activations, 4 MB of 4096 channels, come from a cache. task(g, first feature, features, first token, tokens).
template <class Task>
void for_each_panel(const LinearWeight& w, int64_t tokens, const Device& device, Task&& task) {
  const int64_t panels = (w.n + kPanel - 1) / kPanel, blocks = (tokens + kBlockRows - 1) / kBlockRows;
  parallel_for(device, w.groups * blocks * panels, 1, [&](int64_t i) {
    const int64_t first = i % panels * kPanel, token = i / panels % blocks * kBlockRows;
    task(i / panels / blocks, first, std::min(kPanel, w.n - first), token, std::min(kBlockRows, tokens - token));
  });
}

// y_of(g): y [T, N] of group g.
template <class Results>
void few_rows_product(const Layout& l, const LinearWeight& w, int64_t tokens, const Results& y_of, const Device& device) {
  const auto add_few_rows = HWY_DISPATCH_TABLE(AddFewRows)[simd_index(device)];
  for_each_panel(w, tokens, device, [&](int64_t g, int64_t first, int64_t columns, int64_t, int64_t) {
    float* const sums = l.sums.row<float>(thread_index());
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
  for_each_panel(w, tokens, device, [&](int64_t g, int64_t first, int64_t columns, int64_t t, int64_t rows) {
    const TensorView y = y_of(g);
    const int64_t tile_columns = (columns + 3) / 4 * 4;
    float* const weights = l.panels.row<float>(thread_index());
    float* const sums = l.sums.row<float>(thread_index());
    std::fill_n(sums, rows * tile_columns, 0.0f);
    for (int64_t i = 0; i < k; i += kDepth) {
      const int64_t channels = std::min(kDepth, k - i), depth = padded(channels);
      for (int64_t c = 0; c < tile_columns; ++c) {
        float* const row = weights + c * kPitch;
        if (c < columns) load_weight_columns(device, w, g * w.n + first + c, i, channels, row);
        std::fill(row + (c < columns ? channels : 0), row + depth, 0.0f);
      }
      add_products(l.x.row<float>(t) + g * padded(k) + i, l.x.stride[0], rows, weights, kPitch, tile_columns, depth, sums);
    }
    for (int64_t r = 0; r < rows; ++r) store_sums(sums + r * tile_columns, columns, y, t + r, first);
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
