#include "testkit/cases/indexer_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace strata::testkit {

Scoring make_scoring(Inputs& in, const ScoringShape& s) {
  Scoring result;
  const StepTokens tokens = make_tokens(s.requests, s.padding_tokens);
  const int64_t t = tokens.size();
  std::vector<int64_t> rows;
  double row_count = 0, products = 0;
  for (const RequestShape& r : s.requests) {
    rows.push_back(r.seq_len / s.ratio);
    row_count += static_cast<double>(rows.back());
  }
  for (int64_t i = 0; i < t; ++i) {
    const auto at = static_cast<size_t>(i);
    const int64_t length = tokens.valid[at] != 0 ? (tokens.positions[at] + 1) / s.ratio : 0;
    result.host_lengths.push_back(static_cast<int32_t>(length));
    result.max_length = std::max(result.max_length, length);
    products += static_cast<double>(length);
  }
  result.max_length += s.spare_length;
  const Paging paging = make_paging(in.rng(), s.page_size, rows, s.spare_pages);
  result.cache = in.cache({.format = s.format,
                           .row_dim = s.dim,
                           .page_size = s.page_size,
                           .num_pages = paging.num_pages,
                           .extra_stride = s.extra_stride,
                           .infinite = s.infinite_keys},
                          paging.all_slots());
  result.block_table = paging.table(in);
  result.token_to_req = in.i32(tokens.token_to_req);
  result.lengths = in.i32(result.host_lengths);
  const auto all_weights = [&](float value) {
    return in.values(DType::f32, {t, s.heads}, std::vector<float>(static_cast<size_t>(t * s.heads), value));
  };
  result.weights = s.nan_weight ? all_weights(NAN) : s.infinite_keys ? all_weights(0.02f) : in.f32({t, s.heads}, 0.02);
  if (s.format == KvFormat::indexer_mxfp4) {
    std::vector<uint8_t> codes(static_cast<size_t>(t * s.heads * s.dim / 2)), scales(static_cast<size_t>(t * s.heads * s.dim / 32));
    for (uint8_t& code : codes) code = s.zero_q ? 0 : static_cast<uint8_t>(in.rng().next());
    for (uint8_t& scale : scales) scale = static_cast<uint8_t>(in.rng().in(122, 127));
    result.q = in.values(DType::u8, {t, s.heads, s.dim / 2}, codes);
    result.q_scale = in.values(DType::e8m0, {t, s.heads, s.dim / 32}, scales);
  } else if (s.format == KvFormat::indexer_fp8) {
    result.q = in.e4m3({t, s.heads, s.dim}, s.zero_q ? 0.0 : 100.0);
  } else {
    result.q = in.bf16({t, s.heads, s.dim}, s.zero_q ? 0.0 : 1.0);
  }
  const double d = s.dim, h = static_cast<double>(s.heads);
  result.bytes = row_count * static_cast<double>(row_bytes(s.format, s.dim)) + static_cast<double>(t) * h * (d * 1.0 + 4);
  result.flops = products * h * (2 * d + 3);
  return result;
}

std::string name_of(const ScoringShape& s) {
  std::string name = fmt::format("H{}-D{}-{}-B{}", s.heads, s.dim, to_string(s.format), s.page_size);
  if (s.ratio != 4) name += fmt::format("-r{}", s.ratio);
  name += name_of(s.requests);
  if (s.extra_stride > 0) name += fmt::format("-stride+{}", s.extra_stride);
  if (s.padding_tokens > 0) name += fmt::format("-pad{}", s.padding_tokens);
  if (s.zero_q) name += "-ties";
  if (s.nan_weight) name += "-nan";
  if (s.infinite_keys) name += "-inf";
  if (s.spare_length > 0) name += fmt::format("-max+{}", s.spare_length);
  return name + s.suffix;
}

double indexer_slack(DeviceId device, KvFormat format, bool drawn) {
  if (device.kind != DeviceKind::cuda || format != KvFormat::indexer_fp8) return 0;
  return drawn ? 8e-4 : 4e-4;
}

std::vector<RequestShape> decode_requests(int64_t batch, int64_t rows, int64_t ratio, int64_t tokens) {
  return std::vector<RequestShape>(static_cast<size_t>(batch), RequestShape{rows * ratio, tokens});
}

std::vector<RequestShape> prefill_request(int64_t tokens, int64_t rows, int64_t ratio) { return {{rows * ratio, tokens}}; }

