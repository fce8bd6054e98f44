#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/factories.h"
#include "testkit/cases/attention_case.h"
#include "testkit/harness/paging.h"
#include "testkit/cases/sparse_attn_bench.h"
#include "testkit/cases/registry.h"
#include "testkit/cases/schedules.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

struct ScopeShape {
  int64_t topk = 64;  // 0 of the second scope: there is none
  KvFormat format = KvFormat::fp8_ds_mla_v4;
  int32_t page_size = 64;
  int64_t extra_stride = 0;
  Lengths lengths = Lengths::random;
  double skipped = 0.1;
  double ue8m0_rows = 0.0;
  float scale = 1.0f;  // of fp8_tensor, as a factor of the scale that fits the keys
};

struct DecodeShape {
  int64_t batch = 2;
  int64_t queries = 1;
  int64_t heads = 16;
  ScopeShape main{};
  ScopeShape extra{.topk = 0};
  int32_t dim = 512;
  int64_t value_dim = 512;
  Sinks sinks = Sinks::mixed;
  double q_size = 1.0;
  double key_size = 0.1;
  bool lse = true;
  bool max_logits = true;
  bool batch_invariant = false;
  int64_t next_weights = 0;   // rows
  int64_t rotary = 0;         // dimensions that the prologue and the epilogue rotate; 0: neither
  bool norm_queries = false;  // the prologue
  bool rotate_back = true;    // the epilogue
  bool nan_head = false;      // the last head's queries are NaN: its lse says so, however rows are cut
  bool scheduled = false;     // shared out by the lengths (contracts/sparse_decode_schedule.h), where the device has that
  Padding padding{};
  std::string suffix{};
};

// Its batch entries' lengths.
std::vector<int32_t> add_scope(Inputs& in, const DecodeShape& s, const ScopeShape& scope, PagedCache& cache, TensorView& indices,
                               TensorView& length) {
  const int64_t num_pages = std::max<int64_t>(3, 2 * scope.topk / scope.page_size + 1), num_slots = num_pages * scope.page_size;
  // Half of the rows hold NaN and are named by stale entries only.
  const std::vector<int64_t> order = distinct_slots(in.rng(), num_slots, num_slots);
  const std::span<const int64_t> valid(order.data(), order.size() / 2),
      stale(order.data() + order.size() / 2, order.size() - order.size() / 2);
  cache = in.cache({.format = scope.format,
                    .row_dim = s.dim,
                    .page_size = scope.page_size,
                    .num_pages = num_pages,
                    .extra_stride = scope.extra_stride,
                    .scale = tensor_scale(s.key_size) * scope.scale,
                    .ue8m0_rows = scope.ue8m0_rows},
                   valid, s.key_size);
  constexpr int32_t kHoles[] = {-1};
  const MadeIndices made = make_indices(
      in.rng(),
      {.rows = s.batch * s.queries, .rows_per_length = s.queries, .width = scope.topk, .lengths = scope.lengths, .skipped = scope.skipped},
      valid, stale, kHoles);
  indices = in.values(DType::i32, {s.batch, s.queries, scope.topk}, made.indices, {.inner = s.padding.inner, .outer = s.padding.inner});
  if (scope.lengths == Lengths::none) return std::vector<int32_t>(static_cast<size_t>(s.batch), static_cast<int32_t>(scope.topk));
  length = in.i32(made.lengths);
  return made.lengths;
}

void add_schedule(Inputs& in, const DecodeShape& s, const std::vector<int32_t>& main, const std::vector<int32_t>& extra,
                  SparseAttnDecodeParams& p) {
  std::vector<AttendedRows> rows;
  for (size_t entry = 0; entry < main.size(); ++entry) {
    const int32_t all = main[entry] + (extra.empty() ? 0 : extra[entry]);
    rows.insert(rows.end(), static_cast<size_t>(s.queries), {main[entry], all});
  }
  const ScheduledCall call{
      .format = s.main.format, .num_tokens = s.batch * s.queries, .num_heads = s.heads, .width = s.main.topk + s.extra.topk};
  p.schedule = make_schedule(in, ops::make_sparse_decode_planners(), call, ops::TokenLengths{rows, ops::ScheduleWhen::always});
}

// The reference reads values of V3.2's rows as bf16 (MLA 9.1), which changes them where scales are no powers of two; who does not round
// them is nearer to what the cache holds (docs/numerics.md). It does not round those of fp8_tensor; who multiplies them by what one cache's
// scale is of the other's may. The difference, rms, as a share of a value: an error of at most 2^-8 of a power of two, and mantissas
// anywhere in [1, 2).
const double kLaneRounding = 0x1p-8 / std::sqrt(6.0);
bool rounds_values(const DecodeShape& s) {
  const auto rounds = [](const ScopeShape& scope) {
    return scope.topk > 0 && scope.format == KvFormat::fp8_ds_mla && scope.ue8m0_rows < 1.0;
  };
  return rounds(s.main) || rounds(s.extra);
}
bool rounds_by_scale(const DecodeShape& s) {
  int exponent = 0;
  return s.extra.topk > 0 && std::frexp(s.extra.scale, &exponent) != 0.5f;
}

TensorView make_queries(Inputs& in, const DecodeShape& s) {
  const int64_t of_token = s.heads * s.dim;
  std::vector<float> values(static_cast<size_t>(s.batch * s.queries * of_token));
  in.rng().normal(values.data(), std::ssize(values), static_cast<float>(s.q_size));
  for (auto end = values.begin(); s.nan_head && end != values.end();) {
    end += of_token;
    std::fill(end - s.dim, end, NAN);
  }
  return in.bf16_values({s.batch, s.queries, s.heads, s.dim}, values, s.padding);
}

