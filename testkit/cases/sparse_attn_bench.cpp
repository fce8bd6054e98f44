#include "testkit/cases/sparse_attn_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "testkit/cases/attention_case.h"
#include "testkit/harness/paging.h"
#include "ops/factories.h"
#include "testkit/cases/ragged.h"
#include "testkit/cases/schedules.h"

namespace strata::testkit {
namespace {

constexpr int64_t kDim = 512;
constexpr int64_t kWindow = 128;
constexpr float kScale = 0.0078125f;  // of fp8_tensor

// Each token attends to the last kWindow positions and to `topk` entries of its request's compressed rows.
struct BenchShape {
  int64_t tokens = 1;  // of decode: batch entries
  int64_t heads = 64;
  int64_t topk = 512;
  bool one_request = false;  // prefill: neighbouring tokens of one request, which share rows; else every token has its own
  KvFormat format = KvFormat::fp8_ds_mla_v4;
  // How many of the `topk` entries exist, of which topk is an upper bound. 0: all. Else each token has this many, or, where lengths differ,
  // from an eighth to nearly twice as many. Where the first token is long, it has all.
  int64_t usual = 0;
  bool differ = false, one_is_long = false;
  bool scheduled = false;  // shared out by the lengths (contracts/sparse_decode_schedule.h), where the device has that
  int64_t queries = 1;     // query tokens of a batch entry, each with rows of its own

