#include <fmt/format.h>

#include <limits>

#include "testkit/cases/attention_case.h"
#include "testkit/harness/paging.h"
#include "testkit/cases/sparse_attn_bench.h"
#include "testkit/cases/registry.h"

namespace strata::testkit {
namespace {

struct PrefillShape {
  int64_t tokens = 3;
  int64_t heads = 16;
  int64_t rows = 200;
  int64_t topk = 64;
  int32_t dim = 512;
  int64_t value_dim = 512;
  Lengths lengths = Lengths::random;
  double skipped = 0.1;
  Sinks sinks = Sinks::mixed;
  double q_size = 0.1;
  double key_size = 0.1;
  bool lse = true;
  bool max_logits = true;
  bool batch_invariant = false;
  Padding padding{};
};

Built<SparseAttnPrefillParams> build(Inputs& in, const PrefillShape& s) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max(), kMin = std::numeric_limits<int32_t>::min();
  // The rows of a workspace that nobody gathered hold anything, NaN included.
  const std::vector<int64_t> order = distinct_slots(in.rng(), s.rows, s.rows);
  const std::span<const int64_t> valid(order.data(), order.size() / 2),
      stale(order.data() + order.size() / 2, order.size() - order.size() / 2);
  std::vector<float> kv(static_cast<size_t>(s.rows * s.dim), std::numeric_limits<float>::quiet_NaN());
  for (int64_t row : valid) in.rng().normal(kv.data() + row * s.dim, s.dim, static_cast<float>(s.key_size));
  const auto num_rows = static_cast<int32_t>(s.rows);
  const int32_t holes[] = {-1, num_rows, num_rows + 1, kMin, kMax, -2};
  const MadeIndices made =
      make_indices(in.rng(), {.rows = s.tokens, .width = s.topk, .lengths = s.lengths, .skipped = s.skipped}, valid, stale, holes);
  SparseAttnPrefillParams p;
  p.q = in.bf16({s.tokens, s.heads, s.dim}, s.q_size, s.padding);
  p.kv = in.bf16_values({s.rows, s.dim}, kv, {.inner = s.padding.inner});
  p.indices = in.values(DType::i32, {s.tokens, s.topk}, made.indices, {.inner = s.padding.inner});
  if (s.lengths != Lengths::none) p.topk_length = in.i32(made.lengths);
  p.attn_sink = make_sinks(in, s.sinks, s.heads);
  p.softmax_scale = 0.5f;
  p.batch_invariant = s.batch_invariant;
  p.out = in.output(DType::bf16, {s.tokens, s.heads, s.value_dim}, s.padding);
  std::vector<Output> outputs{view_output("out", p.out, attention_out(8e-4, 3.01 / 128, 7e-6, s.key_size, p.out.numel(), in.drawn()))};
  const Tolerance logits = attention_lse(s.q_size * s.key_size / 0.01, 2.01 / 65536, in.drawn());
  if (s.lse) {
    p.lse = in.output(DType::f32, {s.tokens, s.heads}, {.inner = s.padding.inner});
    outputs.push_back(view_output("lse", p.lse, logits));
  }
  if (s.max_logits) {
    p.max_logits = in.output(DType::f32, {s.tokens, s.heads}, {.inner = s.padding.outer});
    outputs.push_back(view_output("max_logits", p.max_logits, logits));
  }
  return {.params = p, .outputs = std::move(outputs)};
}

std::string name_of(const PrefillShape& s) {
  const char* lengths[] = {"-no_length", "", "-full", "-empty"};
  std::string name = fmt::format("T{}-H{}-D{}-k{}of{}{}-sink_{}", s.tokens, s.heads, s.dim, s.topk, s.rows,
                                 lengths[static_cast<int>(s.lengths)], name_of(s.sinks));
  if (s.value_dim != s.dim) name += fmt::format("-Dv{}", s.value_dim);
  if (s.skipped != 0.1) name += fmt::format("-skipped{:g}", s.skipped);
  if (s.q_size != 0.1 || s.key_size != 0.1) name += fmt::format("-q{:g}-k{:g}", s.q_size, s.key_size);
  if (!s.lse) name += "-no_lse";
  if (!s.max_logits) name += "-no_max";
  if (s.batch_invariant) name += "-batch_invariant";
  if (s.padding.inner + s.padding.outer > 0) name += "-strided";
  return name;
}

}  // namespace