Built<SparseAttnDecodeParams> build(Inputs& in, const DecodeShape& s) {
  SparseAttnDecodeParams p;
  p.q = make_queries(in, s);
  std::vector<int32_t> main = add_scope(in, s, s.main, p.cache, p.indices, p.topk_length), extra;
  if (s.extra.topk > 0) extra = add_scope(in, s, s.extra, p.extra_cache, p.extra_indices, p.extra_topk_length);
  if (s.scheduled) add_schedule(in, s, main, extra, p);
  p.attn_sink = make_sinks(in, s.sinks, s.heads);
  p.softmax_scale = static_cast<float>(std::pow(512.0, -0.55));
  p.batch_invariant = s.batch_invariant;
  if (s.rotary > 0) {
    constexpr int64_t kPositions = 129;
    std::vector<int64_t> positions(static_cast<size_t>(s.batch * s.queries));
    for (int64_t& position : positions) position = in.rng().in(0, kPositions);
    const TensorView at = in.i64(positions), cos_sin = in.rope_table(kPositions, s.rotary);
    if (s.norm_queries) p.query_prologue = {.positions = at, .cos_sin = cos_sin};
    if (s.rotate_back) p.out_epilogue = {.positions = at, .cos_sin = cos_sin};
  }
  p.out = in.output(DType::bf16, {s.batch, s.queries, s.heads, s.value_dim}, s.padding);
  Tolerance out = attention_out(1e-3, 2.01 / 128, 5e-6, s.key_size, p.out.numel(), in.drawn());
  // A normalised value may be rounded the other way: an outlier of 8 and more by 2^-4, times an outlier of a key. Drawn ones are larger.
  const double q_size = s.norm_queries ? 1.0 : s.q_size;
  Tolerance logits = attention_lse(q_size * s.key_size / 0.1, 8.01 / 65536, in.drawn());
  if (s.norm_queries) logits.abs = std::max(logits.abs, (in.drawn() ? 0x1p-3 * 10 : 0x1p-4 * 4) * s.key_size * p.softmax_scale);
  if (rounds_values(s) || rounds_by_scale(s)) {
    // The mean square of queries and keys, with their outliers, is twice that of their size (random.h), and of single dimensions it is
    // more.
    const double of_logits = kLaneRounding * std::sqrt(512.0) * 2 * q_size * s.key_size * p.softmax_scale;
    logits.abs = std::max(logits.abs, (rounds_values(s) ? 16 : 32) * of_logits),
    logits.cos += (in.drawn() ? 2 : 1) * kLaneRounding * kLaneRounding;
    out.abs *= 2, out.cos += kLaneRounding * kLaneRounding, out.beyond *= 10;
  }
  std::vector<Output> outputs{view_output("out", p.out, out)};
  if (s.lse) {
    p.lse = in.output(DType::f32, {s.batch, s.heads, s.queries}, {.inner = s.padding.inner, .outer = s.padding.outer});
    outputs.push_back(view_output("lse", p.lse, logits));
  }
  if (s.max_logits) {
    p.max_logits = in.output(DType::f32, {s.batch, s.heads, s.queries}, {.inner = s.padding.outer});
    outputs.push_back(view_output("max_logits", p.max_logits, logits));
  }
  for (Output& output : outputs) output.tolerance.any_nan = s.nan_head;
  Built<SparseAttnDecodeParams> built{.params = p, .outputs = std::move(outputs)};
  if (s.next_weights > 0) built.hints.next_weights = in.bf16({s.next_weights, 1000});
  return built;
}

std::string name_of(const ScopeShape& s) {
  const char* lengths[] = {"", "", "-full", "-empty"};
  return fmt::format("{}{}-{}-B{}{}{}{}{}{}", s.topk, s.lengths == Lengths::none ? "-no_length" : lengths[static_cast<int>(s.lengths)],
                     to_string(s.format), s.page_size, s.extra_stride > 0 ? fmt::format("+{}", s.extra_stride) : "",
                     s.skipped == 1.0 ? "-all_skipped" : "", s.skipped == 0.0 ? "-no_holes" : "",
                     s.ue8m0_rows > 0 ? fmt::format("-ue8m0_{:g}", s.ue8m0_rows) : "",
                     s.scale != 1.0f ? fmt::format("-scale{:g}", s.scale) : "");
}

std::string name_of(const DecodeShape& s) {
  std::string name = fmt::format("b{}-s{}-H{}-D{}-rows{}", s.batch, s.queries, s.heads, s.dim, name_of(s.main));
  if (s.extra.topk > 0) name += "-and" + name_of(s.extra);
  name += fmt::format("-sink_{}", name_of(s.sinks));
  if (s.value_dim != s.dim) name += fmt::format("-Dv{}", s.value_dim);
  if (s.nan_head) name += "-nan_head";
  if (s.q_size != 1.0 || s.key_size != 0.1) name += fmt::format("-q{:g}-k{:g}", s.q_size, s.key_size);
  if (!s.lse) name += "-no_lse";
  if (!s.max_logits) name += "-no_max";
  if (s.batch_invariant) name += "-batch_invariant";
  if (s.next_weights > 0) name += fmt::format("-next{}", s.next_weights);
  if (s.rotary > 0) name += fmt::format("-rotary{}", s.rotary);
  if (s.norm_queries) name += "-norm_queries";
  if (!s.rotate_back) name += "-not_back";
  if (s.scheduled) name += "-scheduled";
  if (s.padding.inner + s.padding.outer > 0) name += "-strided";
  return name + s.suffix;
}

