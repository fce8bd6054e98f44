#include <fmt/format.h>

#include <cstring>
#include <string>

#include "core/arena.h"
#include "ops/indexer/fusions.h"
#include "testkit/cases/indexer_case.h"
#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

// The reference's logits for a call whose memory is on the host.
HostArray reference_logits(const IndexerTopkParams& p) {
  const int64_t tokens = p.lengths.shape[0];
  const auto host = open_device({});
  const OpSet ops = default_ops();
  IndexerTopkParams scored = p;
  std::vector<std::byte> query;
  if (p.query_prologue) {
    Arena measure(host->id());
    static_cast<void>(ops::without_query_prologue(p, measure));
    query.resize(static_cast<size_t>(measure.used()));
    Arena arena(host->id(), {query.data(), std::ssize(query)});
    scored = ops::without_query_prologue(p, arena);
    find_implementation(ops.indexer_query, "reference").run(ops::query_call(*p.query_prologue, scored), ExecutionContext{*host});
  }
  HostArray logits{DType::f32, {tokens, p.max_length}, std::vector<std::byte>(static_cast<size_t>(tokens * p.max_length) * sizeof(float))};
  IndexerLogitsParams l;
  l.q = scored.q;
  l.q_scale = scored.q_scale;
  l.weights = scored.weights;
  l.cache = p.cache;
  l.block_table = p.block_table;
  l.token_to_req = p.token_to_req;
  l.lengths = p.lengths;
  l.logits = TensorView::contiguous(logits.data.data(), DType::f32, {}, {tokens, p.max_length});
  find_implementation(ops.indexer_logits, "reference").run(l, ExecutionContext{*host});
  return logits;
}

// The entries that have these slots, -2 for what is none of the token's.
HostArray entries_of(const HostArray& slots, const IndexerTopkParams& p) {
  HostArray entries = slots;
  const int32_t page_size = p.slots_epilogue->page_size;
  const int64_t k = slots.shape[1], blocks = p.slots_epilogue->block_table.shape[1];
  for (int64_t i = 0; i < slots.numel(); ++i) {
    const int32_t slot = slots.ptr<int32_t>()[i], request = p.token_to_req.ptr<int32_t>()[i / k];
    int32_t entry = slot == -1 ? -1 : -2;
    for (int64_t block = 0; slot >= 0 && block < blocks; ++block) {
      if (p.slots_epilogue->block_table.row<int32_t>(request)[block] == slot / page_size)
        entry = static_cast<int32_t>(block) * page_size + slot % page_size;
    }
    std::memcpy(entries.data.data() + static_cast<size_t>(i) * sizeof(entry), &entry, sizeof(entry));
  }
  return entries;
}

IndexerQueryPrologue make_query(Inputs& in, int64_t tokens, const ScoringShape& s, bool hadamard) {
  constexpr int64_t kPositions = 129;
  std::vector<int64_t> positions(static_cast<size_t>(tokens));
  for (int64_t& position : positions) position = in.rng().in(0, kPositions);
  return {.q = in.bf16({tokens, s.heads, s.dim}),
          .weights = in.bf16({tokens, s.heads}, 0.5),
          .positions = in.i64(positions),
          .cos_sin = in.rope_table(kPositions, 64),
          .hadamard = hadamard,
          .softmax_scale = 0.09F,
          .head_scale = 0.125F};
}

enum class Query { made, prologue, prologue_hadamard };

