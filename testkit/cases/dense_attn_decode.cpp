#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "testkit/cases/attention_case.h"
#include "ops/factories.h"
#include "testkit/harness/paging.h"
#include "testkit/cases/ragged.h"
#include "testkit/cases/registry.h"
#include "testkit/cases/schedules.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

struct DecodeShape {
  std::vector<RequestShape> requests{};
  int64_t heads = 16;  // of all KV heads
  int32_t kv_heads = 1;
  KvFormat format = KvFormat::bf16;
  int32_t page_size = 64;
  int64_t extra_stride = 0;
  int32_t dim = 576;
  int64_t value_dim = 512;
  bool lse = true;
  bool causal = true;
  bool batch_invariant = false;
  int32_t first_token = 0;  // query_start_loc begins with it, as in a slice of a larger batch
  Padding padding{};
  double q_size = 1.0;
  double key_size = 0.1;
  int64_t bound = 0;       // what max_seq_len says at least: a captured call has that of all its replays
  int64_t poisoned = 0;    // number of last rows of every request that are NaN; queries that see them give NaN
  bool scheduled = false;  // shared out by the lengths (contracts/dense_decode_schedule.h), where the device has that
  std::string suffix{};
};

std::vector<int64_t> slots_before(const Paging& paging, int64_t poisoned) {
  std::vector<int64_t> slots;
  for (size_t b = 0; b < paging.rows.size(); ++b) {
    for (int64_t j = 0; j < paging.rows[b] - poisoned; ++j) slots.push_back(paging.slot(static_cast<int64_t>(b), j));
  }
  return slots;
}

void add_schedule(Inputs& in, const DecodeShape& s, const std::vector<int32_t>& start, const std::vector<int32_t>& lens,
                  DenseAttnDecodeParams& p) {
  const ScheduledDenseCall call{.format = s.format,
                                .row_dim = s.dim,
                                .num_heads = s.heads,
                                .num_requests = std::ssize(lens),
                                .max_query_len = p.max_query_len,
                                .max_seq_len = p.max_seq_len};
  p.schedule = make_schedule(in, ops::make_dense_decode_planners(), call, ops::RequestLengths{start, lens});
}

Built<DenseAttnDecodeParams> build(Inputs& in, const DecodeShape& s, const std::vector<RequestShape>& requests) {
  std::vector<int32_t> start{s.first_token}, lens;
  std::vector<int64_t> rows;
  DenseAttnDecodeParams p;
  p.max_seq_len = s.bound;
  double visible = 0;  // (query, row) pairs
  for (const RequestShape& r : requests) {
    start.push_back(start.back() + static_cast<int32_t>(r.query_len));
    lens.push_back(static_cast<int32_t>(r.seq_len));
    rows.push_back(r.query_len > 0 ? r.seq_len : 0);  // nothing of a request without queries is read
    p.max_query_len = std::max(p.max_query_len, r.query_len);
    p.max_seq_len = std::max(p.max_seq_len, r.seq_len);
    for (int64_t i = 0; i < r.query_len; ++i) {
      visible += static_cast<double>(s.causal ? std::max<int64_t>(r.seq_len - r.query_len + i + 1, 0) : r.seq_len);
    }
  }
  const int64_t tokens = start.back() - s.first_token;
  const Paging paging = make_paging(in.rng(), s.page_size, rows);
  p.q = in.bf16({tokens, s.heads, s.dim}, s.q_size, s.padding);
  p.cache = in.cache({.format = s.format,
                      .row_dim = s.dim * s.kv_heads,
                      .page_size = s.page_size,
                      .num_pages = paging.num_pages,
                      .extra_stride = s.extra_stride,
                      .scale = tensor_scale(s.key_size)},
                     slots_before(paging, s.poisoned), s.key_size);
  p.cache.row_dim = s.dim;  // rows of all KV heads of a slot are next to each other
  p.num_kv_heads = s.kv_heads;
  p.block_table = paging.table(in, {.inner = s.padding.inner});
  p.query_start_loc = in.i32(start);
  p.seq_lens = in.i32(lens);
  if (s.scheduled) add_schedule(in, s, start, lens, p);
  p.causal = s.causal;
  p.softmax_scale = 0.13523377f;
  p.batch_invariant = s.batch_invariant;
  p.out = in.output(DType::bf16, {tokens, s.heads, s.value_dim}, s.padding);
  std::vector<Output> outputs{view_output("out", p.out, attention_out(8e-4, 2.01 / 128, 5e-6, s.key_size, p.out.numel(), in.drawn()))};
  if (s.lse) {
    p.lse = in.output(DType::f32, {tokens, s.heads}, {.inner = s.padding.inner});
    outputs.push_back(view_output("lse", p.lse, attention_lse(s.q_size * s.key_size / 0.1, 8.01 / 65536, in.drawn())));
  }
  for (Output& output : outputs) output.tolerance.any_nan = s.poisoned > 0;
  const double h = static_cast<double>(s.heads), dims = static_cast<double>(s.dim + s.value_dim);
  const double key_rows = static_cast<double>(std::accumulate(rows.begin(), rows.end(), int64_t{0}));
  return {.params = p,
          .outputs = std::move(outputs),
          .bytes = key_rows * static_cast<double>(s.kv_heads * row_bytes(s.format, s.dim)) + static_cast<double>(tokens) * h * 2 * dims,
          .flops = 2 * visible * h * dims};
}

