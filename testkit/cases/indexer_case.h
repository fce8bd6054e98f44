// What the indexer ops' cases share: requests with indexer keys in pages, and quantised queries.
#pragma once

#include <string>
#include <vector>

#include "testkit/harness/draw.h"
#include "testkit/harness/paging.h"
#include "strata/ops/indexer.h"

namespace strata::testkit {

struct ScoringShape {
  std::vector<RequestShape> requests;  // in positions; candidates are complete groups of `ratio`
  int64_t ratio = 4;
  int64_t heads = 64;
  int32_t dim = 128;
  KvFormat format = KvFormat::indexer_fp8;
  int32_t page_size = 64;
  int64_t extra_stride = 0;
  int64_t padding_tokens = 0;
  bool zero_q = false;         // every logit is 0: only the order of ties decides
  bool nan_weight = false;     // every logit is NaN
  bool infinite_keys = false;  // a logit is +inf, or 0 if no head's query has a positive first dimension
  int64_t spare_length = 0;    // of max_length, beyond the longest
  int64_t spare_pages = 2;
  std::string suffix{};
};

struct Scoring {
  TensorView q, q_scale, weights, block_table, token_to_req, lengths;
  PagedCache cache;
  std::vector<int32_t> host_lengths;
  int64_t max_length = 0;
  double bytes = 0;  // rows read once per request, queries and weights
  double flops = 0;
};
Scoring make_scoring(Inputs& in, const ScoringShape& shape);
std::string name_of(const ScoringShape& shape);

// How far below the last selected logit another one may be selected instead of it, of the row's largest. The FP8 tensor cores of a GPU
// align the products of a sum to its largest and keep 13 bits below that: single logits are off by up to 2e-4, and two of them decide
// an exchange (MLA 17 has 1e-4 for one); drawn shapes have rows of few candidates, whose largest is small: twice as much. Every other
// product of quantised values is exact in fp32: nothing but the noise of a sum.
double indexer_slack(DeviceId device, KvFormat format, bool drawn = false);

// The requests of a benchmark over `rows` compressed rows each: `batch` decode requests of `tokens` tokens each, or one prompt chunk of
// `prefill` tokens.
std::vector<RequestShape> decode_requests(int64_t batch, int64_t rows, int64_t ratio, int64_t tokens = 1);
std::vector<RequestShape> prefill_request(int64_t tokens, int64_t rows, int64_t ratio);

// Lists of requests that both scoring ops are tested with.
struct ScoringTest {
  ScoringShape shape;
  bool heavy = false;
};
std::vector<ScoringTest> scoring_tests();
ScoringShape random_scoring(Draw& draw);
// Entries to select, of at most `longest`.
int64_t random_topk(Draw& draw, int64_t longest);

}  // namespace strata::testkit