constexpr auto kV4 = KvFormat::fp8_ds_mla_v4;
constexpr auto kMla = KvFormat::fp8_ds_mla;
constexpr auto kBf16 = KvFormat::bf16;

template <class Test>
void add_shapes(const Test& test) {
  for (const int64_t heads : {1, 3, 8, 16, 24, 32, 63, 64, 96, 126, 128}) {
    test({.batch = 3, .heads = heads, .main = {.topk = 40}, .extra = {.topk = 70, .page_size = 2}});
  }
  // A small call may spread its heads over blocks of fewer than one with a fixed cut, or a large one, has; one with many tokens and few
  // rows may have blocks of more.
  for (const int64_t heads : {63, 64, 96, 126, 128}) {
    test({.batch = 3, .heads = heads, .main = {.topk = 40}, .extra = {.topk = 70, .page_size = 2}, .batch_invariant = true});
  }
  test({.batch = 90, .heads = 100, .main = {.topk = 90}, .extra = {.topk = 30, .page_size = 2}});
  test({.batch = 35, .queries = 2, .heads = 65, .main = {.topk = 64}});
  test({.batch = 70, .heads = 128, .main = {.topk = 100}, .key_size = 400.0});
  // Splits of this many tokens may be combined by the CTAs that computed them.
  test({.batch = 48, .heads = 33, .main = {.topk = 60}, .extra = {.topk = 580, .page_size = 2}});
  test({.batch = 24, .heads = 100, .main = {.topk = 128}, .extra = {.topk = 512}, .key_size = 400.0});
  test({.batch = 26, .heads = 52, .main = {.topk = 100}, .extra = {.topk = 604}});
  test({.batch = 48, .heads = 33, .main = {.topk = 384, .format = kMla}, .dim = 576, .value_dim = 512});
  test({.batch = 13, .queries = 2, .heads = 49, .main = {.topk = 384, .format = kMla}, .dim = 576, .value_dim = 512});
  // And those of few heads: heads and ranks that do not exist, several tokens, one of ten splits.
  test({.batch = 1, .heads = 60, .main = {.topk = 130}, .extra = {.topk = 500, .page_size = 2}});
  test({.batch = 2, .queries = 2, .heads = 50, .main = {.topk = 128}, .extra = {.topk = 512}, .sinks = Sinks::none, .key_size = 400.0});
  for (const int64_t heads : {5, 30}) test({.batch = 2, .heads = heads, .main = {.topk = 128}, .extra = {.topk = 500}});
  // The hint must not change results: CTAs with few heads, with 64 in clusters, and persistent CTAs.
  test({.heads = 64, .main = {.topk = 128}, .extra = {.topk = 512}, .next_weights = 3001});
  test({.batch = 24, .heads = 100, .main = {.topk = 128}, .extra = {.topk = 512}, .next_weights = 3001});
  test({.batch = 70, .heads = 128, .main = {.topk = 100}, .next_weights = 3001});
  for (const int64_t batch : {0, 1, 3, 17, 64}) test({.batch = batch, .heads = 8, .main = {.topk = 48}, .extra = {.topk = 24}});
  test({.batch = 300, .heads = 3, .main = {.topk = 12}, .extra = {.topk = 5}});
  for (const int64_t heads : {16, 32}) test({.batch = 110, .heads = heads, .main = {.topk = 60}, .extra = {.topk = 90, .page_size = 2}});
  for (const int64_t queries : {2, 3, 4, 5, 8})
    test({.batch = 3, .queries = queries, .heads = 8, .main = {.topk = 33}, .extra = {.topk = 20}});
  for (const int32_t page_size : {1, 2, 53, 61, 69, 256, 576}) {
    const int64_t extra_stride = page_size % 2 == 0 ? 576 : 1;
    for (const auto format : {kV4, KvFormat::bf16, KvFormat::fp8_tensor}) {
      test({.heads = 8, .main = {.format = format, .page_size = page_size, .extra_stride = extra_stride}});
    }
    test({.heads = 8, .main = {.format = kMla, .page_size = page_size, .extra_stride = extra_stride}, .dim = 576, .value_dim = 512});
  }
  for (const int64_t topk : {1, 2, 7, 15, 16, 17, 31, 63, 65, 128, 200, 640}) test({.heads = 16, .main = {.topk = topk}});
  test({.heads = 5, .main = {.topk = 0}, .suffix = "-no_columns"});
}

// Every pair of formats that share a head dimension, and what follows from a missing parameter.
template <class Test>
void add_formats(const Test& test) {
  for (const auto main : {kV4, KvFormat::bf16, KvFormat::fp8_tensor}) {
    for (const auto extra : {kV4, KvFormat::bf16, KvFormat::fp8_tensor}) {
      test({.heads = 8, .main = {.topk = 40, .format = main}, .extra = {.topk = 40, .format = extra, .page_size = 53}});
    }
  }
  for (const auto format : {kMla, KvFormat::bf16, KvFormat::fp8_tensor}) {
    for (const int64_t value_dim : {512, 576}) test({.heads = 16, .main = {.format = format}, .dim = 576, .value_dim = value_dim});
    test({.heads = 24, .main = {.format = format}, .extra = {.topk = 30, .format = kMla}, .dim = 576, .value_dim = 512});
  }
  for (const int64_t value_dim : {64, 100, 448}) test({.heads = 3, .value_dim = value_dim});
  test({.batch = 64, .heads = 64, .value_dim = 1});  // the cosine of a few values would be that of one whose terms cancel
  for (const auto sinks : {Sinks::none, Sinks::finite, Sinks::plus_infinity, Sinks::minus_infinity}) {
    test({.heads = 9, .extra = {.topk = 20}, .sinks = sinks});
    test({.heads = 9, .main = {.skipped = 1.0}, .extra = {.topk = 20, .skipped = 1.0}, .sinks = sinks});
    test({.heads = 9, .main = {.lengths = Lengths::zero}, .extra = {.topk = 20, .lengths = Lengths::zero}, .sinks = sinks});
  }
}

