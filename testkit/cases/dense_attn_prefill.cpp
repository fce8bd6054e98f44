#include <fmt/format.h>

#include "testkit/cases/attention_case.h"
#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

struct RequestLengths {
  int64_t queries = 0;
  int64_t keys = 0;
};

struct PrefillShape {
  std::vector<RequestLengths> requests{};
  int64_t heads = 4;
  bool causal = true;
  bool start_locs = true;  // false: one request, no start locations
  int64_t nope = 128;
  int64_t rotary = 64;
  int64_t value = 128;
  DType out = DType::bf16;
  bool lse = true;
  int32_t first = 0;  // start locations begin with it
  Padding padding{};
  int64_t out_gap = 0;  // elements more between heads of the output
  double q_size = 1.0;
  double key_size = 1.0;
  int64_t poisoned = 0;  // number of last values of every request that are NaN
  std::string suffix{};
};

// What rounding to bf16 moves an output by at most: 2^-9 of every probability, and 2^-9 of the result, which is no more than the mean of
// the values' magnitudes. That mean is the op's result for those. For a call whose memory is on the host.
HostArray rounding_room(DenseAttnPrefillParams p) {
  const auto host = open_device({});
  const Tensor magnitudes(host, DType::bf16, {p.v.shape[0], p.v.shape[1], p.v.shape[2]});
  for (int64_t t = 0; t < p.v.shape[0]; ++t) {
    for (int64_t h = 0; h < p.v.shape[1]; ++h) {
      const Bf16* from = p.v.row<Bf16>(t, h);
      Bf16* to = magnitudes.view().row<Bf16>(t, h);
      for (int64_t i = 0; i < p.v.shape[2]; ++i) to[i] = {static_cast<uint16_t>(from[i].bits & 0x7FFF)};
    }
  }
  HostArray room{DType::f32, {p.out.shape[0], p.out.shape[1], p.out.shape[2]}, {}};
  room.data.resize(static_cast<size_t>(room.numel()) * sizeof(float));
  p.v = magnitudes.view();
  p.out = TensorView::contiguous(room.data.data(), DType::f32, {}, {p.out.shape[0], p.out.shape[1], p.out.shape[2]});
  p.lse = {};
  const OpSet ops = default_ops();
  find_implementation(ops.dense_attn_prefill, "reference").run(p, ExecutionContext{*host});
  for (int64_t i = 0; i < room.numel(); ++i) p.out.ptr<float>()[i] *= 0x1p-8f;
  return room;
}

Built<DenseAttnPrefillParams> build(Inputs& in, const PrefillShape& s, const std::vector<RequestLengths>& requests) {
  std::vector<int32_t> queries{s.first}, keys{s.first / 2};
  DenseAttnPrefillParams p;
  double visible = 0;  // (query, key) pairs
  for (const RequestLengths& r : requests) {
    queries.push_back(queries.back() + static_cast<int32_t>(r.queries));
    keys.push_back(keys.back() + static_cast<int32_t>(r.keys));
    p.max_query_len = std::max(p.max_query_len, r.queries);
    p.max_key_len = std::max(p.max_key_len, r.keys);
    for (int64_t i = 0; i < r.queries; ++i)
      visible += static_cast<double>(s.causal ? std::max<int64_t>(r.keys - r.queries + i + 1, 0) : r.keys);
  }
  const int64_t tq = queries.back() - queries.front(), tk = keys.back() - keys.front();
  p.q = in.bf16({tq, s.heads, s.nope + s.rotary}, s.q_size, s.padding);
  // As kv_b_proj stores them: a head's key dimensions, then its value dimensions.
  const int64_t lanes_of_head = s.nope + s.value;
  std::vector<float> kv_values(static_cast<size_t>(tk * s.heads * lanes_of_head));
  in.rng().normal(kv_values.data(), std::ssize(kv_values), static_cast<float>(s.key_size));
  for (size_t b = 1; s.poisoned > 0 && b < keys.size(); ++b) {
    for (int64_t key = std::max(keys[b] - s.poisoned, int64_t{keys[b - 1]}); key < keys[b]; ++key) {
      for (int64_t h = 0; h < s.heads; ++h)
        std::fill_n(kv_values.begin() + ((key - keys[0]) * s.heads + h) * lanes_of_head + s.nope, s.value, std::nanf(""));
    }
  }
  const TensorView kv = in.bf16_values({tk, s.heads, lanes_of_head}, kv_values, s.padding);
  p.k_nope = kv.columns(0, s.nope);
  p.v = kv.columns(s.nope, s.value);
  p.k_pe = in.bf16({tk, s.rotary}, s.key_size, {.inner = s.padding.inner});
  if (s.start_locs) {
    p.query_start_loc = in.i32(queries);
    p.key_start_loc = in.i32(keys);
  }
  p.causal = s.causal;
  p.softmax_scale = 0.13523377f;
  p.out = in.output(s.out, {tq, s.heads, s.value}, {.inner = s.padding.inner + s.out_gap, .outer = s.padding.outer});
  Tolerance close_to = attention_out(8e-4, 2.01 / 128, 5e-6, s.key_size, p.out.numel(), in.drawn());
  close_to.beyond = 0;
  std::vector<Output> outputs{view_output("out", p.out, close_to)};
  auto room = std::make_shared<HostArray>();  // the same for every implementation that is compared
  close_to.any_nan = s.poisoned > 0;
  outputs[0].compare = [p, close_to, room](const HostArray& got, const HostArray& want, DeviceId) {
    if (room->shape.empty()) *room = rounding_room(p);
    return compare("out", got, want, close_to, room.get());
  };
  if (s.lse) {
    p.lse = in.output(DType::f32, {tq, s.heads}, {.inner = s.padding.inner});
    outputs.push_back(view_output("lse", p.lse, attention_lse(10 * s.q_size * s.key_size, 8.01 / 65536, in.drawn())));
  }
  const double h = static_cast<double>(s.heads), dims = static_cast<double>(s.nope + s.rotary + s.value);
  const double rows = static_cast<double>(tq) * static_cast<double>(s.nope + s.rotary + s.value) +
                      static_cast<double>(tk) * static_cast<double>(s.nope + s.value);
  return {.params = p,
          .outputs = std::move(outputs),
          .bytes = 2 * h * rows + 2 * static_cast<double>(tk * s.rotary),
          .flops = 2 * visible * h * dims};
}