// slot_page_size > 0: slots of all tokens but the last are wanted.
Built<IndexerTopkParams> build(Inputs& in, const ScoringShape& s, int64_t k, int64_t padding, bool short_path = false,
                               int32_t slot_page_size = 0, Query query = Query::made) {
  const Scoring scoring = make_scoring(in, s);
  IndexerTopkParams p;
  p.lengths = scoring.lengths;
  p.max_length = scoring.max_length;
  if (!short_path) {
    p.q = scoring.q;
    p.q_scale = scoring.q_scale;
    p.weights = scoring.weights;
    p.cache = scoring.cache;
    p.block_table = scoring.block_table;
    p.token_to_req = scoring.token_to_req;
  }
  const auto tokens = static_cast<int64_t>(scoring.host_lengths.size());
  if (query != Query::made) {
    p.query_prologue = make_query(in, tokens, s, query == Query::prologue_hadamard);
    p.q = p.q_scale = p.weights = {};
  }
  p.topk_indices = in.output(DType::i32, {tokens, k}, {.inner = padding});
  std::vector<Output> outputs{view_output("topk_indices", p.topk_indices, exact())};
  if (slot_page_size > 0) {
    std::vector<int64_t> rows;
    for (const RequestShape& r : s.requests) rows.push_back(r.seq_len / s.ratio);
    p.token_to_req = scoring.token_to_req;
    TopkSlots slots{.block_table = make_paging(in.rng(), slot_page_size, rows).table(in), .page_size = slot_page_size};
    slots.slots = in.output(DType::i32, {tokens - 1, k}, {.inner = padding});
    slots.lens = in.output(DType::i32, {tokens - 1});
    outputs.push_back(view_output("slots", slots.slots, exact()));
    outputs.push_back(view_output("lens", slots.lens, exact()));
    p.slots_epilogue = slots;
  }
  // Which entries win is exact when every logit is the same, or none is computed.
  if (!s.zero_q && !s.nan_weight && p.max_length > k) {
    // The reference's logits are the same for every implementation that is compared.
    auto logits = std::make_shared<HostArray>();
    const auto compare = [p, logits, format = s.format, drawn = in.drawn(), lengths = scoring.host_lengths](
                             const char* name, const HostArray& got, const HostArray& want, DeviceId device) {
      if (got.data == want.data) return std::string{};
      if (logits->shape.empty()) *logits = reference_logits(p);
      return compare_selection(name, got, want, *logits, lengths, indexer_slack(device, format, drawn));
    };
    outputs[0].compare = [compare](const HostArray& got, const HostArray& want, DeviceId device) {
      return compare("topk_indices", got, want, device);
    };
    if (slot_page_size > 0) {
      outputs[1].compare = [compare, p](const HostArray& got, const HostArray& want, DeviceId device) {
        if (got.data == want.data) return std::string{};
        return compare("entries of slots", entries_of(got, p), entries_of(want, p), device);
      };
    }
  }
  return {
      .params = p, .outputs = std::move(outputs), .bytes = scoring.bytes + 4.0 * static_cast<double>(tokens * k), .flops = scoring.flops};
}

}  // namespace