  int64_t chosen_by(int64_t token) const {
    if (usual == 0 || (one_is_long && token == 0)) return topk;
    return std::min(differ ? ragged_length(usual, token) : usual, topk);
  }
};

// All rows that the tokens of `batch` batch entries attend to.
double attended_rows(int64_t batch, const BenchShape& s) {
  int64_t rows = batch * kWindow;
  for (int64_t b = 0; b < batch; ++b) rows += s.chosen_by(b);
  return static_cast<double>(rows * s.queries);
}
double attention_flops(int64_t batch, const BenchShape& s) { return 4.0 * attended_rows(batch, s) * static_cast<double>(s.heads) * kDim; }

// `count` different numbers below n, ascending, as the indexer gives them.
std::vector<int32_t> ascending_choice(Rng& rng, int64_t count, int64_t n) {
  std::vector<int32_t> chosen = rng.permutation(n);
  chosen.resize(static_cast<size_t>(count));
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

void add_schedule(Inputs& in, const BenchShape& s, SparseAttnDecodeParams& p) {
  const int64_t tokens = p.q.shape[0] * s.queries;
  const ScheduledCall call{.format = s.format, .num_tokens = tokens, .num_heads = s.heads, .width = kWindow + s.topk};
  std::vector<AttendedRows> attended;
  for (int64_t t = 0; t < tokens; ++t) attended.push_back({kWindow, static_cast<int32_t>(kWindow + s.chosen_by(t / s.queries))});
  p.schedule = make_schedule(in, ops::make_sparse_decode_planners(), call, ops::TokenLengths{attended, ops::ScheduleWhen::always});
}

Built<SparseAttnDecodeParams> build_paged(Inputs& in, const BenchShape& s) {
  constexpr int32_t kPageSize = 64;
  constexpr int64_t kPad = 64;  // 64 * 584 + 64 = 37440, the padded page
  const int64_t batch = in.share(s.tokens), tokens = batch * s.queries, requests = s.one_request ? 1 : tokens;
  const int64_t window_rows = s.one_request ? tokens + kWindow - 1 : kWindow, compressed_rows = 2 * s.topk;
  const Paging window = make_paging(in.rng(), kPageSize, std::vector<int64_t>(static_cast<size_t>(requests), window_rows));
  const Paging compressed = make_paging(in.rng(), kPageSize, std::vector<int64_t>(static_cast<size_t>(requests), compressed_rows));
  std::vector<int32_t> indices, extra, chosen;
  for (int64_t b = 0; b < batch; ++b) chosen.push_back(static_cast<int32_t>(s.chosen_by(b)));
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t request = s.one_request ? 0 : t, first = s.one_request ? t : 0;
    for (int64_t i = 0; i < kWindow; ++i) indices.push_back(static_cast<int32_t>(window.slot(request, first + i)));
    for (int32_t entry : ascending_choice(in.rng(), chosen[static_cast<size_t>(t / s.queries)], compressed_rows)) {
      extra.push_back(static_cast<int32_t>(compressed.slot(request, entry)));
    }
    extra.resize(static_cast<size_t>((t + 1) * s.topk), -1);
  }
  SparseAttnDecodeParams p;
  p.q = in.bf16({batch, s.queries, s.heads, kDim});
  p.cache = in.cache({.format = s.format, .page_size = kPageSize, .num_pages = window.num_pages, .extra_stride = kPad, .scale = kScale},
                     window.all_slots());
  p.indices = in.values(DType::i32, {batch, s.queries, kWindow}, indices);
  p.topk_length = in.i32(std::vector<int32_t>(static_cast<size_t>(batch), kWindow));
  if (s.topk > 0) {
    p.extra_cache =
        in.cache({.format = s.format, .page_size = kPageSize, .num_pages = compressed.num_pages, .extra_stride = kPad, .scale = kScale},
                 compressed.all_slots());
    p.extra_indices = in.values(DType::i32, {batch, s.queries, s.topk}, extra);
    p.extra_topk_length = in.i32(chosen);
  }
  p.attn_sink = make_sinks(in, Sinks::finite, s.heads);
  p.softmax_scale = 0.04419417382415922f;
  if (s.scheduled) add_schedule(in, s, p);
  p.out = in.output(DType::bf16, {batch, s.queries, s.heads, kDim});
  p.lse = in.output(DType::f32, {batch, s.heads, s.queries});
  const double t = static_cast<double>(tokens), rows = attended_rows(batch, s);
  const double key_rows = s.one_request ? static_cast<double>(window_rows + (s.topk > 0 ? compressed_rows : 0)) : rows;
  return {.params = p,
          .outputs = {},
          .bytes = key_rows * static_cast<double>(row_bytes(s.format, kDim)) + 4 * rows + t * 4.0 * static_cast<double>(s.heads) * kDim,
          .flops = attention_flops(batch, s)};
}

// V3.2: each token attends to 2048 of `rows` positions of its own request's latent cache, or of the one request's; no second scope, no
// sinks.
struct MlaShape {
  int64_t batch = 1;
  int64_t heads = 128;
  KvFormat format = KvFormat::fp8_ds_mla;
  int64_t rows = 4096;
  bool one_request = false;
  int64_t queries = 1;
};
Built<SparseAttnDecodeParams> build_mla(Inputs& in, const MlaShape& s) {
  constexpr int64_t kTopk = 2048, kRow = 576, kLatent = 512;
  constexpr int32_t kPageSize = 64;
  const int64_t batch = in.share(s.batch), tokens = batch * s.queries;
  const Paging paging = make_paging(in.rng(), kPageSize, std::vector<int64_t>(static_cast<size_t>(s.one_request ? 1 : tokens), s.rows));
  std::vector<int32_t> indices;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int32_t position : ascending_choice(in.rng(), kTopk, s.rows))
      indices.push_back(static_cast<int32_t>(paging.slot(s.one_request ? 0 : t, position)));
  }
  SparseAttnDecodeParams p;
  p.q = in.bf16({batch, s.queries, s.heads, kRow});
  p.cache = in.cache({.format = s.format, .row_dim = kRow, .page_size = kPageSize, .num_pages = paging.num_pages, .scale = kScale},
                     paging.all_slots());
  p.indices = in.values(DType::i32, {batch, s.queries, kTopk}, indices);
  p.topk_length = in.i32(std::vector<int32_t>(static_cast<size_t>(batch), kTopk));
  p.softmax_scale = 0.13523377f;
  p.out = in.output(DType::bf16, {batch, s.queries, s.heads, kLatent});
  const double t = static_cast<double>(tokens), h = static_cast<double>(s.heads), dims = static_cast<double>(kRow + kLatent);
  return {.params = p,
          .outputs = {},
          .bytes = static_cast<double>(s.one_request ? s.rows : tokens * kTopk) * static_cast<double>(row_bytes(s.format, kRow)) +
                   t * (4 * static_cast<double>(kTopk) + 2 * h * dims),
          .flops = 2 * t * h * static_cast<double>(kTopk) * dims};
}

