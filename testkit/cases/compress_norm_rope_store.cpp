#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "testkit/harness/paging.h"
#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {
namespace {

struct CompressShape {
  std::vector<RequestShape> requests;
  int32_t ratio = 4;
  int32_t dim = 512;
  KvFormat format = KvFormat::fp8_ds_mla_v4;
  int32_t state_page = 4;
  int32_t page_size = 64;
  int64_t extra_stride = 0;
  bool hadamard = false;
  bool saves = false;            // the step's rows are saved by the op
  int64_t padding = 0;           // columns between rows of kv_score
  bool first_page_null = false;  // the first page of each request is a table entry below 0, which reads as page 0
  double skipped = 0.0;          // share of tokens without a state or output slot
  int64_t padding_tokens = 0;
  std::string suffix{};
};

Built<CompressNormRopeStoreParams> build(Inputs& in, const CompressShape& s) {
  const int32_t coff = s.ratio == 4 ? 2 : 1;
  const StepTokens tokens = make_tokens(s.requests, s.padding_tokens);
  std::vector<int64_t> rows, entries;
  int64_t longest = 1;
  for (const RequestShape& r : s.requests) {
    rows.push_back(r.seq_len);
    entries.push_back(r.seq_len / s.ratio);
    longest = std::max(longest, r.seq_len);
  }
  Paging states = make_paging(in.rng(), s.state_page, rows);
  const Paging outputs = make_paging(in.rng(), s.page_size, entries);

  // Only what the windows of this step cover is there; everything older holds NaN.
  std::vector<int64_t> filled, state_slots, out_slots, written;
  if (s.first_page_null) {
    for (size_t r = 0; r < rows.size(); ++r) states.blocks[r * static_cast<size_t>(states.max_blocks)] = 0;
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    const int64_t first_new = s.requests[r].seq_len - s.requests[r].query_len;
    const int64_t first_boundary = (first_new + s.ratio) / s.ratio * s.ratio - 1;
    for (int64_t p = std::max<int64_t>(0, first_boundary - coff * s.ratio + 1); p < rows[r]; ++p) {
      if (!s.saves || p < first_new) filled.push_back(states.slot(static_cast<int64_t>(r), p));
    }
  }
  double pooled = 0, saved = 0;
  for (int64_t t = 0; t < tokens.size(); ++t) {
    const int64_t p = tokens.positions[static_cast<size_t>(t)], r = tokens.token_to_req[static_cast<size_t>(t)];
    const bool valid = tokens.valid[static_cast<size_t>(t)] != 0, boundary = (p + 1) % s.ratio == 0;
    state_slots.push_back(!valid || in.rng().chance(s.skipped) ? -1 : states.slot(r, p));
    if (s.saves && valid && state_slots.back() < 0) filled.push_back(states.slot(r, p));  // as an earlier step has left it
    saved += state_slots.back() < 0 ? 0 : 1;
    // Tokens that complete nothing must not be stored even where a slot is given.
    out_slots.push_back(!valid || in.rng().chance(s.skipped) || (!boundary && entries[static_cast<size_t>(r)] == 0)
                            ? -1
                            : outputs.slot(r, std::min(p / s.ratio, entries[static_cast<size_t>(r)] - 1)));
    if (!boundary) {
      if (in.rng().chance(0.5)) out_slots.back() = -1;
      continue;
    }
    if (state_slots.back() < 0 || out_slots.back() < 0) continue;
    written.push_back(out_slots.back());
    pooled += static_cast<double>(std::min<int64_t>(p + 1, int64_t{coff} * s.ratio));
  }
  if (s.first_page_null) {
    for (size_t r = 0; r < rows.size(); ++r) states.blocks[r * static_cast<size_t>(states.max_blocks)] = -1;
    for (int64_t row = 0; row < s.state_page; ++row) filled.push_back(row);
  }

  CompressNormRopeStoreParams p;
  p.state = in.cache({.format = KvFormat::state_f32,
                      .row_dim = 2 * coff * s.dim,
                      .page_size = s.state_page,
                      .num_pages = states.num_pages,
                      .extra_stride = s.extra_stride},
                     filled, 2.0);
  p.block_table = states.table(in);
  p.token_to_req = in.i32(tokens.token_to_req);
  p.positions = in.i64(tokens.positions);
  p.state_slots = in.i64(state_slots);
  p.out_slots = in.i64(out_slots);
  p.ratio = s.ratio;
  p.norm_weight = in.f32({s.dim});
  p.cos_sin = in.rope_table(longest);
  p.cache = in.cache({.format = s.format,
                      .row_dim = s.dim,
                      .page_size = s.page_size,
                      .num_pages = outputs.num_pages,
                      .extra_stride = s.extra_stride,
                      .scale = 0.03125f},
                     {});
  p.hadamard = s.hadamard;
  if (s.saves) {
    const TensorView kv_score = in.f32({tokens.size(), int64_t{p.state.row_dim}}, 2.0, {.inner = s.padding});
    p.save_prologue = {.kv_score = kv_score, .ape = in.f32({s.ratio, int64_t{p.state.row_dim} / 2})};
  }
  // Quantised values may differ by a step if fp32 and float64 round to different bf16.
  Tolerance tolerance = code_step(0.01);
  tolerance.abs_rms = 1e-5;
  // All dimensions are rounded before Hadamard. One value of 5 times the root mean square that is rounded the other way moves all 128 by
  // 2^-5 / 128^0.5.
  if (s.hadamard && s.format == KvFormat::bf16 && in.drawn()) tolerance.abs_rms = 0x1p-5 / std::sqrt(128.0);
  const double n = static_cast<double>(written.size()), d = s.dim;
  std::vector<Output> results{cache_output("cache", p.cache, written, tolerance)};
  if (s.saves) results.push_back(cache_output("state", p.state, {}, exact()));
  // Of rows that the step saves what is saved is read, not what is there.
  const double save_bytes = s.saves ? saved * 8 * p.state.row_dim : 0;
  return {.params = p,
          .outputs = std::move(results),
          .bytes = pooled * 8 * d + save_bytes + n * static_cast<double>(row_bytes(s.format, s.dim)),
          .flops = pooled * d * 6 + n * d * 6};
}

std::string name_of(const CompressShape& s) {
  std::string name = fmt::format("r{}-D{}-{}-S{}-B{}", s.ratio, s.dim, to_string(s.format), s.state_page, s.page_size);
  if (s.requests.size() > 10) {
    name += fmt::format("-{}requests", s.requests.size());
  } else {
    for (const RequestShape& r : s.requests) name += fmt::format("-{}of{}", r.query_len, r.seq_len);
  }
  if (s.extra_stride > 0) name += fmt::format("-stride+{}", s.extra_stride);
  if (s.hadamard) name += "-hadamard";
  if (s.saves) name += s.padding > 0 ? "-saving-strided" : "-saving";
  if (s.first_page_null) name += "-null_page";
  if (s.skipped > 0) name += "-skipping";
  if (s.padding_tokens > 0) name += fmt::format("-pad{}", s.padding_tokens);
  return name + s.suffix;
}

void add_bench(CaseAdder<CompressNormRopeStoreParams>& cases) {
  const CompressShape kinds[] = {{.requests = {}, .ratio = 4, .dim = 512},
                                 {.requests = {}, .ratio = 128, .dim = 512, .state_page = 8, .page_size = 2},
                                 {.requests = {}, .ratio = 4, .dim = 128, .format = KvFormat::indexer_fp8}};
  for (const CompressShape& kind : kinds) {
    for (const int64_t tokens : {1, 64, 4096}) {
      const auto build_share = [kind, tokens](Inputs& in) {
        CompressShape s = kind;
        if (tokens == 4096) {
          s.requests = {{in.share(tokens), in.share(tokens)}};  // one prompt
        } else {
          s.requests.assign(static_cast<size_t>(in.share(tokens)), {512, 1});  // decode steps that all complete an entry
        }
        return build(in, s);
      };
      cases.bench(fmt::format("r{}-D{}-{}-{}", kind.ratio, kind.dim, to_string(kind.format),
                              tokens == 4096 ? "prefill4096" : fmt::format("decode{}", tokens)),
                  build_share);
    }
  }
}

}  // namespace