void add_indexer_topk(CaseList& list) {
  CaseAdder<IndexerTopkParams> cases(list, "indexer_topk", &OpSet::indexer_topk);
  for (const ScoringTest& test : scoring_tests()) {
    const int64_t k = test.heavy ? 128 : 16;
    const auto builder = [s = test.shape, k](Inputs& in) { return build(in, s, k, 0); };
    const std::string name = fmt::format("k{}-{}", k, name_of(test.shape));
    test.heavy ? cases.heavy(name, builder) : cases.test(name, builder);
  }
  const ScoringShape small{.requests = {{200, 17}, {30, 1}}, .heads = 8, .padding_tokens = 2};
  for (const int64_t k : {1, 7, 49, 50, 51, 64, 512}) {
    cases.test(fmt::format("k{}-{}-strided", k, name_of(small)), [small, k](Inputs& in) { return build(in, small, k, 5); });
  }
  cases.test("k512-short-nothing_but_lengths", [small](Inputs& in) { return build(in, small, 512, 0, true); });
  const ScoringShape long_row{.requests = {{40000, 2}}, .heads = 4};
  cases.test("k512-" + name_of(long_row), [long_row](Inputs& in) { return build(in, long_row, 512, 0); });
  // One token per request. Long rows, whose selection may begin with the maxima of small groups of logits, together with short rows.
  for (const bool ties : {false, true}) {
    const ScoringShape decode{.requests = {{160000, 1}, {20003, 1}, {700, 1}, {40, 1}, {3, 1}}, .heads = 4, .zero_q = ties};
    cases.test("k16-" + name_of(decode), [decode](Inputs& in) { return build(in, decode, 16, 0); });
  }
  // One token alone: rows that end within and at a tile, short ones where long ones are expected, ties, and nothing that exceeds anything.
  for (const int64_t seq_len : {262143, 300003, 524288}) {
    const ScoringShape alone{.requests = {{seq_len, 1}}, .heads = 4, .page_size = seq_len % 2 == 0 ? 64 : 128};
    for (const int64_t k : {16, 512})
      cases.heavy(fmt::format("k{}-{}", k, name_of(alone)), [alone, k](Inputs& in) { return build(in, alone, k, 0); });
  }
  for (const int64_t seq_len : {3, 1800, 20000, 60000}) {
    const ScoringShape expected{.requests = {{seq_len, 1}}, .heads = 4, .spare_length = 200000};
    cases.test("k512-" + name_of(expected), [expected](Inputs& in) { return build(in, expected, 512, 0); });
  }
  for (const bool nan : {false, true}) {
    const ScoringShape equal{.requests = {{524288, 1}}, .heads = 4, .zero_q = !nan, .nan_weight = nan};
    cases.heavy("k512-" + name_of(equal), [equal](Inputs& in) { return build(in, equal, 512, 0); });
  }
  // Slots too, from every kernel: rows that are selected whole, that fit in registers, that are found by maxima, and others.
  const auto with_slots = [&](const ScoringShape& shape, int64_t k, int32_t page_size, bool short_path = false, bool heavy = false) {
    const std::string name = fmt::format("k{}-{}-slots{}{}", k, name_of(shape), page_size, short_path ? "-short" : "");
    const auto builder = [=](Inputs& in) { return build(in, shape, k, 3, short_path, page_size); };
    heavy ? cases.heavy(name, builder) : cases.test(name, builder);
  };
  for (const int64_t k : {7, 49, 512}) with_slots(small, k, 2);
  with_slots(small, 512, 64, true);
  with_slots(long_row, 512, 64);
  with_slots({.requests = {{160000, 1}, {20003, 1}, {700, 1}, {40, 1}, {3, 1}}, .heads = 4}, 16, 53);
  with_slots({.requests = {{160000, 1}, {20003, 1}, {700, 1}}, .heads = 4, .zero_q = true}, 16, 64);
  with_slots({.requests = {{2000, 300}, {9, 9}}, .heads = 4, .zero_q = true}, 128, 64, false, true);
  with_slots({.requests = {{140000, 300}}, .heads = 2, .zero_q = true}, 512, 64, false, true);
  // Bounds far above most lengths, as a captured step has them: on Hopper what a row's own length requires, by clusters of eight, four and
  // one block.
  for (const int64_t others : {0, 20, 100}) {
    ScoringShape bound{.requests = {}, .heads = 4, .spare_length = 130000};
    for (const int64_t rows : {300, 8192, 8193, 16384, 16385, 33000, 66000, 132144}) bound.requests.push_back({4 * rows, 1});
    bound.requests.insert(bound.requests.end(), static_cast<size_t>(others), {80, 1});
    for (const int64_t k : {16, 512, 1024, 2048}) with_slots(bound, k, k == 512 ? 53 : 64, false, true);
    bound.zero_q = true;
    with_slots(bound, 512, 64, false, true);
  }
  // With the query made by the op.
  const std::vector<RequestShape> requests{{2604, 1}, {252, 1}, {9001, 1}, {3, 1},  {1300, 1},
                                           {700, 1},  {0, 0},   {2048, 1}, {31, 1}, {5000, 1}};
  for (const int64_t heads : {64, 61, 8}) {
    const ScoringShape shape{.requests = requests, .heads = heads, .padding_tokens = 1};
    for (const Query query : {Query::prologue, Query::prologue_hadamard}) {
      cases.test(fmt::format("k16-{}-query{}", name_of(shape), query == Query::prologue ? "" : "-hadamard"),
                 [=](Inputs& in) { return build(in, shape, 16, 0, false, 0, query); });
    }
  }
  const ScoringShape one{.requests = {{20003, 1}}}, prompt{.requests = {{2000, 40}}};
  for (const ScoringShape& shape : {one, prompt})
    cases.test(fmt::format("k16-{}-query-slots64", name_of(shape)),
               [=](Inputs& in) { return build(in, shape, 16, 0, false, 64, Query::prologue); });
  // One token longer than the others, so that ranges of equal tiles and equal ranges of every token take about as long.
  for (const int64_t tiles : {36, 46, 56}) {
    std::vector<RequestShape> uneven(31, {2560, 1});
    uneven.push_back({tiles * 256, 1});
    const ScoringShape shape{.requests = uneven, .heads = 64};
    for (const Query query : {Query::made, Query::prologue}) {
      cases.test(fmt::format("k16-31of2560-1of{}{}", tiles * 256, query == Query::prologue ? "-query" : ""),
                 [=](Inputs& in) { return build(in, shape, 16, 0, false, 0, query); });
    }
  }
  const ScoringShape longest{.requests = {{1048571, 1}, {600000, 1}}, .heads = 2};
  cases.heavy("k512-" + name_of(longest), [longest](Inputs& in) { return build(in, longest, 512, 0); });
  // Every position of a million, two heads: in one range, and as ties.
  for (const bool ties : {false, true}) {
    const ScoringShape million{.requests = {{1048571, 2}}, .ratio = 1, .heads = 2, .zero_q = ties};
    cases.heavy("k2048-" + name_of(million), [million](Inputs& in) { return build(in, million, 2048, 0); });
  }

  const auto decode = [&](int64_t batch, int64_t rows, int64_t k, const std::string& suffix = "", int64_t extra_stride = 0,
                          int32_t slot_page_size = 0, Query query = Query::made) {
    cases.bench(fmt::format("decode-b{}-rows{}-k{}{}", batch, rows, k, suffix), [=](Inputs& in) {
      return build(in, {.requests = decode_requests(in.share(batch), rows, 4), .extra_stride = extra_stride}, k, 0, false, slot_page_size,
                   query);
    });
  };
  for (const int64_t rows : {8192, 32768, 262144}) decode(1, rows, 512);
  for (const int64_t batch : {16, 32, 128}) {
    for (const int64_t rows : {8192, 32768}) decode(batch, rows, 512);
  }
  for (const int64_t batch : {1, 16}) decode(batch, 32768, 1024);
  // As a layer calls it: pages padded to multiples of 576 bytes, slots, the query in front.
  for (const int64_t batch : {32, 64, 128}) decode(batch, 8192, 512, "-stride+192-slots-query", 192, 64, Query::prologue);
  // With a captured step's bound.
  for (const int64_t batch : {1, 32}) {
    for (const int64_t rows : {8192, 32768, 100000}) {
      cases.bench(fmt::format("decode-b{}-rows{}-k512-bound262144", batch, rows), [=](Inputs& in) {
        return build(in, {.requests = decode_requests(in.share(batch), rows, 4), .spare_length = 262144 - rows}, 512, 0);
      });
    }
  }
  cases.bench("decode-b32-rows8192-k2048-bound163840", [=](Inputs& in) {
    return build(in, {.requests = decode_requests(in.share(32), 8192, 4), .spare_length = 163840 - 8192}, 2048, 0);
  });
  // V3.2: every position is scored, and 2048 are selected. After 8192 and 16384 rows other kernels select.
  for (const int64_t batch : {4, 32, 64, 128}) {
    for (const int64_t rows : {8192, 8200, 16384, 32768}) decode(batch, rows, 2048);
  }
  for (const int64_t batch : {16, 32, 128}) {
    for (const int64_t rows : {8200, 16384}) decode(batch, rows, 512);
  }
  const auto prefill = [&](int64_t tokens, int64_t rows, int64_t ratio) {
    cases.bench(fmt::format("prefill{}-rows{}-k512", tokens, rows), [=](Inputs& in) {
      return build(in, {.requests = prefill_request(in.share(tokens), rows, ratio), .ratio = ratio}, 512, 0);
    });
  };
  // Requests with drafted tokens, and requests together with a prompt.
  for (const int64_t tokens : {2, 4}) {
    cases.bench(fmt::format("decode-b32x{}-rows8192-k512", tokens),
                [=](Inputs& in) { return build(in, {.requests = decode_requests(in.share(32), 8192, 4, tokens)}, 512, 0); });
  }
  cases.bench("decode-b32-prefill512-rows8192-k512", [=](Inputs& in) {
    std::vector<RequestShape> together = decode_requests(in.share(32), 8192, 4);
    together.push_back({8192 * 4, in.share(512)});
    return build(in, {.requests = std::move(together)}, 512, 0);
  });
  prefill(512, 8192, 4);
  prefill(512, 32768, 4);
  for (const int64_t rows : {4096, 16384}) prefill(4096, rows, 1);
  prefill(8192, 65536, 1);
}