template <class Test>
void add_lengths(const Test& test) {
  test({.main = {.lengths = Lengths::zero}, .extra = {.topk = 30}});
  test({.main = {}, .extra = {.topk = 30, .lengths = Lengths::zero}});
  test({.main = {.lengths = Lengths::none}, .extra = {.topk = 30, .lengths = Lengths::none}});
  test({.main = {.lengths = Lengths::none, .skipped = 0.0}});
  test({.main = {.lengths = Lengths::full, .skipped = 0.9}, .extra = {.topk = 30, .lengths = Lengths::full}});
  test({.main = {.skipped = 1.0}, .extra = {.topk = 100}});
  test({.batch = 4, .lse = false});
  test({.batch = 4, .max_logits = false});
  test({.batch = 4, .lse = false, .max_logits = false});
  test({.batch = 3, .queries = 2, .heads = 5, .extra = {.topk = 20}, .padding = {.inner = 3, .outer = 7}});
  test({.batch = 3, .queries = 2, .heads = 16, .extra = {.topk = 20}, .padding = {.inner = 64, .outer = 512}});
  for (const int64_t heads : {3, 16, 64}) test({.batch = 3, .heads = heads, .extra = {.topk = 200}, .batch_invariant = true});
  // Tiles of 16, 32 and 64 heads, and of every format, are what a fixed split selects by heads alone.
  for (const int64_t heads : {24, 40}) {
    for (const auto format : {kV4, KvFormat::bf16, KvFormat::fp8_tensor}) {
      test({.heads = heads, .main = {.topk = 150, .format = format, .page_size = 53}, .extra = {.topk = 70}, .batch_invariant = true});
    }
    for (const auto format : {kMla, KvFormat::bf16, KvFormat::fp8_tensor}) {
      test({.heads = heads,
            .main = {.topk = 150, .format = format, .page_size = 53, .extra_stride = 1},
            .dim = 576,
            .value_dim = 512,
            .batch_invariant = true});
    }
  }
  // More splits than a warp has lanes; tokens enough for every SM of a large GPU.
  test({.batch = 1, .queries = 2, .heads = 8, .main = {.topk = 1500}, .extra = {.topk = 700, .page_size = 2}});
  test({.batch = 2, .heads = 4, .main = {.topk = 3000, .lengths = Lengths::full}, .batch_invariant = true});
  test({.batch = 140, .heads = 20, .main = {.topk = 20}, .extra = {.topk = 33}});
  test({.batch = 140, .heads = 33, .main = {.topk = 20}, .extra = {.topk = 9}});
  // More blocks of few heads than SMs, which take several tokens each: none to five tiles of a token.
  test({.batch = 300, .heads = 12, .main = {.topk = 40}, .extra = {.topk = 100}});
  test({.batch = 140, .queries = 2, .heads = 16, .main = {.topk = 128}, .extra = {.topk = 180, .page_size = 2}, .next_weights = 3001});
  test({.batch = 280, .heads = 7, .main = {.topk = 70}, .extra = {.topk = 30}, .sinks = Sinks::none, .key_size = 400.0});
  // One key takes nearly all of the weight, or queries and keys are large; scales far from 1.
  test({.q_size = 1e-6, .key_size = 1e6});
  test({.q_size = 1e4, .key_size = 1e-5});
  test({.q_size = 20.0});
  test({.extra = {.topk = 40}, .q_size = 4.0, .key_size = 1.0});
  // Keys past what half precision holds; many tiles; cuts of a batch-invariant call.
  // Those of V3.2 with any scales have small logits, which roundings of keys do not move much.
  const auto large_mla = [&](int64_t heads, double ue8m0_rows, bool fixed) {
    test({.heads = heads,
          .main = {.topk = 150, .format = kMla, .ue8m0_rows = ue8m0_rows},
          .dim = 576,
          .value_dim = 512,
          .q_size = ue8m0_rows < 1.0 ? 1e-5 : 1e-3,
          .key_size = 1e4,
          .batch_invariant = fixed});
  };
  for (const int64_t heads : {5, 20, 64, 100}) {
    test({.heads = heads, .main = {.topk = 150}, .extra = {.topk = 90}, .key_size = 400.0});
    for (const double ue8m0_rows : {0.0, 1.0}) large_mla(heads, ue8m0_rows, false);
  }
  for (const int64_t heads : {64, 100}) {
    test({.heads = heads, .main = {.topk = 150}, .extra = {.topk = 90}, .key_size = 400.0, .batch_invariant = true});
    large_mla(heads, 0.0, true);
  }
  test({.batch = 1, .heads = 40, .main = {.topk = 130}, .extra = {.topk = 700, .page_size = 2}});
  for (const int64_t heads : {8, 128}) test({.batch = 2, .heads = heads, .main = {.topk = 2200}, .batch_invariant = true});
  // Blocks with many tiles, of even and odd numbers: a fixed cut has up to 2048 rows, and tokens enough for every SM are not cut.
  for (const int64_t rows : {1152, 1990, 2048}) {
    test({.batch = 1, .heads = 64, .main = {.topk = rows, .lengths = Lengths::full}, .sinks = Sinks::finite, .batch_invariant = true});
  }
  test({.batch = 1, .heads = 100, .main = {.topk = 1900, .format = kMla}, .dim = 576, .value_dim = 512, .batch_invariant = true});
  // Splits of which some have no rows, a few query tokens, sinks that take everything.
  for (const int64_t heads : {20, 64, 128})
    test({.batch = 6, .heads = heads, .main = {.topk = 900}, .extra = {.topk = 300, .page_size = 2}});
  for (const int64_t queries : {1, 2, 5, 8}) test({.batch = 2, .queries = queries, .heads = 64, .main = {.topk = 130, .page_size = 53}});
  for (const auto sinks : {Sinks::none, Sinks::plus_infinity, Sinks::minus_infinity}) {
    for (const bool fixed : {false, true}) {
      test({.batch = 1, .queries = 3, .heads = 64, .main = {.topk = 700}, .sinks = sinks, .batch_invariant = fixed});
    }
  }
  test({.batch = 1, .heads = 64, .main = {.topk = 640, .lengths = Lengths::zero}, .extra = {.topk = 64, .page_size = 1}});
  test({.q_size = 0.0});
  test({.key_size = 0.0});
}