void add_compress_norm_rope_store(CaseList& list) {
  CaseAdder<CompressNormRopeStoreParams> cases(list, "compress_norm_rope_store", &OpSet::compress_norm_rope_store);
  const auto test = [&](const CompressShape& s) { cases.test(name_of(s), [s](Inputs& in) { return build(in, s); }); };
  const std::vector<RequestShape> prompts{{17, 17}, {3, 3}, {4, 4}, {300, 300}};
  // Windows that began in an earlier step, one token or several at a time.
  const std::vector<RequestShape> mixed{{8, 1}, {128, 1}, {131, 3}, {301, 64}, {264, 8}, {5, 0}, {256, 130}, {127, 1}};
  struct Kind {
    int32_t ratio, dim, state_page;
    KvFormat format;
    int32_t page_size;
  };
  const Kind kinds[] = {
      {4, 512, 4, KvFormat::fp8_ds_mla_v4, 64},  {4, 512, 4, KvFormat::bf16, 64},          {4, 512, 4, KvFormat::fp8_tensor, 64},
      {128, 512, 8, KvFormat::fp8_ds_mla_v4, 2}, {128, 512, 8, KvFormat::bf16, 2},         {128, 512, 8, KvFormat::fp8_tensor, 2},
      {4, 128, 4, KvFormat::indexer_fp8, 64},    {4, 128, 4, KvFormat::indexer_mxfp4, 64}, {4, 128, 4, KvFormat::bf16, 64}};
  for (const Kind& k : kinds) {
    CompressShape s{
        .requests = mixed, .ratio = k.ratio, .dim = k.dim, .format = k.format, .state_page = k.state_page, .page_size = k.page_size};
    test(s);
    s.requests = prompts;
    test(s);
    s.requests = {{3, 1}, {4, 1}, {128, 128}};
    s.padding_tokens = 5;
    s.skipped = 0.3;
    test(s);
    s.padding_tokens = 0;
    s.skipped = 0;
    s.requests = mixed;
    s.extra_stride = 60;
    s.page_size = 53;
    s.state_page = 3;
    test(s);
    s.saves = true;
    test(s);
    if (k.dim == 128) {
      s.hadamard = true;
      test(s);
      s.saves = false;
      test(s);
    }
    s = {.requests = {{3, 1}, {4, 1}, {7, 7}, {128, 128}},
         .ratio = k.ratio,
         .dim = k.dim,
         .format = k.format,
         .state_page = k.state_page,
         .page_size = k.page_size,
         .saves = true,
         .padding = 8,
         .skipped = 0.3,
         .padding_tokens = 5};
    test(s);
    s.skipped = 0;
    s.padding = k.dim == 128 ? 2 : 0;  // rows that are not aligned
    // Decode steps of one token and of several, whose windows are of this step, of earlier ones, of both.
    s.requests = {{8, 1}, {9, 1}, {4, 1}, {3, 1}, {128, 1}, {131, 4}, {261, 6}, {264, 8}, {5, 0}, {6, 2}, {12, 5}, {2, 2}, {640, 8}};
    test(s);
  }
  test({.requests = {}, .suffix = "-no_tokens"});
  test({.requests = {}, .saves = true, .suffix = "-no_tokens"});
  for (const int32_t dim : {512, 128}) {
    const KvFormat format = dim == 512 ? KvFormat::fp8_ds_mla_v4 : KvFormat::indexer_fp8;
    test({.requests = {{32768, 1}}, .dim = dim, .format = format, .saves = true});
    test({.requests = {{32766, 1}}, .dim = dim, .format = format, .saves = true});
    test({.requests = std::vector<RequestShape>(64, {384, 1}), .dim = dim, .format = format, .saves = true, .padding_tokens = 2});
    test({.requests = std::vector<RequestShape>(70, {255, 2}), .dim = dim, .format = format, .saves = true});
  }
  test({.requests = {{2, 2}}, .suffix = "-nothing_completes"});
  test({.requests = {{8, 2}, {16, 16}}, .first_page_null = true});
  test({.requests = {{128, 1}}, .ratio = 128, .state_page = 256, .page_size = 1});
  test({.requests = {{1024, 9}}, .ratio = 128, .state_page = 8, .page_size = 2});
  // More tokens, and more entries that complete at once, than a device works on at a time.
  test({.requests = {{1300, 1300}, {1299, 1298}}});
  test({.requests = {{2600, 1300}}, .dim = 128, .format = KvFormat::indexer_fp8});
  test({.requests = {{1300, 1290}, {640, 640}}, .ratio = 128, .state_page = 8, .page_size = 2});
  // More tokens than all warps of a device look at together.
  test({.requests = {{8600, 8600}}});
  test({.requests = {{4400, 4400}}, .ratio = 128, .state_page = 8, .page_size = 2});
  // Aligned pages whose size does not match a window, with space between them.
  test({.requests = {{1300, 1300}, {5, 1}}, .state_page = 3, .page_size = 5, .extra_stride = 64});
  test({.requests = {{1300, 1300}, {640, 130}},
        .ratio = 128,
        .format = KvFormat::bf16,
        .state_page = 3,
        .page_size = 5,
        .extra_stride = 64});
  test({.requests = std::vector<RequestShape>(16, {384, 1}), .ratio = 128, .state_page = 8, .page_size = 2});
  test({.requests = std::vector<RequestShape>(70, {256, 1}), .ratio = 128, .state_page = 8, .page_size = 2, .padding_tokens = 2});
  test({.requests = {{128, 1}, {300, 300}}, .ratio = 128, .dim = 128, .format = KvFormat::indexer_fp8, .state_page = 8, .page_size = 2});
  test({.requests = {{128, 1}, {300, 300}},
        .ratio = 128,
        .dim = 128,
        .format = KvFormat::bf16,
        .state_page = 3,
        .page_size = 5,
        .extra_stride = 36});
  add_bench(cases);
}