void add_random_indexer_topk(CaseList& list, Draw& draw) {
  ScoringShape s = random_scoring(draw);
  int64_t tokens = s.padding_tokens, longest = s.spare_length;
  for (const RequestShape& r : s.requests) tokens += r.query_len, longest = std::max(longest, r.seq_len / s.ratio + s.spare_length);
  const int64_t k = random_topk(draw, longest);
  const bool short_path = longest <= k && draw.chance(0.5);
  const Query query = s.format != KvFormat::indexer_fp8 || short_path || draw.chance(0.6) ? Query::made
                      : draw.chance(0.5)                                                  ? Query::prologue
                                                                                          : Query::prologue_hadamard;
  if (query != Query::made) s.zero_q = s.nan_weight = false;
  const int32_t slot_page_size = tokens > 0 && draw.chance(0.4) ? draw.page_size() : 0;
  const int64_t padding = draw.padding().inner;
  const std::string name =
      fmt::format("k{}-{}{}{}{}{}", k, name_of(s), slot_page_size > 0 ? fmt::format("-slots{}", slot_page_size) : "",
                  short_path ? "-short" : "", query == Query::made ? "" : "-query", query == Query::prologue_hadamard ? "-hadamard" : "");
  CaseAdder<IndexerTopkParams>(list, "indexer_topk", &OpSet::indexer_topk).drawn(draw.name(name), [=](Inputs& in) {
    return build(in, s, k, padding, short_path, slot_page_size, query);
  });
}

}  // namespace strata::testkit
