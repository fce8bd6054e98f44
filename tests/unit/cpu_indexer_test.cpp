// The CPU backend's indexer ops against the reference, for every instruction set this machine has.
#include <algorithm>
#include <cmath>
#include <map>

#include "formats/hadamard.h"
#include "formats/quantize.h"
#include "ops/factories.h"
#include "unit/cache_pages.h"
#include "unit/op_test.h"

namespace strata::test {
namespace {

const Op<IndexerLogitsParams> kLogits = ops::make_indexer_logits();
const Op<TopkSelectParams> kSelect = ops::make_topk_select();
const Op<IndexerTopkParams> kTopk = ops::make_indexer_topk();
const Op<IndexerQueryParams> kQuery = ops::make_indexer_query();

constexpr CpuIsa kCaps[] = {CpuIsa::portable, CpuIsa::avx2, CpuIsa::avx512, CpuIsa::avx512_bf16, CpuIsa::best};
constexpr int64_t kDim = 128;

std::shared_ptr<Device> device_with(CpuIsa cap, int threads = 3) {
  Config config;
  config.cpu_isa = cap;
  config.cpu_threads = threads;
  return open_device({}, config);
}

// Runs one implementation with exactly the workspace that it needs, filled with garbage, and checks that it stayed inside.
template <class Params>
void run_exactly(const Implementation<Params>& impl, const Params& params, Device& device) {
  constexpr int64_t kGuard = 256;
  const int64_t bytes = impl.workspace_bytes(params, device);
  auto* memory = static_cast<uint8_t*>(device.allocate(bytes + kGuard));
  std::memset(memory, 0xB7, static_cast<size_t>(bytes + kGuard));
  impl.run(params, {device, {}, {memory, bytes}});
  for (int64_t i = 0; i < kGuard; ++i) ASSERT_EQ(memory[bytes + i], 0xB7) << impl.name << " wrote past its workspace";
  device.deallocate(memory);
}

// f(implementation, device, label) for every implementation but the reference that some cap allows.
template <class Params, class F>
void for_each_path(const Op<Params>& op, const Params& params, F&& f) {
  int paths = 0;
  for (CpuIsa cap : kCaps) {
    const auto device = device_with(cap);
    for (const auto& impl : op.implementations()) {
      if (impl.name == "reference" || !impl.supports(params, *device)) continue;
      SCOPED_TRACE(impl.name + " capped at " + to_string(cap));
      f(impl, *device);
      ++paths;
    }
  }
  EXPECT_GE(paths, 5);  // cpu/simd under every cap
}

// Requests with random keys in shuffled pages. Rows that no token needs are NaN, and table entries after a request's last page are not
// pages.
struct Scene {
  KvFormat format;
  int64_t heads;
  std::vector<int32_t> lengths, requests;
  CachePages cache;
  Array<Bf16> bf16;
  Array<E4m3> fp8;
  Array<uint8_t> fp4;
  Array<E8m0> fp4_scale;
  Array<float> weights;
  Array<int32_t> table, token_to_req, length_array;