void add_random_compress_norm_rope_store(CaseList& list, Draw& draw) {
  CompressShape s;
  s.ratio = draw.of({4, 4, 128});
  s.dim = draw.of({512, 128});
  s.format = s.dim == 512 ? draw.of({KvFormat::fp8_ds_mla_v4, KvFormat::fp8_ds_mla_v4, KvFormat::bf16, KvFormat::fp8_tensor})
                          : draw.of({KvFormat::indexer_fp8, KvFormat::indexer_mxfp4, KvFormat::bf16});
  s.state_page = draw.of({1, 3, 4, 8, 16, 53, 256});
  s.page_size = draw.page_size();
  s.extra_stride = draw.page_gap();
  s.hadamard = s.dim == 128 && draw.chance(0.5);
  s.skipped = draw.of({0.0, 0.0, 0.3, 1.0});
  if (draw.chance(0.3)) s.padding_tokens = draw.size(1, 20);
  s.saves = draw.chance(0.5);
  if (s.saves) s.padding = draw.padding().inner;
  s.requests = draw.requests({.tokens = s.dim == 512 ? 1500 : 4000, .positions = s.dim == 512 ? 4000 : 8000, .visible = 1e9});
  CaseAdder<CompressNormRopeStoreParams>(list, "compress_norm_rope_store", &OpSet::compress_norm_rope_store)
      .drawn(draw.name(name_of(s)), [=](Inputs& in) { return build(in, s); });
}

}  // namespace strata::testkit