// Scales of V3.2's rows that are powers of two: all of them, and nearly all.
template <class Test>
void add_powers_of_two(const Test& test) {
  const auto mla = [&](int64_t heads, ScopeShape main, DecodeShape s = {}) {
    main.format = kMla;
    s.heads = heads, s.main = main, s.dim = 576, s.value_dim = 512;
    test(s);
  };
  for (const double share : {1.0, 0.97}) {
    mla(16, {.topk = 300, .ue8m0_rows = share});
    mla(64, {.topk = 130, .ue8m0_rows = share}, {.batch = 3, .extra = {.topk = 330, .format = kMla, .page_size = 7, .ue8m0_rows = share}});
    mla(40, {.topk = 700, .page_size = 53, .extra_stride = 1, .ue8m0_rows = share}, {.batch_invariant = true});
    mla(128, {.topk = 2000, .lengths = Lengths::full, .ue8m0_rows = share}, {.batch_invariant = true});
    mla(100, {.topk = 500, .ue8m0_rows = share}, {.q_size = share < 1.0 ? 1e-5 : 1e-3, .key_size = 1e4, .batch_invariant = true});
  }
}

// Results with their rotation taken back, from every kernel and every way to combine splits.
template <class Test>
void add_rotated(const Test& test) {
  constexpr int64_t kRotary = 64;
  for (const int64_t heads : {3, 16, 24, 32, 63, 96, 128}) {
    for (const bool fixed : {false, true}) {
      test({.batch = 3, .heads = heads, .main = {.topk = 40}, .extra = {.topk = 70}, .batch_invariant = fixed, .rotary = kRotary});
    }
    test({.batch = 2, .heads = heads, .main = {.format = kMla}, .dim = 576, .value_dim = 512, .rotary = kRotary});
  }
  // One token with more splits than a combining warp has lanes, and with enough splits that CTAs combine them.
  test({.batch = 1, .heads = 64, .main = {.topk = 128}, .extra = {.topk = 512}, .rotary = kRotary});
  test({.batch = 1, .queries = 2, .heads = 8, .main = {.topk = 1500}, .extra = {.topk = 700}, .rotary = kRotary});
  for (const int64_t heads : {12, 120})
    test({.batch = 2, .heads = heads, .main = {.topk = 128}, .extra = {.topk = 512}, .rotary = kRotary});
  test({.batch = 2, .heads = 128, .main = {.topk = 2200}, .batch_invariant = true, .rotary = kRotary});
  test({.batch = 24, .heads = 100, .main = {.topk = 128}, .extra = {.topk = 512}, .rotary = kRotary});
  test({.batch = 290, .heads = 8, .main = {.topk = 70}, .extra = {.topk = 30}, .rotary = kRotary});
  test({.batch = 26, .heads = 52, .main = {.topk = 100}, .extra = {.topk = 604}, .rotary = kRotary});
  // Two iterations over heads; CTAs that start over; rows of any alignment; several queries; nothing attended.
  test({.batch = 70, .heads = 128, .main = {.topk = 100}, .rotary = kRotary});
  for (const int64_t batch : {2, 24, 70}) test({.batch = batch, .heads = 100, .main = {.topk = 128}, .key_size = 400.0, .rotary = kRotary});
  for (const int64_t heads : {5, 64}) {
    test({.batch = 3, .queries = 2, .heads = heads, .extra = {.topk = 20}, .rotary = kRotary, .padding = {.inner = 3, .outer = 7}});
    test({.batch = 3, .queries = 4, .heads = heads, .main = {.topk = 300, .lengths = Lengths::zero}, .rotary = kRotary});
  }
  // Dimensions, formats and values that kernels for one kind of rows do not take.
  for (const int64_t rotary : {2, 128}) test({.heads = 8, .rotary = rotary});
  test({.heads = 3, .value_dim = 100, .rotary = 34});
  test({.heads = 8, .main = {.format = KvFormat::bf16}, .dim = 576, .value_dim = 576, .rotary = kRotary});
}