  // tokens: (request, length)
  Scene(KvFormat f, int64_t num_heads, int32_t page_size, const std::vector<std::pair<int32_t, int32_t>>& tokens, uint32_t seed = 1,
        int64_t distinct_keys = 0)
      : format(f),
        heads(num_heads),
        cache(f, kDim, page_size, total_pages(tokens, page_size) + 2, 40),
        bf16({count(tokens), num_heads, kDim}),
        fp8({count(tokens), num_heads, kDim}),
        fp4({count(tokens), num_heads, kDim / 2}),
        fp4_scale({count(tokens), num_heads, kDim / 32}),
        weights({count(tokens), num_heads}),
        table({num_requests(tokens), most_pages(tokens, page_size) + 1}),
        token_to_req({count(tokens)}),
        length_array({count(tokens)}) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    for (const auto& [request, length] : tokens) {
      requests.push_back(request);
      lengths.push_back(length);
    }
    token_to_req.values() = requests;
    length_array.values() = lengths;
    std::vector<int32_t> free_pages(static_cast<size_t>(total_pages(tokens, page_size)));
    for (size_t i = 0; i < free_pages.size(); ++i) free_pages[i] = static_cast<int32_t>(i) + 1;  // page 0 belongs to nobody
    std::shuffle(free_pages.begin(), free_pages.end(), generator);
    table.fill(-7);
    const int64_t columns = table.view().shape[1];
    for (const auto& [request, length] : longest(tokens)) {
      std::vector<std::vector<float>> keys;
      for (int64_t j = 0; j < length; ++j) {
        if (distinct_keys == 0 || j < distinct_keys) {
          keys.emplace_back(static_cast<size_t>(kDim));
          // Outliers, so that scales differ from row to row.
          const float sigma = generator() % 8 == 0 ? 30.0f : 1.0f;
          for (float& v : keys.back()) v = sigma * normal(generator);
        }
        if (j % page_size == 0) {
          table[request * columns + j / page_size] = free_pages.back();
          free_pages.pop_back();
        }
        const int64_t page = table[request * columns + j / page_size];
        cache.store(page * page_size + j % page_size,
                    keys[static_cast<size_t>(j < static_cast<int64_t>(keys.size()) ? j : j * 7 % distinct_keys)]);
      }
    }
    for (float& v : weights.values()) v = normal(generator);
    bf16.values() = random_bf16(count(tokens) * num_heads * kDim, 1.0f, seed + 1);
    for (int64_t head = 0; head < count(tokens) * num_heads; ++head) {
      quantize_indexer_fp8(&bf16[head * kDim], kDim, kKvAmaxFloor, &fp8[head * kDim]);
      for (int64_t b = 0; b < kDim / 32; ++b) {
        fp4_scale[head * 4 + b] = quantize_mxfp4_block(&bf16[head * kDim + 32 * b], &fp4[head * 64 + 16 * b]);
      }
    }
  }

  static int64_t count(const std::vector<std::pair<int32_t, int32_t>>& tokens) { return static_cast<int64_t>(tokens.size()); }
  static std::map<int32_t, int32_t> longest(const std::vector<std::pair<int32_t, int32_t>>& tokens) {
    std::map<int32_t, int32_t> result;
    for (const auto& [request, length] : tokens) {
      if (length > 0) result[request] = std::max(result[request], length);
    }
    return result;
  }
  static int64_t num_requests(const std::vector<std::pair<int32_t, int32_t>>& tokens) {
    int32_t most = 0;
    for (const auto& token : tokens) most = std::max(most, token.first);
    return most + 1;
  }
  static int64_t most_pages(const std::vector<std::pair<int32_t, int32_t>>& tokens, int64_t page_size) {
    int64_t most = 0;
    for (const auto& token : tokens) most = std::max<int64_t>(most, (token.second + page_size - 1) / page_size);
    return most;
  }
  static int64_t total_pages(const std::vector<std::pair<int32_t, int32_t>>& tokens, int64_t page_size) {
    int64_t total = 0;
    for (const auto& request : longest(tokens)) total += (request.second + page_size - 1) / page_size;
    return total;
  }