Built<SparseAttnPrefillParams> build_gathered(Inputs& in, const BenchShape& s) {
  const int64_t tokens = in.share(s.tokens), compressed_rows = 2 * s.topk, rows = compressed_rows + tokens + kWindow - 1;
  std::vector<int32_t> indices;
  for (int64_t t = 0; t < tokens; ++t) {
    const std::vector<int32_t> chosen = ascending_choice(in.rng(), s.topk, compressed_rows);
    indices.insert(indices.end(), chosen.begin(), chosen.end());
    for (int64_t i = 0; i < kWindow; ++i) indices.push_back(static_cast<int32_t>(compressed_rows + t + i));
  }
  SparseAttnPrefillParams p;
  p.q = in.bf16({tokens, s.heads, kDim});
  p.kv = in.bf16({rows, kDim});
  p.indices = in.values(DType::i32, {tokens, kWindow + s.topk}, indices);
  p.topk_length = in.i32(std::vector<int32_t>(static_cast<size_t>(tokens), static_cast<int32_t>(kWindow + s.topk)));
  p.attn_sink = make_sinks(in, Sinks::finite, s.heads);
  p.softmax_scale = 0.04419417382415922f;
  p.out = in.output(DType::bf16, {tokens, s.heads, kDim});
  p.lse = in.output(DType::f32, {tokens, s.heads});
  const double t = static_cast<double>(tokens);
  return {.params = p,
          .outputs = {},
          .bytes = 2.0 * static_cast<double>(rows) * kDim +
                   t * (4.0 * static_cast<double>(kWindow + s.topk) + 4.0 * static_cast<double>(s.heads) * kDim),
          .flops = attention_flops(tokens, s)};
}

// Each token attends to `attended` different rows all over `rows`, as a selection among a long context does.
Built<SparseAttnPrefillParams> build_selected(Inputs& in, int64_t all_tokens, int64_t heads, int64_t attended, int64_t rows, int64_t dim) {
  const int64_t tokens = in.share(all_tokens);
  std::vector<int32_t> indices(static_cast<size_t>(tokens * attended));
  for (int64_t t = 0; t < tokens; ++t) {
    // rows is a power of two: an odd step meets every row.
    const int64_t first = in.rng().in(0, rows), step = 2 * in.rng().in(0, rows / 2) + 1;
    for (int64_t i = 0; i < attended; ++i) indices[static_cast<size_t>(t * attended + i)] = static_cast<int32_t>((first + i * step) % rows);
  }
  SparseAttnPrefillParams p;
  p.q = in.bf16({tokens, heads, dim});
  p.kv = in.bf16({rows, dim});
  p.indices = in.values(DType::i32, {tokens, attended}, indices);
  p.attn_sink = make_sinks(in, Sinks::finite, heads);
  p.softmax_scale = 0.04419417382415922f;
  p.out = in.output(DType::bf16, {tokens, heads, kDim});
  p.lse = in.output(DType::f32, {tokens, heads});
  const double t = static_cast<double>(tokens), h = static_cast<double>(heads), dims = static_cast<double>(dim + kDim);
  return {.params = p,
          .outputs = {},
          .bytes = 2.0 * static_cast<double>(rows * dim) + t * (4.0 * static_cast<double>(attended) + 2.0 * h * dims),
          .flops = 2.0 * t * h * static_cast<double>(attended) * dims};
}

}  // namespace