void add_sparse_attn_prefill(CaseList& list) {
  CaseAdder<SparseAttnPrefillParams> cases(list, "sparse_attn_prefill", &OpSet::sparse_attn_prefill);
  const auto test = [&](const PrefillShape& s) {
    // CPUs have no more kinds of tiles in a long call than in a short one.
    const bool gpu = s.tokens * s.heads * s.topk > 50'000;
    const auto builder = [s](Inputs& in) { return build(in, s); };
    gpu ? cases.gpu(name_of(s), builder) : cases.test(name_of(s), builder);
  };
  for (const int64_t heads : {1, 3, 8, 16, 24, 32, 63, 64, 96, 126, 128}) test({.tokens = 3, .heads = heads});
  for (const int64_t tokens : {0, 1, 17, 64}) test({.tokens = tokens, .heads = 8});
  test({.tokens = 300, .heads = 3, .topk = 20});
  for (const int64_t topk : {1, 2, 7, 15, 16, 17, 63, 65, 128, 640}) test({.topk = topk});
  for (const int32_t dim : {512, 576}) {
    for (const int64_t value_dim : {100, 448, 512}) test({.heads = 5, .dim = dim, .value_dim = value_dim});
    // The cosine of a few values would be that of one whose terms cancel.
    test({.tokens = 64, .heads = 64, .dim = dim, .value_dim = 1});
    for (const auto sinks : {Sinks::none, Sinks::finite, Sinks::plus_infinity, Sinks::minus_infinity}) {
      test({.heads = 9, .dim = dim, .sinks = sinks});
      test({.heads = 9, .dim = dim, .skipped = 1.0, .sinks = sinks});
      test({.heads = 9, .dim = dim, .lengths = Lengths::zero, .sinks = sinks});
    }
    test({.heads = 9, .dim = dim, .lengths = Lengths::none});
    test({.heads = 9, .dim = dim, .lengths = Lengths::full, .skipped = 0.0});
    test({.tokens = 5, .heads = 5, .dim = dim, .padding = {.inner = 3, .outer = 7}});
    test({.tokens = 5, .heads = 16, .dim = dim, .padding = {.inner = 64, .outer = 512}});
  }
  test({.heads = 4, .dim = 576, .value_dim = 576});
  // Tokens enough for every SM of a large GPU.
  for (const int32_t dim : {512, 576}) {
    test({.tokens = 140, .heads = 20, .topk = 37, .dim = dim});
    test({.tokens = 140, .heads = 33, .topk = 20, .dim = dim});
  }
  // More items than a large GPU has SMs, so that blocks go on from one token to the next: every number of tiles of a token, whole and
  // partial ones, none too.
  for (const int32_t dim : {512, 576}) {
    for (const int64_t topk : {48, 64, 65, 200, 300}) test({.tokens = 400, .heads = 1, .rows = 700, .topk = topk, .dim = dim});
    test({.tokens = 300, .heads = 2, .rows = 700, .topk = 192, .dim = dim, .lengths = Lengths::full, .skipped = 0.0});
    test({.tokens = 300, .heads = 2, .rows = 700, .topk = 200, .dim = dim, .q_size = 3.0});
    test({.tokens = 140, .heads = 66, .rows = 100, .topk = 10, .dim = dim, .padding = {.inner = 3, .outer = 7}});
    // Both tiles of a token's heads by one block.
    test({.tokens = 140, .heads = 66, .rows = 300, .topk = 65, .dim = dim});
    // Many rounds: most tokens go to whichever block is done first.
    test({.tokens = 1300, .heads = 1, .rows = 700, .topk = 70, .dim = dim});
    test({.tokens = 700, .heads = 66, .rows = 100, .topk = 10, .dim = dim});
    // Tokens that remain after whole waves of CTAs, and calls of few tokens: rows in several splits, of which short tokens fill the first
    // ones only.
    for (const auto lengths : {Lengths::none, Lengths::zero, Lengths::random, Lengths::full}) {
      for (const int64_t tokens : {2, 140}) test({.tokens = tokens, .heads = 2, .rows = 1500, .topk = 700, .dim = dim, .lengths = lengths});
    }
    for (const auto sinks : {Sinks::none, Sinks::plus_infinity, Sinks::minus_infinity}) {
      test({.tokens = 20, .heads = 5, .rows = 1500, .topk = 700, .dim = dim, .sinks = sinks, .q_size = 3.0});
      test({.tokens = 20, .heads = 5, .rows = 1500, .topk = 700, .dim = dim, .skipped = 1.0, .sinks = sinks});
    }
    test({.tokens = 20, .heads = 66, .rows = 1500, .topk = 650, .dim = dim, .skipped = 0.9});
    test({.tokens = 70, .heads = 66, .rows = 1500, .topk = 700, .dim = dim, .padding = {.inner = 3, .outer = 7}});
    test({.tokens = 20, .heads = 3, .rows = 1500, .topk = 700, .dim = dim, .lse = false, .max_logits = false});
    test({.tokens = 20, .heads = 3, .rows = 1500, .topk = 700, .dim = dim, .batch_invariant = true});
  }
  // Rows that a GPU keeps in L2.
  for (const int64_t heads : {3, 66}) test({.tokens = 300, .heads = heads, .rows = 8200, .topk = 100});
  test({.tokens = 300, .heads = 3, .rows = 8200, .topk = 100, .padding = {.inner = 8, .outer = 16}});
  test({.rows = 1, .topk = 3});
  test({.rows = 0, .topk = 3});
  test({.topk = 0});
  test({.lse = false});
  test({.max_logits = false});
  test({.lse = false, .max_logits = false});
  test({.q_size = 3.0});
  test({.q_size = 1.0, .key_size = 1.0});
  test({.q_size = 0.0});
  for (const PrefillShape& s : {PrefillShape{.tokens = 17, .heads = 64, .rows = 1024, .topk = 640},
                                PrefillShape{.tokens = 64, .heads = 16, .rows = 700, .topk = 640},
                                PrefillShape{.tokens = 3, .heads = 64, .rows = 1500, .topk = 1152},
                                PrefillShape{.tokens = 140, .heads = 65, .rows = 1000, .topk = 256},
                                PrefillShape{.tokens = 140, .heads = 65, .rows = 1000, .topk = 128, .lengths = Lengths::full},
                                PrefillShape{.tokens = 140, .heads = 65, .rows = 1000, .topk = 256, .dim = 576},
                                PrefillShape{.tokens = 2, .heads = 16, .rows = 9000, .topk = 8320}}) {
    cases.heavy(name_of(s), [s](Inputs& in) { return build(in, s); });
  }
  add_prefill_bench(cases);
}