std::string name_of(const DecodeShape& s) {
  std::string name = fmt::format("b{}", s.requests.size());
  for (size_t i = 0; i < std::min<size_t>(s.requests.size(), 6); ++i)
    name += fmt::format("-{}of{}", s.requests[i].query_len, s.requests[i].seq_len);
  name += fmt::format("-H{}-{}-B{}", s.heads, to_string(s.format), s.page_size);
  if (s.kv_heads > 1) name += fmt::format("-K{}", s.kv_heads);
  if (s.dim != 576 || s.value_dim != 512) name += fmt::format("-D{}-Dv{}", s.dim, s.value_dim);
  if (s.extra_stride > 0) name += fmt::format("-stride+{}", s.extra_stride);
  if (!s.lse) name += "-no_lse";
  if (!s.causal) name += "-not_causal";
  if (s.batch_invariant) name += "-batch_invariant";
  if (s.first_token > 0) name += fmt::format("-from{}", s.first_token);
  if (s.padding.inner + s.padding.outer > 0) name += fmt::format("-strided{}", s.padding.inner);
  if (s.q_size != 1.0 || s.key_size != 0.1) name += fmt::format("-q{:g}-k{:g}", s.q_size, s.key_size);
  if (s.bound > 0) name += fmt::format("-bound{}", s.bound);
  if (s.poisoned > 0) name += fmt::format("-poisoned{}", s.poisoned);
  return name + s.suffix + (s.scheduled ? "-scheduled" : "");
}

// seq_len and query_len of a few requests, ragged.
const std::vector<RequestShape> kRagged{{20, 1}, {140, 4}, {0, 0}, {65, 2}, {1, 1}, {64, 1}, {200, 0}};

// More than a block has threads.
const std::vector<RequestShape> kMany = [] {
  std::vector<RequestShape> many;
  for (int64_t i = 0; i < 600; ++i) many.push_back({1 + i * 37 % 130, i % 11 == 3 ? 0 : 1});
  return many;
}();