void add_decode_bench(CaseAdder<SparseAttnDecodeParams>& cases) {
  const auto bench = [&](const std::string& name, const BenchShape& s) {
    cases.bench(name, [s](Inputs& in) { return build_paged(in, s); });
  };
  // The rows of docs/performance.md's table: V4-Flash, V4-Pro, a window alone, and ranks of two, four and eight.
  struct Row {
    int64_t heads, topk;
    std::vector<int64_t> batches;
    int64_t queries = 1;
  };
  for (const Row& row : {Row{64, 512, {1, 8, 16, 32, 64, 128, 256}}, Row{64, 512, {64, 128, 256}, 2}, Row{64, 1024, {128}},
                         Row{128, 1024, {1, 16, 32, 64, 128, 256}}, Row{128, 1024, {64, 128, 256}, 2}, Row{64, 0, {1, 16, 128}},
                         Row{128, 0, {1, 128}}, Row{32, 512, {128}}, Row{32, 1024, {128}}, Row{16, 512, {128}}, Row{16, 1024, {1, 16, 128}},
                         Row{8, 512, {128}}, Row{8, 1024, {128}}}) {
    for (const int64_t batch : row.batches) {
      bench(fmt::format("b{}{}-H{}-rows128{}", batch, row.queries > 1 ? fmt::format("-s{}", row.queries) : "", row.heads,
                        row.topk > 0 ? fmt::format("+{}", row.topk) : ""),
            {.tokens = batch, .heads = row.heads, .topk = row.topk, .queries = row.queries});
    }
  }
  for (const auto format : {KvFormat::bf16, KvFormat::fp8_tensor}) {
    for (const int64_t batch : {1, 32, 128}) {
      for (const int64_t heads : {16, 64}) {
        bench(fmt::format("b{}-H{}-rows128+512-{}", batch, heads, to_string(format)), {batch, heads, 512, false, format});
      }
    }
  }
  // 128:1 layers: every compressed row, 8192 at a million positions, which is a captured step's bound.
  for (const int64_t batch : {1, 32}) {
    for (const int64_t heads : {16, 64, 128}) {
      const std::string shape = fmt::format("b{}-H{}-rows128+8192", batch, heads);
      const auto both = [&](const std::string& name, BenchShape s) {
        bench(name, s);
        s.scheduled = true;
        bench(name + "-scheduled", s);
      };
      both(shape, {batch, heads, 8192});
      both(shape + "-bound-256", {.tokens = batch, .heads = heads, .topk = 8192, .usual = 256});
      if (batch == 1) {
        bench(fmt::format("b{}-H{}-rows128+256", batch, heads), {batch, heads, 256});
        continue;
      }
      both(fmt::format("b{}-H{}-rows128+256", batch, heads), {batch, heads, 256});
      both(shape + "-bound-ragged256", {.tokens = batch, .heads = heads, .topk = 8192, .usual = 256, .differ = true});
      both(shape + "-one_is_long-256", {.tokens = batch, .heads = heads, .topk = 8192, .usual = 256, .one_is_long = true});
    }
  }
  for (const int64_t tokens : {128, 512, 2048, 4096}) {
    bench(fmt::format("prefill{}-H64-rows128+512", tokens), {tokens, 64, 512, true});
    bench(fmt::format("prefill{}-H128-rows128+1024", tokens), {tokens, 128, 1024, true});
  }
  for (const int64_t batch : {1, 4, 32, 128}) {
    for (const int64_t heads : {16, 128}) {
      for (const auto format : {KvFormat::bf16, KvFormat::fp8_ds_mla, KvFormat::fp8_tensor}) {
        cases.bench(fmt::format("b{}-H{}-D576-rows2048-{}", batch, heads, to_string(format)), [=](Inputs& in) {
          return build_mla(in, {batch, heads, format});
        });
      }
    }
  }
  for (const int64_t batch : {2, 64, 128}) {
    cases.bench(fmt::format("b{}-s2-H128-D576-rows2048-fp8_ds_mla", batch),
                [=](Inputs& in) { return build_mla(in, {.batch = batch, .queries = 2}); });
  }
  for (const int64_t heads : {16, 32, 64, 128}) {
    for (const auto format : {KvFormat::bf16, KvFormat::fp8_ds_mla, KvFormat::fp8_tensor}) {
      cases.bench(fmt::format("prefill512-H{}-D576-rows2048of8192-{}", heads, to_string(format)), [=](Inputs& in) {
        return build_mla(in, {512, heads, format, 8192, true});
      });
    }
  }
}

void add_prefill_bench(CaseAdder<SparseAttnPrefillParams>& cases) {
  for (const int64_t tokens : {128, 512, 2048, 4096}) {
    for (const auto& [heads, topk] : {std::pair<int64_t, int64_t>{64, 512}, {128, 1024}}) {
      const BenchShape s{tokens, heads, topk, true};
      cases.bench(fmt::format("T{}-H{}-rows128+{}", tokens, heads, topk), [s](Inputs& in) { return build_gathered(in, s); });
    }
  }
  constexpr int64_t kTokens = 4096, kRows = 16384;
  for (const int64_t heads : {64, 128}) {
    for (const int64_t attended : {128, 640, 1152, 2048}) {
      cases.bench(fmt::format("T{}-H{}-rows{}of{}", kTokens, heads, attended, kRows),
                  [=](Inputs& in) { return build_selected(in, kTokens, heads, attended, kRows, kDim); });
    }
  }
  for (const int64_t heads : {8, 16, 32}) {  // ranks of two, four and eight
    cases.bench(fmt::format("T{}-H{}-rows640of{}", kTokens, heads, kRows),
                [=](Inputs& in) { return build_selected(in, kTokens, heads, 640, kRows, kDim); });
  }
  for (const int64_t heads : {16, 32, 64, 128}) {  // compared with sparse_attn_decode's prefill512
    cases.bench(fmt::format("T512-H{}-D576-rows2048of8192", heads),
                [=](Inputs& in) { return build_selected(in, 512, heads, 2048, 8192, 576); });
  }
  cases.bench("T4096-H128-D576-rows2048of32768", [](Inputs& in) { return build_selected(in, 4096, 128, 2048, 32768, 576); });
}

}  // namespace strata::testkit