void add_random_sparse_attn_prefill(CaseList& list, Draw& draw) {
  PrefillShape s;
  s.dim = draw.of({512, 576});
  s.value_dim = draw.usual() || draw.chance(0.3) ? 512 : draw.size(1, s.dim);
  s.heads = draw.heads();
  s.topk = draw.size(0, 2000);
  s.rows = draw.size(0, draw.chance(0.1) ? 20'000 : 2000);
  const double of_token = static_cast<double>(s.heads * (s.topk + 8) * (s.dim + s.value_dim));
  const int64_t most = std::min(static_cast<int64_t>(2 * draw.work() / of_token), 16'000'000 / (s.heads * s.dim));
  s.tokens = draw.tokens(std::clamp<int64_t>(most, 1, 1500));
  s.lengths = random_lengths(draw);
  s.skipped = draw.of({0.1, 0.1, 0.0, 0.5, 0.9, 1.0});
  s.sinks = random_sinks(draw);
  if (draw.chance(0.15)) {
    const auto [q_size, key_size] = draw.of({std::pair{3.0, 0.1}, {1.0, 1.0}, {0.0, 0.1}, {0.1, 0.0}});
    s.q_size = q_size, s.key_size = key_size;
  }
  s.lse = draw.chance(0.6);
  s.max_logits = draw.chance(0.5);
  s.batch_invariant = draw.chance(0.3);
  s.padding = draw.padding();
  CaseAdder<SparseAttnPrefillParams>(list, "sparse_attn_prefill", &OpSet::sparse_attn_prefill)
      .drawn(draw.name(name_of(s)), [=](Inputs& in) { return build(in, s); });
}

}  // namespace strata::testkit