// Queries as their product leaves them, for every kernel.
template <class Test>
void add_raw_queries(const Test& test) {
  const auto raw = [&](DecodeShape s) {
    s.norm_queries = true, s.q_size = 3.0;
    if (s.rotary == 0) s.rotary = 64;
    test(s);
  };
  for (const int64_t heads : {1, 3, 8, 16, 24, 32, 63, 64, 96, 126, 128}) {
    for (const bool fixed : {false, true}) {
      raw({.batch = 3, .heads = heads, .main = {.topk = 40}, .extra = {.topk = 70, .page_size = 2}, .batch_invariant = fixed});
    }
  }
  // One token, in clusters of each kind; work items of a schedule; calls for persistent CTAs; several queries; rows of any alignment.
  for (const int64_t heads : {16, 64})
    raw({.batch = 1, .heads = heads, .main = {.topk = 128}, .extra = {.topk = 512}, .rotate_back = false});
  for (const int64_t heads : {12, 120}) raw({.batch = 2, .heads = heads, .main = {.topk = 128}, .extra = {.topk = 512}});
  raw({.batch = 24, .heads = 100, .main = {.topk = 128}, .extra = {.topk = 512}});
  raw({.batch = 26, .heads = 52, .main = {.topk = 100}, .extra = {.topk = 604}});
  for (const int64_t heads : {8, 16, 32, 64})
    raw({.batch = 5, .heads = heads, .main = {.topk = 128}, .extra = {.topk = 900}, .scheduled = true});
  raw({.batch = 290, .heads = 8, .main = {.topk = 70}, .extra = {.topk = 30}});
  raw({.batch = 70, .heads = 128, .main = {.topk = 100}});
  for (const int64_t heads : {5, 64}) {
    raw({.batch = 3, .queries = 2, .heads = heads, .extra = {.topk = 20}, .padding = {.inner = 3, .outer = 7}});
    raw({.batch = 3, .queries = 4, .heads = heads, .main = {.topk = 300, .lengths = Lengths::zero}});
    raw({.batch = 2, .heads = heads, .main = {.topk = 640}, .key_size = 400.0});
  }
  for (const int64_t heads : {16, 64}) raw({.batch = 2, .heads = heads, .main = {.topk = 640}, .nan_head = true});
  // What is left to kernels for any rows.
  raw({.heads = 8, .rotary = 2});
  raw({.heads = 16, .main = {.format = kMla}, .dim = 576, .value_dim = 512});
  raw({.heads = 8, .main = {.format = kBf16}, .extra = {.topk = 20, .format = KvFormat::fp8_tensor}});
  raw({.batch = 3, .queries = 2, .heads = 5, .main = {.format = kBf16}, .dim = 576, .value_dim = 100, .rotary = 128, .rotate_back = false});
  raw({.batch = 0, .heads = 8});
}

// Rows in one split, in splits that a cluster combines, and in splits that a later kernel combines.
template <class Test>
void add_nan_heads(const Test& test) {
  for (const int64_t heads : {1, 16, 64, 70}) {
    for (const bool invariant : {false, true}) {
      test({.batch = 1, .heads = heads, .main = {.topk = 640}, .batch_invariant = invariant, .nan_head = true});
      test({.batch = 3,
            .heads = heads,
            .main = {.topk = 2048, .format = kMla},
            .dim = 576,
            .value_dim = 512,
            .batch_invariant = invariant,
            .nan_head = true});
      test({.heads = heads,
            .main = {.topk = 640, .format = kBf16},
            .extra = {.topk = 700, .format = kBf16},
            .batch_invariant = invariant,
            .nan_head = true});
    }
    test({.batch = 140, .heads = heads, .main = {.topk = 64}, .nan_head = true});
  }
}

// Few heads with many more tiles than a block holds at a time.
template <class Test>
void add_many_tiles(const Test& test) {
  for (const int64_t heads : {8, 16, 24, 32}) {
    test({.batch = 3, .heads = heads, .main = {.topk = 128}, .extra = {.topk = 1900, .page_size = 2}, .batch_invariant = true});
    test({.batch = 2, .heads = heads, .main = {.topk = 2048, .format = kMla}, .dim = 576, .value_dim = 512, .batch_invariant = true});
  }
  // Rows of any alignment; large keys.
  test({.batch = 2, .heads = 8, .main = {.topk = 900, .page_size = 53, .extra_stride = 1}, .batch_invariant = true});
  test({.batch = 2,
        .heads = 32,
        .main = {.topk = 900, .format = kMla, .page_size = 53, .extra_stride = 1},
        .dim = 576,
        .value_dim = 512,
        .batch_invariant = true});
  test({.batch = 2, .heads = 16, .main = {.topk = 1200}, .extra = {.topk = 600}, .key_size = 400.0, .batch_invariant = true});
}