std::vector<ScoringTest> scoring_tests() {
  const std::vector<RequestShape> mixed{{1, 1}, {3, 1}, {4, 1}, {261, 1}, {530, 3}, {44, 8}, {0, 0}};
  std::vector<ScoringTest> tests;
  for (const auto format : {KvFormat::indexer_fp8, KvFormat::indexer_mxfp4, KvFormat::bf16}) {
    tests.push_back({{.requests = mixed, .format = format}});
    for (const int64_t heads : {1, 3, 16, 32, 63, 96, 128}) {
      tests.push_back({{.requests = {{200, 3}, {67, 1}}, .heads = heads, .format = format}});
    }
    for (const int32_t page_size : {1, 2, 53, 61, 69, 256, 576}) {
      const int64_t extra = page_size % 2 == 0 ? 192 : 5;
      tests.push_back({{.requests = {{410, 2}, {67, 1}}, .heads = 8, .format = format, .page_size = page_size, .extra_stride = extra}});
    }
    tests.push_back({{.requests = {{300, 5}, {9, 9}}, .heads = 8, .format = format, .padding_tokens = 4}});
    tests.push_back({{.requests = {{3, 3}, {2, 1}}, .heads = 8, .format = format, .padding_tokens = 1, .suffix = "-no_candidates"}});
    tests.push_back({{.requests = {}, .heads = 8, .format = format}});
    tests.push_back({{.requests = {{3, 3}},
                      .heads = 8,
                      .format = format,
                      .padding_tokens = 2,
                      .spare_length = 700,
                      .spare_pages = 0,
                      .suffix = "-no_pages"}});
    tests.push_back({{.requests = {{430, 2}}, .heads = 8, .format = format, .zero_q = true}});
    tests.push_back({{.requests = {{200, 64}}, .heads = 64, .format = format}});
    tests.push_back({{.requests = {{2000, 300}}, .heads = 16, .format = format}, true});
    // One token per request, with tiles that end before, at and after a page's end; many tokens of one request with one token of another.
    tests.push_back({{.requests = {{252, 1}, {256, 1}, {260, 1}, {0, 0}, {3, 1}, {2604, 1}}, .format = format, .page_size = 128}});
    const std::vector<RequestShape> many{{2604, 1}, {252, 1}, {9001, 1}, {3, 1},  {1300, 1},
                                         {700, 1},  {0, 0},   {2048, 1}, {31, 1}, {5000, 1}};
    tests.push_back({{.requests = many, .heads = 64, .format = format, .padding_tokens = 1}});
    tests.push_back({{.requests = {{900, 41}, {700, 1}}, .format = format}});
    tests.push_back({{.requests = {{900, 41}, {700, 1}}, .heads = 127, .format = format, .page_size = 64, .extra_stride = 48}});
  }
  // Requests of one token, of two and of more, at any position of a group of eight or four, together with a prompt.
  const std::vector<RequestShape> with_prompt{{900, 1},  {2604, 1}, {252, 1}, {1300, 2}, {700, 2},  {5000, 3}, {640, 4},  {0, 0},
                                              {3000, 5}, {9001, 1}, {3, 1},   {1500, 6}, {2048, 7}, {4100, 1}, {6000, 30}};
  for (const int64_t heads : {64, 96}) tests.push_back({{.requests = with_prompt, .heads = heads, .padding_tokens = 1}});
  // The V3.2 indexer scores every position; bf16 keys have any width.
  tests.push_back({{.requests = {{130, 2}, {64, 1}}, .ratio = 1, .heads = 64}});
  for (const int32_t dim : {1, 37, 64, 256}) {
    tests.push_back({{.requests = {{130, 2}, {9, 1}}, .ratio = 1, .heads = 5, .dim = dim, .format = KvFormat::bf16}});
  }
  for (const int64_t heads : {1, 5, 40}) {
    tests.push_back({{.requests = {{200, 9}, {64, 1}}, .heads = heads, .dim = 64, .format = KvFormat::bf16, .infinite_keys = true}});
  }
  return tests;
}

ScoringShape random_scoring(Draw& draw) {
  constexpr int64_t kLogits = 4'000'000;  // of all tokens, as wide as the longest
  ScoringShape s;
  if (!draw.usual() || draw.chance(0.2)) s.format = draw.of({KvFormat::indexer_fp8, KvFormat::indexer_mxfp4, KvFormat::bf16});
  s.ratio = draw.chance(0.1) ? 128 : draw.of<int64_t>({4, 4, 1});
  s.heads = draw.heads();
  if (s.format == KvFormat::bf16 && draw.chance(0.3)) s.dim = static_cast<int32_t>(draw.size(1, 512));
  s.page_size = draw.page_size();
  s.extra_stride = draw.page_gap();
  if (draw.chance(0.2)) s.padding_tokens = draw.size(1, 20);
  s.zero_q = draw.chance(0.1);
  s.nan_weight = !s.zero_q && draw.chance(0.03);
  const int64_t rows = draw.of<int64_t>({20'000, 20'000, 20'000, 100'000, 300'000});
  s.requests = draw.requests({.tokens = 600,
                              .positions = rows * s.ratio,
                              .visible = draw.work() * static_cast<double>(s.ratio) / static_cast<double>(s.heads * s.dim)});
  int64_t tokens = s.padding_tokens, longest = 0;
  for (RequestShape& r : s.requests) {
    if ((tokens + r.query_len) * std::max(longest, r.seq_len / s.ratio) > kLogits) r.query_len = 0;
    tokens += r.query_len;
    longest = std::max(longest, r.seq_len / s.ratio);
  }
  if (draw.chance(0.2)) s.spare_length = draw.size(1, std::max<int64_t>(kLogits / std::max<int64_t>(tokens, 8), 1));
  return s;
}

int64_t random_topk(Draw& draw, int64_t longest) {
  return draw.chance(0.3) ? draw.of<int64_t>({64, 512, 1024, 2048})
                          : draw.size(1, std::clamp<int64_t>(draw.chance(0.8) ? longest / 4 : longest, 16, 3000));
}

}  // namespace strata::testkit
