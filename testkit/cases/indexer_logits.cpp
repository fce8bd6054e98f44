#include <fmt/format.h>

#include "testkit/cases/indexer_case.h"
#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

Built<IndexerLogitsParams> build(Inputs& in, const ScoringShape& s, Padding padding) {
  const Scoring scoring = make_scoring(in, s);
  IndexerLogitsParams p;
  p.q = scoring.q;
  p.q_scale = scoring.q_scale;
  p.weights = scoring.weights;
  p.cache = scoring.cache;
  p.block_table = scoring.block_table;
  p.token_to_req = scoring.token_to_req;
  p.lengths = scoring.lengths;
  const auto tokens = static_cast<int64_t>(scoring.host_lengths.size());
  p.logits = in.output(DType::f32, {tokens, scoring.max_length + 3}, padding);
  double written = 0;
  for (int32_t length : scoring.host_lengths) written += 4.0 * length;
  // FP8 tensor cores keep fewer than 24 bits of a sum, so single logits are given more room than the whole (V4 17).
  const bool few_bits = indexer_slack(in.device()->id(), s.format) > 0;
  const double room = few_bits ? 1e-2 : 1e-4, beyond = few_bits && in.drawn() ? 2e-5 : 0.0;
  const Tolerance tolerance{
      .kind = Tolerance::Kind::close, .abs_rms = room, .rel = room, .cos = 5e-6, .beyond = beyond, .any_nan = s.nan_weight};
  return {.params = p, .outputs = {view_output("logits", p.logits, tolerance)}, .bytes = scoring.bytes + written, .flops = scoring.flops};
}

}  // namespace

void add_indexer_logits(CaseList& list) {
  CaseAdder<IndexerLogitsParams> cases(list, "indexer_logits", &OpSet::indexer_logits);
  for (const ScoringTest& test : scoring_tests()) {
    const auto builder = [s = test.shape](Inputs& in) { return build(in, s, {}); };
    test.heavy ? cases.heavy(name_of(test.shape), builder) : cases.test(name_of(test.shape), builder);
  }
  const ScoringShape strided{.requests = {{200, 17}}, .heads = 16, .suffix = "-strided"};
  cases.test(name_of(strided), [strided](Inputs& in) { return build(in, strided, {.inner = 37}); });

  constexpr int64_t kRows = 32768;
  for (const auto format : {KvFormat::indexer_fp8, KvFormat::indexer_mxfp4}) {
    for (const int64_t batch : {1, 16}) {
      cases.bench(fmt::format("decode-b{}-rows{}-{}", batch, kRows, to_string(format)),
                  [=](Inputs& in) { return build(in, {.requests = decode_requests(in.share(batch), kRows, 4), .format = format}, {}); });
    }
    cases.bench(fmt::format("prefill512-rows{}-{}", kRows, to_string(format)),
                [=](Inputs& in) { return build(in, {.requests = prefill_request(in.share(512), kRows, 4), .format = format}, {}); });
  }
}

void add_random_indexer_logits(CaseList& list, Draw& draw) {
  const ScoringShape s = random_scoring(draw);
  const Padding padding = draw.padding();
  CaseAdder<IndexerLogitsParams>(list, "indexer_logits", &OpSet::indexer_logits).drawn(draw.name(name_of(s)), [=](Inputs& in) {
    return build(in, s, padding);
  });
}

}  // namespace strata::testkit