// Rows that kernels multiply as bf16, in tiles of 48 or 64 rows and 64 heads: whole tokens, cut ones, more tokens than there are blocks.
// scale: of the second cache.
template <class Test>
void add_bf16_products(const Test& test, KvFormat format, float scale) {
  for (const int64_t heads : {1, 16, 63, 64, 65, 100, 128}) {
    test({.batch = 3,
          .heads = heads,
          .main = {.topk = 128, .format = format},
          .extra = {.topk = 300, .format = format, .page_size = 2, .scale = scale}});
    test({.batch = 3, .heads = heads, .main = {.topk = 700, .format = format}, .dim = 576, .value_dim = 512});
  }
  for (const int32_t dim : {512, 576}) {
    for (const int64_t queries : {2, 5}) {
      test({.batch = 3,
            .queries = queries,
            .heads = 70,
            .main = {.topk = 130, .format = format},
            .extra = {.topk = 700, .format = format, .page_size = 53, .scale = scale},
            .dim = dim,
            .value_dim = 512});
    }
    test({.batch = 150,
          .heads = 20,
          .main = {.topk = 100, .format = format},
          .extra = {.topk = 70, .format = format, .scale = scale},
          .dim = dim,
          .value_dim = 512});
    test({.batch = 140, .queries = 3, .heads = 33, .main = {.topk = 90, .format = format}, .dim = dim, .value_dim = 512});
    test({.batch = 170, .heads = 65, .main = {.topk = 70, .format = format}, .dim = dim, .value_dim = 512});
    test({.batch = 2, .heads = 128, .main = {.topk = 1500, .format = format}, .dim = dim, .value_dim = 512, .batch_invariant = true});
    test({.batch = 2, .heads = 64, .main = {.topk = 700, .format = format, .lengths = Lengths::zero}, .dim = dim, .value_dim = 512});
    // One token and one head: nothing else says how far apart others would be.
    test({.batch = 1,
          .heads = 1,
          .main = {.topk = 100, .format = format},
          .dim = dim,
          .value_dim = 512,
          .padding = {.inner = 3, .outer = 7}});
    test({.heads = 64,
          .main = {.format = format, .skipped = 1.0},
          .extra = {.topk = 600, .format = format, .scale = scale},
          .dim = dim,
          .value_dim = 512});
    for (const auto sinks : {Sinks::none, Sinks::plus_infinity, Sinks::minus_infinity}) {
      test({.heads = 9, .main = {.topk = 600, .format = format}, .dim = dim, .value_dim = 512, .sinks = sinks});
    }
    test({.batch = 3,
          .queries = 2,
          .heads = 70,
          .main = {.topk = 600, .format = format},
          .dim = dim,
          .value_dim = 512,
          .padding = {.inner = 3, .outer = 7}});
    test({.batch = 3,
          .heads = 70,
          .main = {.topk = 600, .format = format, .page_size = 53, .extra_stride = 16},
          .dim = dim,
          .value_dim = 512,
          .rotary = 64,
          .padding = {.inner = 64, .outer = 512}});
    test({.batch = 3, .queries = 2, .heads = 70, .main = {.topk = 600, .format = format}, .dim = dim, .value_dim = 512, .key_size = 400.0});
  }
}

// Calls that go by a schedule: CTAs of all numbers of heads, whole tokens and many splits, tokens without rows, results with their
// rotation taken back, blocks that start over; and what a schedule does not serve, where it is passed over.
template <class Test>
void add_schedules(const Test& test) {
  for (const int64_t heads : {1, 3, 8, 16, 24, 32, 63, 64, 96, 128}) {
    test({.batch = 3, .heads = heads, .main = {.topk = 128}, .extra = {.topk = 700, .page_size = 2}, .scheduled = true});
    test({.batch = 40, .heads = heads, .main = {.topk = 100}, .extra = {.topk = 150}, .rotary = 64, .scheduled = true});
    test({.batch = 5, .heads = heads, .main = {.topk = 40}, .extra = {.topk = 70}, .scheduled = true});
  }
  for (const int64_t heads : {8, 64}) {
    test({.batch = 1, .heads = heads, .main = {.topk = 128}, .extra = {.topk = 8192, .lengths = Lengths::full}, .scheduled = true});
    test({.batch = 2, .queries = 3, .heads = heads, .main = {.topk = 128}, .extra = {.topk = 900}, .rotary = 64, .scheduled = true});
    test({.batch = 4, .heads = heads, .main = {.topk = 300, .lengths = Lengths::zero}, .rotary = 64, .scheduled = true});
    test({.batch = 4, .heads = heads, .main = {.topk = 300, .skipped = 1.0}, .extra = {.topk = 400, .skipped = 1.0}, .scheduled = true});
    test({.batch = 3, .heads = heads, .main = {.topk = 300}, .extra = {.topk = 400}, .key_size = 400.0, .scheduled = true});
    test({.batch = 3, .heads = heads, .main = {.topk = 640}, .nan_head = true, .scheduled = true});
    test({.batch = 3, .heads = heads, .main = {.topk = 640}, .next_weights = 3001, .scheduled = true});
    for (const auto sinks : {Sinks::none, Sinks::plus_infinity, Sinks::minus_infinity}) {
      test({.batch = 3, .heads = heads, .main = {.topk = 640}, .sinks = sinks, .scheduled = true});
    }
    test({.batch = 3, .heads = heads, .main = {.topk = 640}, .batch_invariant = true, .scheduled = true});
    test({.batch = 3, .heads = heads, .main = {.topk = 640, .page_size = 53, .extra_stride = 1}, .scheduled = true});
    test({.batch = 3, .heads = heads, .main = {.topk = 640, .format = kBf16}, .scheduled = true});
    test({.batch = 3, .heads = heads, .main = {.topk = 640, .format = kMla}, .dim = 576, .value_dim = 512, .scheduled = true});
  }
  test({.batch = 0, .heads = 16, .main = {.topk = 128}, .scheduled = true});
  // More blocks than run at a time.
  for (const int64_t heads : {16, 100}) {
    test({.batch = 300, .heads = heads, .main = {.topk = 60}, .extra = {.topk = 90}, .scheduled = true});
  }
}

}  // namespace