  int64_t tokens() const { return static_cast<int64_t>(lengths.size()); }
  int32_t max_length() const { return *std::max_element(lengths.begin(), lengths.end()); }
  TensorView q() { return format == KvFormat::bf16 ? bf16.view() : format == KvFormat::indexer_fp8 ? fp8.view() : fp4.view(); }
  TensorView q_scale() { return format == KvFormat::indexer_mxfp4 ? fp4_scale.view() : TensorView{}; }
  IndexerLogitsParams logits(TensorView out) {
    return {.q = q(),
            .q_scale = q_scale(),
            .weights = weights,
            .cache = cache,
            .block_table = table,
            .token_to_req = token_to_req,
            .lengths = length_array,
            .logits = out};
  }
  IndexerTopkParams topk(TensorView out) {
    return {.q = q(),
            .q_scale = q_scale(),
            .weights = weights,
            .cache = cache,
            .block_table = table,
            .token_to_req = token_to_req,
            .lengths = length_array,
            .max_length = max_length(),
            .topk_indices = out};
  }
};

constexpr float kUntouched = -12345.0f;

void expect_close_logits(const Scene& scene, Array<float>& got, Array<float>& want) {
  const int64_t columns = got.view().shape[1];
  for (int64_t t = 0; t < scene.tokens(); ++t) {
    const int64_t length = scene.lengths[static_cast<size_t>(t)];
    double largest = 0, ab = 0, aa = 0, bb = 0, worst = 0;
    for (int64_t j = 0; j < length; ++j) {
      const double a = got[t * columns + j], b = want[t * columns + j];
      largest = std::max(largest, std::fabs(b));
      worst = std::max(worst, std::fabs(a - b));
      ab += a * b, aa += a * a, bb += b * b;
    }
    EXPECT_LE(worst, 1e-4 * largest) << "token " << t;
    if (bb > 1e-12) {
      EXPECT_LE(1 - 2 * ab / (aa + bb), 5e-6) << "token " << t;
    }
    for (int64_t j = length; j < columns; ++j) ASSERT_EQ(got[t * columns + j], kUntouched) << "token " << t << " column " << j;
  }
}

// Scores against the reference, and selections against the selection from the same path's scores, which must be the same exactly.
void check_scene(Scene& scene, int64_t k) {
  Array<float> want({scene.tokens(), scene.max_length() + 3}), got({scene.tokens(), scene.max_length() + 3});
  run(kLogits, scene.logits(want));
  const auto params = scene.logits(got);
  for_each_path(kLogits, params, [&](const auto& impl, Device& device) {
    got.fill(kUntouched);
    run_exactly(impl, params, device);
    expect_close_logits(scene, got, want);

    Array<int32_t> selected({scene.tokens(), k}), streamed({scene.tokens(), k});
    run(kSelect, {.logits = got, .lengths = scene.length_array, .topk_indices = selected});
    const auto topk = scene.topk(streamed);
    for (const auto& same : kTopk.implementations()) {
      if (same.name != impl.name) continue;
      ASSERT_TRUE(same.supports(topk, device));
      run_exactly(same, topk, device);
      EXPECT_EQ(streamed.values(), selected.values());
    }
  });
}

TEST(CpuIndexer, FormatsHeadsAndPages) {
  // One long decode token, a padding token, a chunk of one request, short requests around the kernels' group sizes.
  std::vector<std::pair<int32_t, int32_t>> tokens = {{0, 700}, {-1, 0}};
  for (int32_t i = 0; i < 18; ++i) tokens.push_back({1, 260 + i});
  for (int32_t n : {1, 15, 16, 17, 255, 256, 257}) tokens.push_back({static_cast<int32_t>(2 + n % 5), n});
  tokens.push_back({0, 0});
  constexpr int64_t kHeads[] = {1, 8, 32, 64};
  constexpr int32_t kPageSizes[] = {2, 53, 64};
  for (KvFormat format : {KvFormat::indexer_fp8, KvFormat::indexer_mxfp4, KvFormat::bf16}) {
    for (size_t h = 0; h < std::size(kHeads); ++h) {
      for (size_t p = 0; p < std::size(kPageSizes); ++p) {
        if (format != KvFormat::indexer_fp8 && p != h % std::size(kPageSizes)) continue;  // each head count once is enough there
        SCOPED_TRACE(testing::Message() << to_string(format) << ", " << kHeads[h] << " heads, pages of " << kPageSizes[p]);
        Scene scene(format, kHeads[h], kPageSizes[p], tokens, static_cast<uint32_t>(10 * h + p));
        check_scene(scene, 64);
      }
    }
  }
}

TEST(CpuIndexer, OddHeadCounts) {
  for (int64_t heads : {3, 17, 40, 48, 65, 100, 128, 200}) {
    SCOPED_TRACE(testing::Message() << heads << " heads");
    Scene scene(KvFormat::indexer_fp8, heads, 7, {{0, 300}, {1, 5}, {1, 6}}, 3);
    check_scene(scene, 20);
  }
}

TEST(CpuIndexer, LongContextsOverSeveralRanges) {
  Scene one(KvFormat::indexer_fp8, 8, 64, {{0, 5000}}, 5);
  check_scene(one, 512);
  Scene few(KvFormat::indexer_mxfp4, 8, 64, {{0, 5000}, {1, 512}, {2, 513}, {3, 4097}}, 6);
  check_scene(few, 512);
}

TEST(CpuIndexer, TokensOfOneRequestThatAreNotInOrder) {
  // Lengths that fall, rise and vanish inside a token block, and requests that alternate.
  Scene scene(KvFormat::indexer_fp8, 16, 16, {{0, 900}, {0, 3}, {0, 0}, {0, 257}, {1, 40}, {0, 64}, {1, 600}, {1, 599}, {0, 899}}, 7);
  check_scene(scene, 48);
}

TEST(CpuIndexer, EqualKeysGiveTies) {
  Scene scene(KvFormat::indexer_fp8, 64, 64, {{0, 3000}, {0, 3001}, {1, 2999}}, 8, 5);
  check_scene(scene, 700);
}

TEST(CpuIndexer, NaNStaysInItsRow) {
  for (KvFormat format : {KvFormat::indexer_fp8, KvFormat::bf16}) {
    SCOPED_TRACE(to_string(format));
    Scene scene(format, 64, 64, {{0, 40}});
    std::vector<float> row(kDim, 1.0f);
    row[77] = kNaN;
    scene.cache.store(scene.table[0] * 64 + 21, row);
    Array<float> logits({1, 40});
    const auto params = scene.logits(logits);
    for_each_path(kLogits, params, [&](const auto& impl, Device& device) {
      run_exactly(impl, params, device);
      for (int64_t j = 0; j < 40; ++j) EXPECT_EQ(std::isnan(logits[j]), j == 21) << j;
    });
  }
}

TEST(CpuIndexer, NoTokens) {
  Scene scene(KvFormat::indexer_fp8, 64, 64, {{0, 100}});
  Array<float> logits({1, 100});
  Array<int32_t> out({1, 4});
  auto params = scene.logits(logits);
  auto topk = scene.topk(out);
  for (TensorView* v : {&params.q, &params.weights, &params.token_to_req, &params.lengths, &params.logits}) *v = v->slice(0, 0);
  for (TensorView* v : {&topk.q, &topk.weights, &topk.token_to_req, &topk.lengths, &topk.topk_indices}) *v = v->slice(0, 0);
  for_each_path(kLogits, params, [&](const auto& impl, Device& device) { run_exactly(impl, params, device); });
  for_each_path(kTopk, topk, [&](const auto& impl, Device& device) { run_exactly(impl, topk, device); });
}

TEST(CpuIndexer, ShortContextNeedsNoQueries) {
  Array<int32_t> lengths({3}, {0, 2, 4}), out({3, 4});
  const IndexerTopkParams params = {.lengths = lengths, .max_length = 4, .topk_indices = out};
  for_each_path(kTopk, params, [&](const auto& impl, Device& device) {
    out.fill(99);
    run_exactly(impl, params, device);
    EXPECT_EQ(out.values(), (std::vector<int32_t>{-1, -1, -1, -1, 0, 1, -1, -1, 0, 1, 2, 3}));
  });
}

TEST(CpuIndexer, RefusesWhatItDoesNotTake) {
  CachePages cache(KvFormat::bf16, 64, 4, 1);
  Array<Bf16> q({1, 2, 64});
  Array<float> weights({1, 2}), logits({1, 1});
  Array<int32_t> table({1, 1}), request({1}), lengths({1});
  const IndexerLogitsParams params = {.q = q,
                                      .q_scale = {},
                                      .weights = weights,
                                      .cache = cache,
                                      .block_table = table,
                                      .token_to_req = request,
                                      .lengths = lengths,
                                      .logits = logits};
  const auto device = device_with(CpuIsa::avx2);
  const std::vector<Candidate> candidates = kLogits.candidates(params, *device);
  for (const Candidate& c : candidates) EXPECT_EQ(static_cast<bool>(c.support), c.name == "reference") << c.name;
  // By name, because the implementations before it depend on the build.
  const auto named = std::find_if(candidates.begin(), candidates.end(), [](const Candidate& c) { return c.name == "cpu/avx512_bf16"; });
  ASSERT_NE(named, candidates.end());
  EXPECT_THAT(named->support.reason, testing::HasSubstr("avx2"));
}

// ---- selection ----

struct Rows {
  Array<float> logits;
  Array<int32_t> lengths;
  Rows(const std::vector<std::vector<float>>& rows, int64_t columns)
      : logits({static_cast<int64_t>(rows.size()), columns}), lengths({static_cast<int64_t>(rows.size())}) {
    logits.fill(kInf);  // nothing past a row's end may be read
    for (size_t t = 0; t < rows.size(); ++t) {
      std::copy(rows[t].begin(), rows[t].end(), logits.values().begin() + static_cast<int64_t>(t) * columns);
      lengths[static_cast<int64_t>(t)] = static_cast<int32_t>(rows[t].size());
    }
  }
};

void check_selection(const std::vector<std::vector<float>>& rows, int64_t k) {
  size_t columns = 1;
  for (const auto& row : rows) columns = std::max(columns, row.size());
  Rows input(rows, static_cast<int64_t>(columns) + 5);
  Array<int32_t> want({static_cast<int64_t>(rows.size()), k}), got({static_cast<int64_t>(rows.size()), k});
  run(kSelect, {.logits = input.logits, .lengths = input.lengths, .topk_indices = want});
  const TopkSelectParams params = {.logits = input.logits, .lengths = input.lengths, .topk_indices = got};
  for_each_path(kSelect, params, [&](const auto& impl, Device& device) {
    got.fill(-99);
    run_exactly(impl, params, device);
    EXPECT_EQ(got.values(), want.values());
  });
}

std::vector<float> random_row(int64_t n, uint32_t seed, float mean = 0.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(mean);
  std::vector<float> row(static_cast<size_t>(n));
  for (float& v : row) v = normal(generator);
  return row;
}

TEST(CpuTopkSelect, RandomRows) {
  for (int64_t k : {1, 7, 64, 512, 2048}) {
    SCOPED_TRACE(testing::Message() << "k " << k);
    std::vector<std::vector<float>> rows;
    for (int64_t n : {int64_t{0}, int64_t{1}, int64_t{15}, int64_t{16}, int64_t{17}, k - 1, k, k + 1, k + 16, 2 * k + 1, int64_t{5000},
                      int64_t{9001}}) {
      rows.push_back(random_row(n, static_cast<uint32_t>(n), n % 2 == 0 ? -9.0f : 0.5f));
    }
    check_selection(rows, k);
  }
}

TEST(CpuTopkSelect, LongRowsInPieces) { check_selection({random_row(150001, 1), random_row(70000, 2)}, 1000); }

TEST(CpuTopkSelect, Orders) {
  std::vector<float> up(20000), equal(20000, 1.5f), few(20000), zeros(20000), steps(20000), wild(20000);
  const float special[] = {kNaN, -kNaN, kInf, -kInf, 0.0f, -0.0f, 1e-40f, -1e-40f, 3.0f, 3.4e38f};
  std::mt19937 generator(4);
  for (size_t i = 0; i < up.size(); ++i) {
    up[i] = static_cast<float>(i) - 7000.0f;
    few[i] = static_cast<float>(i * 7919 % 3);
    zeros[i] = i % 3 == 0 ? -0.0f : 0.0f;
    steps[i] = static_cast<float>(i / 100 % 17);
    wild[i] = special[generator() % std::size(special)];
  }
  const std::vector<float> down(up.rbegin(), up.rend());
  std::vector<float> nothing(20000, kNaN);
  nothing[19000] = -kInf;
  nothing[18000] = -1.0f;
  for (int64_t k : {1, 100, 2048, 6000}) {
    SCOPED_TRACE(testing::Message() << "k " << k);
    check_selection({up, down, equal, few, zeros, steps, wild, nothing}, k);
  }
}

TEST(CpuTopkSelect, PivotsThatGainLittle) {
  // Powers of two: the middle of a range of bits and the middle of the values are far apart; and one value that all samples hit.
  std::vector<float> powers(30000), almost(30000, 2.0f);
  for (size_t i = 0; i < powers.size(); ++i) powers[i] = std::ldexp(i % 2 == 0 ? 1.0f : -1.0f, static_cast<int>(i * 31 % 250) - 125);
  for (size_t i = 0; i < 100; ++i) almost[i * 301 + 1] = 2.0f + static_cast<float>(i) * 1e-6f;
  check_selection({powers, almost}, 50);
  check_selection({powers, almost}, 3000);
}

// ---- queries ----

struct QueryCase {
  int64_t heads = 64, dim = 128, rotary = 64;
  RopePairing pairing = RopePairing::interleaved;
  RopeSlice rope_slice = RopeSlice::last;
  bool hadamard = false;
  bool bf16_weights = true;
};

void check_query(const QueryCase& c) {
  SCOPED_TRACE(testing::Message() << c.heads << " heads of " << c.dim << ", " << c.rotary << " rotary, hadamard " << c.hadamard);
  constexpr int64_t kTokens = 5, kPositions = 11, kPadding = 3;
  // q is strided; one head is zero, one has outliers.
  Array<Bf16> q({kTokens, c.heads, c.dim + kPadding});
  q.values() = random_bf16(kTokens * c.heads * (c.dim + kPadding), 2.0f, 21);
  for (int64_t d = 0; d < c.dim; ++d) q[d] = to_bf16(d % 2 == 0 ? 0.0f : -0.0f);
  for (int64_t i = 0; i < q.view().numel(); i += 977) q[i] = to_bf16(to_float(q[i]) * 3000.0f);
  Array<Bf16> wide({kTokens, c.heads}, random_bf16(kTokens * c.heads, 1.0f, 22));
  Array<float> narrow({kTokens, c.heads});
  for (int64_t i = 0; i < kTokens * c.heads; ++i) narrow[i] = to_float(wide[i]) * 1.0001f;
  Array<int64_t> positions({kTokens}, {0, 10, 3, 7, 1});
  Array<float> table({kPositions, std::max<int64_t>(c.rotary, 1)});
  for (int64_t i = 0; i < table.view().numel(); ++i) table[i] = std::cos(0.37f * static_cast<float>(i));
  for (const DType dtype : {DType::e4m3, DType::u8, DType::bf16}) {
    if (dtype == DType::u8 && c.dim % 32 != 0) continue;
    SCOPED_TRACE(to_string(dtype));
    const int64_t width = dtype == DType::bf16 ? c.dim * 2 : dtype == DType::e4m3 ? c.dim : c.dim / 2;
    Array<uint8_t> want({kTokens, c.heads, width}), got({kTokens, c.heads, width});
    Array<E8m0> want_scale({kTokens, c.heads, c.dim / 32}), got_scale({kTokens, c.heads, c.dim / 32});
    Array<float> want_weights({kTokens, c.heads}), got_weights({kTokens, c.heads});
    const auto params = [&](Array<uint8_t>& codes, Array<E8m0>& scale, Array<float>& weights) {
      IndexerQueryParams p;
      p.q = q.view().columns(0, c.dim);
      p.weights = c.bf16_weights ? wide.view() : narrow.view();
      p.positions = positions;
      if (c.rotary > 0) p.cos_sin = table;
      p.pairing = c.pairing;
      p.rope_slice = c.rope_slice;
      p.hadamard = c.hadamard;
      p.softmax_scale = 0.0884f;
      p.head_scale = 0.123f;
      p.q_out = TensorView::contiguous(codes.view().data, dtype, {}, {kTokens, c.heads, dtype == DType::u8 ? c.dim / 2 : c.dim});
      if (dtype == DType::u8) p.q_scale_out = scale;
      p.weights_out = weights;
      return p;
    };
    run(kQuery, params(want, want_scale, want_weights));
    const IndexerQueryParams p = params(got, got_scale, got_weights);
    for_each_path(kQuery, p, [&](const auto& impl, Device& device) {
      got.fill(0xEE);
      got_weights.fill(kUntouched);
      run_exactly(impl, p, device);
      EXPECT_EQ(got.bytes(), want.bytes());
      if (dtype == DType::u8) {
        EXPECT_EQ(got_scale.bytes(), want_scale.bytes());
      }
      EXPECT_EQ(got_weights.bytes(), want_weights.bytes());
    });
  }
}

TEST(CpuIndexerQuery, BitForBitTheReference) {
  check_query({});
  check_query({.bf16_weights = false});
  check_query({.hadamard = true});
  check_query({.pairing = RopePairing::half_split, .rope_slice = RopeSlice::first});
  check_query({.pairing = RopePairing::half_split, .rope_slice = RopeSlice::first, .hadamard = true});
  check_query({.rotary = 0});
  check_query({.rotary = 0, .hadamard = true});
  check_query({.heads = 1, .rotary = 128});
}

TEST(CpuIndexerQuery, OddWidths) {
  for (int64_t dim : {1, 2, 4, 8, 16, 32, 64, 256, 512})
    check_query({.heads = 9, .dim = dim, .rotary = dim >= 2 ? dim / 2 / 2 * 2 : 0, .hadamard = true});
  for (int64_t dim : {3, 20, 96, 100, 160, 511}) check_query({.heads = 7, .dim = dim, .rotary = dim >= 22 ? 22 : 2});
  check_query({.heads = 7, .dim = 100, .rotary = 38, .pairing = RopePairing::half_split, .rope_slice = RopeSlice::first});
}

}  // namespace
}  // namespace strata::test