std::string name_of(const PrefillShape& s) {
  std::string name = fmt::format("b{}", s.requests.size());
  for (size_t i = 0; i < std::min<size_t>(s.requests.size(), 6); ++i)
    name += fmt::format("-{}x{}", s.requests[i].queries, s.requests[i].keys);
  name += fmt::format("-H{}{}", s.heads, s.causal ? "-causal" : "");
  if (s.nope != 128 || s.rotary != 64 || s.value != 128) name += fmt::format("-P{}-R{}-V{}", s.nope, s.rotary, s.value);
  if (!s.start_locs) name += "-whole";
  if (s.out == DType::f32) name += "-to_f32";
  if (!s.lse) name += "-no_lse";
  if (s.first > 0) name += fmt::format("-from{}", s.first);
  if (s.padding.inner + s.padding.outer > 0) name += fmt::format("-strided{}", s.padding.inner);
  if (s.out_gap > 0) name += fmt::format("-out+{}", s.out_gap);
  if (s.q_size != 1.0 || s.key_size != 1.0) name += fmt::format("-q{:g}-k{:g}", s.q_size, s.key_size);
  if (s.poisoned > 0) name += fmt::format("-poisoned{}", s.poisoned);
  return name + s.suffix;
}

const std::vector<RequestLengths> kRagged{{5, 5}, {0, 0}, {64, 64}, {1, 1}, {3, 40}, {17, 17}, {0, 9}, {33, 33}};