void add_sparse_attn_decode(CaseList& list) {
  CaseAdder<SparseAttnDecodeParams> cases(list, "sparse_attn_decode", &OpSet::sparse_attn_decode);
  const auto test = [&](const DecodeShape& s) {
    // CPUs ignore schedules, and have no more kinds of tiles in a long call than in a short one.
    const bool gpu = s.scheduled || s.batch * s.queries * s.heads * (s.main.topk + s.extra.topk) > 50'000;
    const auto builder = [s](Inputs& in) { return build(in, s); };
    gpu ? cases.gpu(name_of(s), builder) : cases.test(name_of(s), builder);
  };
  add_shapes(test);
  add_formats(test);
  add_lengths(test);
  add_powers_of_two(test);
  add_many_tiles(test);
  add_nan_heads(test);
  add_rotated(test);
  add_raw_queries(test);
  add_schedules(test);
  add_bf16_products(test, kBf16, 1.0f);
  add_bf16_products(test, KvFormat::fp8_tensor, 0.7f);
  for (const float scale : {0.25f, 64.0f, 0x1p-110f}) {  // relative to the first; the last leaves nothing of the second's keys
    const auto format = KvFormat::fp8_tensor;
    test({.heads = 16, .main = {.topk = 40, .format = format}, .extra = {.topk = 100, .format = format, .scale = scale}});
  }
  for (const DecodeShape& s :
       {DecodeShape{.batch = 128, .heads = 16, .main = {.topk = 128, .lengths = Lengths::full}, .extra = {.topk = 1024, .page_size = 2}},
        DecodeShape{.batch = 4, .heads = 64, .main = {.topk = 128}, .extra = {.topk = 512, .page_size = 2}},
        DecodeShape{.batch = 2, .heads = 128, .main = {.topk = 128}, .extra = {.topk = 1024}},
        DecodeShape{.batch = 1, .heads = 16, .main = {.topk = 128}, .extra = {.topk = 8192}},
        DecodeShape{.batch = 128, .heads = 16, .main = {.topk = 128}, .extra = {.topk = 1024, .page_size = 2}},
        DecodeShape{.batch = 134, .heads = 34, .main = {.topk = 128}, .extra = {.topk = 320, .page_size = 2}},
        DecodeShape{.batch = 2, .heads = 128, .main = {.topk = 2048, .format = kMla}, .dim = 576, .value_dim = 512}}) {
    cases.heavy(name_of(s), [s](Inputs& in) { return build(in, s); });
  }
  add_decode_bench(cases);
}

void add_random_sparse_attn_decode(CaseList& list, Draw& draw) {
  DecodeShape s;
  const auto random_scope = [&](int64_t most) {
    ScopeShape scope;
    scope.topk = draw.chance(0.3) ? draw.of<int64_t>({128, 512, 640, 1024}) : draw.size(0, most);
    scope.format = draw.usual() ? (s.dim == 576 ? kMla : kV4) : draw.of({s.dim == 576 ? kMla : kV4, KvFormat::bf16, KvFormat::fp8_tensor});
    scope.page_size = draw.page_size();
    scope.extra_stride = draw.page_gap();
    scope.lengths = random_lengths(draw);
    scope.skipped = draw.of({0.1, 0.1, 0.0, 0.5, 0.9, 1.0});
    if (scope.format == kMla) scope.ue8m0_rows = draw.of({0.0, 0.5, 0.97, 1.0});
    return scope;
  };
  s.dim = draw.of({512, 512, 576});
  s.value_dim = draw.usual() || draw.chance(0.3) ? 512 : draw.size(1, s.dim);
  s.heads = draw.heads();
  s.main = random_scope(2500);
  if (draw.chance(0.6)) {
    s.extra = random_scope(1500);
    if (draw.chance(0.3)) s.extra.format = s.main.format;
    if (s.extra.format == KvFormat::fp8_tensor) s.extra.scale = draw.of({1.0f, 0.7f, 3.0f});
  }
  s.queries = draw.chance(0.7) ? 1 : draw.in(2, 8);
  const double of_token = static_cast<double>(s.heads * (s.main.topk + s.extra.topk + 8) * (s.dim + s.value_dim));
  const int64_t most = std::min(static_cast<int64_t>(2 * draw.work() / of_token), 16'000'000 / (s.heads * s.dim));
  s.batch = draw.tokens(std::clamp<int64_t>(most, s.queries, 1200) / s.queries);
  s.sinks = random_sinks(draw);
  if (draw.chance(0.15) && !rounds_values(s) && !rounds_by_scale(s)) {
    const auto [q_size, key_size] = draw.of({std::pair{20.0, 0.1}, {1.0, 400.0}, {1e-6, 1e6}, {1e4, 1e-5}, {0.0, 0.1}, {1.0, 0.0}});
    s.q_size = q_size, s.key_size = key_size;
  }
  s.lse = draw.chance(0.7);
  s.max_logits = draw.chance(0.5);
  s.batch_invariant = draw.chance(0.3);
  if (draw.chance(0.2)) s.next_weights = draw.size(1, 4000);
  s.scheduled = draw.chance(0.25);
  if (draw.chance(0.4) && s.value_dim >= 2) s.rotary = draw.usual() ? 64 : draw.size(1, s.value_dim / 2) * 2;
  if (s.rotary > 0 && s.q_size == 1.0 && !rounds_values(s) && !rounds_by_scale(s)) s.norm_queries = draw.chance(0.4);
  if (s.rotary > 0) s.rotate_back = draw.chance(0.7);
  s.padding = draw.padding();
  CaseAdder<SparseAttnDecodeParams>(list, "sparse_attn_decode", &OpSet::sparse_attn_decode).drawn(draw.name(name_of(s)), [=](Inputs& in) {
    return build(in, s);
  });
}

}  // namespace strata::testkit