// Calls that go by a schedule; and what a schedule does not serve, where it is ignored.
template <class Test>
void add_schedules(const Test& test, const std::vector<RequestShape>& two_parts) {
  const std::vector<RequestShape> few{{1200, 2}, {49, 1}, {0, 0}, {700, 3}, {1, 1}, {0, 2}};
  for (const auto format : {KvFormat::bf16, KvFormat::fp8_tensor}) {
    for (const int64_t heads : {1, 16, 70, 128}) {
      for (const int32_t page_size : {48, 64}) {
        test({.requests = few, .heads = heads, .format = format, .page_size = page_size, .scheduled = true});
      }
    }
    // Neighbours that are clusters, whatever they have.
    for (const int64_t heads : {5, 70}) {
      const std::vector<RequestShape> some(two_parts.begin(), two_parts.begin() + (heads > 64 ? 30 : 60));
      test({.requests = some, .heads = heads, .format = format, .poisoned = 2, .scheduled = true, .suffix = "-two_parts"});
    }
    test({.requests = kMany, .heads = 2, .format = format, .scheduled = true});
    test({.requests = {{6000, 1}}, .heads = 128, .format = format, .scheduled = true});
    test({.requests = few, .heads = 20, .format = format, .bound = 100'000, .scheduled = true});
    test({.requests = {{700, 1}, {300, 2}, {5, 1}}, .heads = 20, .format = format, .bound = 20'000, .poisoned = 2, .scheduled = true});
    test({.requests = few, .heads = 16, .format = format, .batch_invariant = true, .scheduled = true});
    test({.requests = {{300, 33}, {90, 40}}, .heads = 16, .format = format, .scheduled = true});
    test({.requests = few, .heads = 16, .format = format, .extra_stride = 1, .scheduled = true});
    test({.requests = few, .heads = 16, .format = format, .first_token = 1000, .padding = {.inner = 5, .outer = 3}, .scheduled = true});
  }
  test({.requests = few, .heads = 16, .format = KvFormat::fp8_ds_mla, .scheduled = true});
  test({.requests = few, .heads = 16, .dim = 96, .value_dim = 64, .scheduled = true});
  test({.requests = {{0, 0}, {0, 0}}, .heads = 4, .scheduled = true, .suffix = "-nothing"});
  test({.requests = {}, .heads = 4, .scheduled = true, .suffix = "-no_requests"});
}

// Calls in which every query sees all rows; and calls with several KV heads.
template <class Test>
void add_not_causal(const Test& test) {
  const std::vector<RequestShape> splits{{1200, 2}, {49, 1}, {0, 0}, {700, 4}, {0, 2}};
  for (const auto format : {KvFormat::bf16, KvFormat::fp8_tensor, KvFormat::fp8_ds_mla}) {
    for (const bool invariant : {false, true}) {
      test({.requests = kRagged, .heads = 3, .format = format, .page_size = 53, .causal = false, .batch_invariant = invariant});
      test({.requests = {{140, 2}, {50, 4}, {0, 2}}, .heads = 16, .format = format, .causal = false, .batch_invariant = invariant});
      test({.requests = splits, .heads = 70, .format = format, .causal = false, .batch_invariant = invariant});
    }
    test({.requests = {{140, 40}, {2500, 3}}, .heads = 3, .format = format, .causal = false});
    test({.requests = splits, .heads = 16, .format = format, .causal = false, .scheduled = true});
    test({.requests = splits, .heads = 128, .format = format, .causal = false, .scheduled = true});
  }
  for (const int64_t queries : {2, 4}) test({.requests = {{70, queries}, {33, queries}, {1, queries}}, .heads = 64, .causal = false});
  // More queries than rows: all of them see these rows.
  test({.requests = {{3, 5}, {0, 2}, {40, 2}, {0, 1}}, .heads = 4, .causal = false});
  test({.requests = kRagged, .heads = 4, .dim = 96, .value_dim = 64, .causal = false});
  test({.requests = kRagged, .heads = 4, .lse = false, .causal = false, .first_token = 1000, .padding = {.inner = 5, .outer = 3}});
}

template <class Test>
void add_kv_heads(const Test& test) {
  const std::vector<RequestShape> splits{{1200, 2}, {49, 1}, {0, 0}, {700, 4}, {0, 2}};
  for (const auto format : {KvFormat::bf16, KvFormat::fp8_tensor}) {
    for (const int32_t kv_heads : {2, 3, 8}) {
      for (const bool causal : {true, false}) {
        test({.requests = kRagged, .heads = kv_heads, .kv_heads = kv_heads, .format = format, .page_size = 53, .causal = causal});
        test({.requests = {{140, 2}, {50, 4}, {0, 2}},
              .heads = 4 * kv_heads,
              .kv_heads = kv_heads,
              .format = format,
              .extra_stride = 576,
              .causal = causal});
        test({.requests = {{300, 1}, {129, 3}},
              .heads = 5 * kv_heads,
              .kv_heads = kv_heads,
              .format = format,
              .causal = causal,
              .batch_invariant = true});
        test({.requests = splits, .heads = 16 * kv_heads, .kv_heads = kv_heads, .format = format, .causal = causal});
      }
    }
    // Up to 128 heads for each KV head, tiles of them in clusters, splits of every KV head in the same workspace.
    test({.requests = {{70, 1}, {33, 2}}, .heads = 256, .kv_heads = 2, .format = format});
    test({.requests = splits, .heads = 140, .kv_heads = 2, .format = format, .page_size = 48, .causal = false});
    test({.requests = splits, .heads = 140, .kv_heads = 2, .format = format, .batch_invariant = true});
    test({.requests = std::vector<RequestShape>(60, {300, 1}), .heads = 16, .kv_heads = 2, .format = format, .suffix = "-two_parts"});
    test({.requests = {{70, 4}, {300, 5}, {20, 1}}, .heads = 10, .kv_heads = 2, .format = format, .poisoned = 2});
    test({.requests = kRagged, .heads = 6, .kv_heads = 3, .format = format, .extra_stride = 1});
    test({.requests = kRagged, .heads = 6, .kv_heads = 2, .format = format, .page_size = 1, .padding = {.inner = 5, .outer = 3}});
    // A schedule is ignored.
    test({.requests = splits, .heads = 32, .kv_heads = 2, .format = format, .scheduled = true});
  }
  test({.requests = kRagged, .heads = 6, .kv_heads = 3, .dim = 96, .value_dim = 64});
  test({.requests = kRagged, .heads = 6, .kv_heads = 2, .dim = 33, .value_dim = 7, .causal = false});
  test({.requests = kRagged, .heads = 6, .kv_heads = 2, .lse = false});
  test({.requests = {}, .heads = 6, .kv_heads = 2, .suffix = "-no_requests"});
}

template <class Test>
void add_shapes(const Test& test) {
  for (const int64_t heads : {1, 3, 8, 16, 63, 64, 126, 128}) test({.requests = {{70, 1}, {33, 2}}, .heads = heads});
  for (const auto format : {KvFormat::bf16, KvFormat::fp8_tensor, KvFormat::fp8_ds_mla}) {
    for (const int32_t page_size : {1, 2, 53, 64, 256}) {
      test({.requests = kRagged, .heads = 3, .format = format, .page_size = page_size, .extra_stride = page_size % 2 == 0 ? 576 : 1});
    }
    test({.requests = {{300, 1}, {129, 3}}, .heads = 16, .format = format});
    test({.requests = {{300, 1}, {129, 3}}, .heads = 16, .format = format, .padding = {.inner = 5, .outer = 3}});
    for (const int64_t heads : {5, 24, 64})
      test({.requests = {{300, 1}, {129, 3}}, .heads = heads, .format = format, .batch_invariant = true});
    test({.requests = {{2500, 1}, {70, 3}, {1, 1}}, .heads = 5, .format = format});
  }
  for (const auto format : {KvFormat::bf16, KvFormat::fp8_tensor}) {
    // Rows in several splits, of which short requests fill only the first; pages that do not end at a tile.
    for (const int32_t page_size : {16, 48, 100}) {
      test({.requests = {{1200, 2}, {49, 1}, {0, 0}, {700, 3}, {1, 1}}, .heads = 70, .format = format, .page_size = page_size});
      test({.requests = {{1200, 2}, {49, 1}, {0, 0}, {700, 3}},
            .heads = 70,
            .format = format,
            .page_size = page_size,
            .batch_invariant = true});
    }
    // Two splits of every token, of which short requests fill one or none.
    for (const int64_t heads : {5, 70}) {
      std::vector<RequestShape> two;
      for (int64_t i = 0; i < (heads > 64 ? 30 : 60); ++i) two.push_back({i % 7 == 0 ? 48 * (i / 7) : 420 - i, i % 6 == 5 ? 0 : 1});
      test({.requests = two, .heads = heads, .format = format});
      test({.requests = two, .heads = heads, .format = format, .padding = {.inner = 5, .outer = 3}});
    }
    // More query tokens than SMs: blocks take several of them, of any length.
    for (const int64_t heads : {2, 66}) {
      std::vector<RequestShape> many;
      for (int64_t i = 0; i < (heads > 64 ? 70 : 140); ++i) many.push_back({i % 3 == 0 ? 40 : 300 - i, i % 5 == 0 ? 0 : 1});
      test({.requests = many, .heads = heads, .format = format});
    }
  }
  // Lengths that differ: of few requests, of more than there are SMs, of more than a block has threads; one that all blocks share.
  for (const auto format : {KvFormat::bf16, KvFormat::fp8_tensor}) {
    std::vector<RequestShape> few(40, {90, 1});
    few[13] = {6000, 1};
    for (const int64_t heads : {4, 72}) test({.requests = few, .heads = heads, .format = format, .suffix = "-one_is_long"});
    few[13] = {3000, 8};
    test({.requests = few, .heads = 24, .format = format, .suffix = "-one_is_long"});
    test({.requests = kMany, .heads = 2, .format = format});
    test({.requests = std::vector<RequestShape>(5000, {3, 1}), .heads = 1, .format = format});
    test({.requests = kRagged, .heads = 20, .format = format, .bound = 100'000});
    test({.requests = {{700, 1}, {300, 2}, {5, 1}}, .heads = 20, .format = format, .bound = 20'000, .poisoned = 2});
  }
  for (const int64_t queries : {1, 2, 3, 4, 5, 8, 33}) test({.requests = {{140, queries}, {50, queries}}, .heads = 8});
  // More queries than rows: the first ones see nothing.
  test({.requests = {{3, 5}, {0, 2}, {40, 2}, {0, 1}}, .heads = 4});
  // What a query does not see must not reach it through those that do, which share its tile.
  for (const auto format : {KvFormat::bf16, KvFormat::fp8_tensor, KvFormat::fp8_ds_mla}) {
    for (const int64_t heads : {1, 5, 16, 64})
      test({.requests = {{70, 4}, {300, 5}, {66, 3}, {3, 5}, {20, 1}}, .heads = heads, .format = format, .poisoned = 2});
    test({.requests = {{140, 40}, {2500, 3}}, .heads = 3, .format = format, .poisoned = 30});
  }
  test({.requests = {{70, 4}, {300, 5}}, .heads = 4, .batch_invariant = true, .poisoned = 2});
  // Tokens enough for two splits each on an H200, and one token whose second split has no rows.
  std::vector<RequestShape> two_parts(60, {300, 1});
  two_parts.push_back({20, 1});
  for (const auto format : {KvFormat::bf16, KvFormat::fp8_tensor}) {
    test({.requests = two_parts, .heads = 8, .format = format, .poisoned = 2, .suffix = "-two_parts"});
  }
  add_schedules(test, two_parts);
  add_not_causal(test);
  add_kv_heads(test);
  test({.requests = {{70, 4}, {300, 5}}, .heads = 4, .dim = 96, .value_dim = 64, .poisoned = 2});
  test({.requests = {{0, 0}, {0, 0}}, .heads = 4, .suffix = "-nothing"});
  test({.requests = {}, .heads = 4, .suffix = "-no_requests"});
  test({.requests = kRagged, .heads = 4, .lse = false});
  test({.requests = kRagged, .heads = 4, .first_token = 1000});
  test({.requests = kRagged, .heads = 4, .dim = 576, .value_dim = 576});
  test({.requests = kRagged, .heads = 4, .dim = 96, .value_dim = 64});
  test({.requests = kRagged, .heads = 4, .dim = 33, .value_dim = 7});
  test({.requests = std::vector<RequestShape>(40, {37, 1}), .heads = 4});
  test({.requests = {{100, 2}}, .q_size = 20.0});
  test({.requests = {{100, 2}}, .q_size = 4.0, .key_size = 1.0});
  test({.requests = {{100, 2}}, .q_size = 0.0});
  test({.requests = {{100, 2}}, .key_size = 0.0});
}

}  // namespace

void add_dense_attn_decode(CaseList& list) {
  CaseAdder<DenseAttnDecodeParams> cases(list, "dense_attn_decode", &OpSet::dense_attn_decode);
  add_shapes([&](const DecodeShape& s) {
    int64_t rows = 0;
    for (const RequestShape& r : s.requests) rows += r.query_len * r.seq_len;
    // CPUs ignore schedules, and have no more kinds of tiles in a long call than in a short one.
    const bool gpu = s.scheduled || s.heads * rows > 50'000;
    const auto builder = [s](Inputs& in) { return build(in, s, s.requests); };
    gpu ? cases.gpu(name_of(s), builder) : cases.test(name_of(s), builder);
  });
  for (const auto format : {KvFormat::bf16, KvFormat::fp8_tensor}) {
    const DecodeShape s{.requests = {{4096, 1}, {1000, 2}}, .heads = 128, .format = format};
    cases.heavy(name_of(s), [s](Inputs& in) { return build(in, s, s.requests); });
  }
  const auto bench = [&](DecodeShape s, int64_t batch, int64_t context, int64_t queries) {
    s.requests.assign(static_cast<size_t>(batch), {context, queries});
    s.suffix = fmt::format("-context{}", context);
    cases.bench(name_of(s), [s, batch](Inputs& in) { return build(in, s, {s.requests.begin(), s.requests.begin() + in.share(batch)}); });
  };
  for (const bool scheduled : {false, true}) {
    for (const int64_t batch : {1, 4, 32}) bench({.heads = 128, .scheduled = scheduled}, batch, 4096, 1);
    for (const int64_t batch : {1, 16}) bench({.heads = 128, .scheduled = scheduled}, batch, 8192, 1);
    for (const int64_t heads : {16, 32, 64}) bench({.heads = heads, .scheduled = scheduled}, 32, 4096, 1);
  }
  bench({.heads = 16}, 4, 4096, 1);
  bench({.heads = 16}, 32, 4096, 2);
  bench({.heads = 128}, 4, 4096, 2);
  // Lengths that differ, and a captured call's bound.
  const auto bench_ragged = [&](DecodeShape s, int64_t batch, int64_t context) {
    for (int64_t i = 0; i < batch; ++i) s.requests.push_back({ragged_length(context, i), 1});
    s.suffix = fmt::format("-ragged{}", context);
    cases.bench(name_of(s), [s, batch](Inputs& in) { return build(in, s, {s.requests.begin(), s.requests.begin() + in.share(batch)}); });
  };
  for (const int64_t heads : {16, 128}) {
    for (const bool scheduled : {false, true}) {
      for (const int64_t batch : {8, 32, 64}) bench_ragged({.heads = heads, .scheduled = scheduled}, batch, 4096);
      bench({.heads = heads, .bound = 131072, .scheduled = scheduled}, 32, 4096, 1);
    }
    bench({.heads = heads}, 64, 4096, 1);
  }
  for (const int64_t queries : {2, 4}) bench({.heads = 128}, 32, 4096, queries);
  bench({.heads = 16}, 32, 4096, 4);
  for (const int64_t heads : {16, 128}) {
    for (const int64_t batch : {1, 4, 32}) bench({.heads = heads, .format = KvFormat::fp8_tensor}, batch, 4096, 1);
  }
  bench({.heads = 128, .format = KvFormat::fp8_ds_mla}, 4, 4096, 1);
}

void add_random_dense_attn_decode(CaseList& list, Draw& draw) {
  DecodeShape s;
  s.heads = draw.heads();
  if (!draw.usual() || draw.chance(0.2)) s.format = draw.of({KvFormat::bf16, KvFormat::fp8_tensor, KvFormat::fp8_ds_mla});
  s.page_size = draw.page_size();
  s.extra_stride = draw.page_gap();
  if (s.format != KvFormat::fp8_ds_mla && !draw.usual() && draw.chance(0.5)) s.dim = static_cast<int32_t>(draw.size(1, 576));
  if (s.dim != 576 || (!draw.usual() && draw.chance(0.4))) s.value_dim = draw.size(1, s.dim);
  s.requests = draw.requests(
      {.tokens = 300, .positions = 30'000, .visible = 2 * draw.work() / static_cast<double>(s.heads * (s.dim + s.value_dim))});
  // More queries than rows: the first ones see nothing.
  for (RequestShape& r : s.requests) {
    if (r.query_len > 0 && draw.chance(0.05)) r.query_len += draw.in(1, 4);
  }
  s.lse = draw.chance(0.7);
  s.batch_invariant = draw.chance(0.3);
  if (draw.chance(0.2)) s.first_token = static_cast<int32_t>(draw.size(1, 100'000));
  s.padding = draw.padding();
  if (draw.chance(0.2)) s.bound = draw.size(1, 200'000);
  if (draw.chance(0.1)) s.poisoned = draw.size(1, 40);
  s.scheduled = draw.chance(0.3);
  s.causal = !draw.chance(0.2);
  if (s.format != KvFormat::fp8_ds_mla && draw.chance(0.2)) {
    s.kv_heads = draw.of({2, 3, 8});
    s.heads = std::max<int64_t>(s.heads / s.kv_heads, 1) * s.kv_heads;
  }
  CaseAdder<DenseAttnDecodeParams>(list, "dense_attn_decode", &OpSet::dense_attn_decode).drawn(draw.name(name_of(s)), [=](Inputs& in) {
    return build(in, s, s.requests);
  });
}

}  // namespace strata::testkit