template <class Test>
void add_shapes(const Test& test) {
  for (const bool causal : {true, false}) {
    for (const DType out : {DType::bf16, DType::f32}) {
      test({.requests = kRagged, .heads = 3, .causal = causal, .out = out});
      test({.requests = {{70, 130}}, .causal = causal, .start_locs = false, .out = out});
      test({.requests = kRagged, .heads = 3, .causal = causal, .out = out, .padding = {.inner = 8, .outer = 3}});
      test({.requests = {{70, 130}}, .heads = 3, .causal = causal, .out = out, .out_gap = 3});
    }
    for (const int64_t heads : {1, 2, 16, 63, 128}) test({.requests = {{9, 20}, {4, 4}}, .heads = heads, .causal = causal});
    for (const int64_t n : {1, 2, 15, 16, 17, 31, 63, 65, 128, 200}) test({.requests = {{n, n}}, .heads = 2, .causal = causal});
    test({.requests = {{129, 129}, {127, 300}, {300, 130}}, .heads = 2, .causal = causal});
    test({.requests = kRagged, .heads = 2, .causal = causal, .nope = 40, .rotary = 24, .value = 72});
    test({.requests = kRagged,
          .heads = 2,
          .causal = causal,
          .nope = 40,
          .rotary = 24,
          .value = 72,
          .out = DType::f32,
          .padding = {.inner = 3, .outer = 1}});
    // More queries than keys: with causal the first see nothing; without keys nobody does.
    test({.requests = {{9, 4}, {3, 0}, {6, 6}}, .causal = causal});
    test({.requests = {{5, 0}}, .causal = causal, .start_locs = false});
    test({.requests = {}, .causal = causal, .suffix = "-no_requests"});
    test({.requests = {{0, 0}}, .causal = causal, .start_locs = false, .suffix = "-nothing"});
    test({.requests = kRagged, .causal = causal, .lse = false});
    test({.requests = kRagged, .causal = causal, .first = 500});
    test({.requests = kRagged, .heads = 2, .causal = causal, .nope = 64, .rotary = 32, .value = 64});
    test({.requests = kRagged, .heads = 2, .causal = causal, .nope = 21, .rotary = 6, .value = 35});
    test({.requests = {{20, 20}}, .heads = 2, .causal = causal, .nope = 512, .rotary = 64, .value = 576});
    if (causal) test({.requests = {{20, 20}, {150, 150}, {3, 40}, {1, 9}, {9, 4}}, .heads = 2, .poisoned = 2});
    if (causal) test({.requests = {{150, 150}, {70, 300}}, .heads = 2, .poisoned = 64});
    test({.requests = {{50, 50}}, .causal = causal, .q_size = 20.0});
    test({.requests = {{50, 50}}, .causal = causal, .q_size = 0.0});
    test({.requests = {{50, 50}}, .causal = causal, .key_size = 0.1});
    test({.requests = {{50, 50}}, .causal = causal, .key_size = 0.0});
  }
}

}  // namespace

void add_dense_attn_prefill(CaseList& list) {
  CaseAdder<DenseAttnPrefillParams> cases(list, "dense_attn_prefill", &OpSet::dense_attn_prefill);
  add_shapes([&](const PrefillShape& s) { cases.test(name_of(s), [s](Inputs& in) { return build(in, s, s.requests); }); });
  const PrefillShape heavy{.requests = {{512, 512}, {100, 700}}, .heads = 8};
  cases.heavy(name_of(heavy), [heavy](Inputs& in) { return build(in, heavy, heavy.requests); });
  for (const int64_t heads : {16, 128}) {
    for (const auto& [queries, keys, causal] :
         {std::tuple<int64_t, int64_t, bool>{1024, 1024, true}, {4096, 4096, true}, {512, 4096, false}}) {
      const PrefillShape s{.requests = {{queries, keys}}, .heads = heads, .causal = causal};
      cases.bench(name_of(s), [s](Inputs& in) { return build(in, s, {{in.share(s.requests[0].queries), in.share(s.requests[0].keys)}}); });
    }
  }
}

void add_random_dense_attn_prefill(CaseList& list, Draw& draw) {
  PrefillShape s;
  s.heads = draw.chance(0.7) ? draw.size(1, 8) : draw.heads();
  s.causal = draw.chance(0.6);
  if (!draw.usual()) {
    s.nope = draw.size(1, 512);
    s.rotary = draw.size(1, std::min<int64_t>((576 - s.nope) / 2, 32)) * 2;
    s.value = draw.size(1, 576);
  }
  const double of_pair = static_cast<double>(s.heads * (s.nope + s.rotary + s.value));
  for (const RequestShape& r : draw.requests({.tokens = 600, .positions = 200'000 / s.heads, .visible = draw.work() / of_pair})) {
    // As they come; all of a request; or queries that exceed the keys.
    const int64_t keys = draw.chance(0.8) ? r.seq_len : draw.chance(0.5) ? r.query_len : r.query_len / 2;
    s.requests.push_back({r.query_len, keys});
  }
  s.start_locs = s.requests.size() != 1 || draw.chance(0.5);
  s.out = draw.of({DType::bf16, DType::bf16, DType::f32});
  s.lse = draw.chance(0.7);
  if (s.start_locs && draw.chance(0.2)) s.first = static_cast<int32_t>(draw.size(1, 100'000));
  s.padding = draw.padding();
  if (s.causal && draw.chance(0.1)) s.poisoned = draw.size(1, 70);
  if (draw.chance(0.1)) s.q_size = draw.of({20.0, 0.0});
  CaseAdder<DenseAttnPrefillParams>(list, "dense_attn_prefill", &OpSet::dense_attn_prefill).drawn(draw.name(name_of(s)), [=](Inputs& in) {
    return build(in, s, s.requests);
  });
}

}  // namespace strata::testkit
