// Kernels that go by a schedule give the results without one however the rows are cut: by schedules that no planner would make.
#include <algorithm>
#include <cstring>

#include "backends/cuda/dense_attn_decode/sm90/schedule.h"
#include "backends/cuda/sparse_attn_decode/sm90/schedule.h"
#include "cuda/cuda_fixture.h"
#include "formats/bf16.h"
#include "strata/op_set.h"
#include "testkit/harness/inputs.h"
#include "testkit/harness/paging.h"

namespace strata {
namespace {

class AnySchedule : public test::HopperTest {
 protected:
  template <class Row>
  static TensorView upload(testkit::Inputs& in, const std::vector<Row>& rows) {
    std::vector<uint8_t> bytes(rows.size() * sizeof(Row));
    if (!bytes.empty()) std::memcpy(bytes.data(), rows.data(), bytes.size());
    return in.u8(bytes);
  }

  template <class Params>
  std::vector<float> results(const Op<Params>& op, const Params& p) {
    device_->fill(p.out.data, 0xFF, static_cast<int64_t>(p.out.bytes()), {});
    run(op, p);
    std::vector<Bf16> raw(static_cast<size_t>(p.out.numel()));
    const std::vector<uint8_t> bytes = bytes_at(p.out.data, raw.size() * sizeof(Bf16));
    std::memcpy(raw.data(), bytes.data(), bytes.size());
    std::vector<float> values;
    for (const Bf16 v : raw) values.push_back(to_float(v));
    return values;
  }
};

// Tokens in as many work items as there is room for, in any order; splits are numbered from the end.
template <class Rows>
void cut_tokens(testkit::Rng& rng, const cuda::sparse_decode::Sizes& sizes, const Rows& rows_of,
                std::vector<cuda::sparse_decode::WorkItemRow>& work_items, std::vector<cuda::sparse_decode::CombineRow>& combine_rows) {
  using namespace cuda::sparse_decode;
  std::vector<WorkItemRow> made;
  int64_t left = sizes.further, next_split = sizes.splits();
  for (const int32_t token : rng.permutation(sizes.tokens)) {
    const auto [of_main, all] = rows_of(token);
    const int64_t tiles = ceil_div(all, kRowTile);
    const int64_t further = std::max<int64_t>(std::min({left, tiles - 1, rng.in(0, 2 * sizes.further / sizes.tokens + 3)}), 0);
    std::vector<int32_t> cuts{0, all};
    if (further > 0) {
      const std::vector<int32_t> positions = rng.permutation(tiles - 1);
      for (int64_t i = 0; i < further; ++i) cuts.push_back(static_cast<int32_t>(kRowTile * (positions[static_cast<size_t>(i)] + 1)));
      std::sort(cuts.begin(), cuts.end());
      left -= further, next_split -= further + 1;
      combine_rows.push_back({token, static_cast<int32_t>(next_split), static_cast<int32_t>(further + 1), 77});
    }
    for (int64_t i = 0; i <= further; ++i) {
      const auto at = static_cast<size_t>(i);
      made.push_back({token, further > 0 ? static_cast<int32_t>(next_split + i) : -1, cuts[at], cuts[at + 1], of_main, all, {77, 77}});
    }
  }
  for (const int32_t i : rng.permutation(std::ssize(made))) work_items.push_back(made[static_cast<size_t>(i)]);
  work_items.resize(static_cast<size_t>(sizes.work_items()));
}

TEST_F(AnySchedule, SparseDecode) {
  using namespace cuda::sparse_decode;
  constexpr KvFormat kFormat = KvFormat::fp8_ds_mla_v4;
  constexpr int32_t kMain = 100, kExtra = 900, kDim = 512;
  for (const int64_t heads : {8, 16, 32, 64, 100}) {
    for (const int64_t tokens : {1, 6, 40}) {
      testkit::Inputs in(device_, {.seed = static_cast<uint64_t>(heads + tokens)});
      testkit::Rng& rng = in.rng();
      std::vector<int32_t> main, extra, slots[2];
      for (int64_t t = 0; t < tokens; ++t) {
        main.push_back(static_cast<int32_t>(rng.in(0, kMain + 1)));
        extra.push_back(static_cast<int32_t>(rng.in(0, 4) == 0 ? kExtra : rng.in(0, kExtra + 1)));
        for (int64_t i = 0; i < kMain; ++i) slots[0].push_back(static_cast<int32_t>(rng.in(0, 1024)));
        for (int64_t i = 0; i < kExtra; ++i) slots[1].push_back(static_cast<int32_t>(rng.in(0, 1024)));
      }
      const std::vector<int64_t> filled = testkit::distinct_slots(rng, 1024, 1024);
      const auto cache = [&] { return in.cache({.format = kFormat, .row_dim = kDim, .page_size = 64, .num_pages = 16}, filled, 0.1); };
      SparseAttnDecodeParams p{.q = in.bf16({tokens, 1, heads, kDim}),
                               .cache = cache(),
                               .indices = in.values(DType::i32, {tokens, 1, kMain}, slots[0]),
                               .topk_length = in.i32(main),
                               .extra_cache = cache(),
                               .extra_indices = in.values(DType::i32, {tokens, 1, kExtra}, slots[1]),
                               .extra_topk_length = in.i32(extra),
                               .softmax_scale = 0.05f,
                               .out = in.output(DType::bf16, {tokens, 1, heads, kDim})};
      const Op<SparseAttnDecodeParams> op = default_ops().sparse_attn_decode;
      const std::vector<float> plain = results(op, p);
      const Problem problem{.tokens = tokens,
                            .heads = heads,
                            .tiles = ceil_div(kMain + kExtra, kRowTile),
                            .num_sms = device_->properties().num_sms,
                            .format = kFormat,
                            .batch_invariant = false};
      const Sizes sizes{tokens, max_further_work_items(problem, block_of_schedule(problem)->heads)};
      for (int i = 0; i < 3; ++i) {
        SCOPED_TRACE(testing::Message() << heads << " heads, " << tokens << " tokens, schedule " << i);
        std::vector<WorkItemRow> work_items;
        std::vector<CombineRow> combine_rows;
        const auto rows_of = [&](int32_t t) {
          const auto at = static_cast<size_t>(t);
          return std::pair{main[at], main[at] + extra[at]};
        };
        cut_tokens(rng, sizes, rows_of, work_items, combine_rows);
        // Unused rows of the combine step, if there is room.
        if (i == 1) combine_rows.resize(static_cast<size_t>(sizes.combine_rows()));
        std::vector<int32_t> words(static_cast<size_t>(sizes.bytes_of(std::ssize(combine_rows))) / sizeof(int32_t));
        std::memcpy(words.data(), work_items.data(), work_items.size() * sizeof(WorkItemRow));
        if (!combine_rows.empty())
          std::memcpy(words.data() + 8 * work_items.size(), combine_rows.data(), combine_rows.size() * sizeof(CombineRow));
        p.schedule = upload(in, words);
        EXPECT_NE(op.select(p, *device_).name.find("scheduled"), std::string::npos);
        test::expect_alike(results(op, p), plain);
      }
    }
  }
}

// Rows cut anywhere at tiles; the last work ranges may have none.
std::vector<cuda::dense_decode::WorkRangeRow> cut_requests(testkit::Rng& rng, const std::vector<std::pair<int64_t, int64_t>>& requests,
                                                           int64_t work_ranges) {
  using namespace cuda::dense_decode;
  struct RowPosition {
    int32_t request, row;
  };
  std::vector<RowPosition> positions;
  for (size_t r = 0; r < requests.size(); ++r) {
    const int64_t rows = requests[r].second > 0 ? std::max<int64_t>(requests[r].first, 1) : 0;
    for (int64_t row = 0; row < rows; row += kTileRows) positions.push_back({static_cast<int32_t>(r), static_cast<int32_t>(row)});
  }
  std::vector<int32_t> at = rng.permutation(std::ssize(positions));
  at.erase(std::find(at.begin(), at.end(), 0));
  at.resize(std::min<size_t>(at.size(), static_cast<size_t>(rng.in(0, work_ranges))));
  at.push_back(0);
  std::sort(at.begin(), at.end());
  std::vector<RowPosition> cuts;
  for (const int32_t i : at) cuts.push_back(positions[static_cast<size_t>(i)]);
  cuts.resize(static_cast<size_t>(work_ranges) + 1, {static_cast<int32_t>(requests.size()), 0});
  std::vector<WorkRangeRow> rows;
  std::vector<std::vector<int32_t>> requests_of, work_ranges_of(requests.size());  // whose rows a work range has, and the other way round
  for (size_t i = 0; i < static_cast<size_t>(work_ranges); ++i) {
    const RowPosition &first = cuts[i], &next = cuts[i + 1];
    rows.push_back({first.request, first.row, next.request, next.row});
    requests_of.emplace_back();
    for (int32_t r = first.request; r < next.request + (next.row > 0 ? 1 : 0); ++r) {
      if (requests[static_cast<size_t>(r)].second == 0) continue;
      requests_of.back().push_back(r);
      work_ranges_of[static_cast<size_t>(r)].push_back(static_cast<int32_t>(i));
    }
  }
  int32_t shared = 0, neighbours = 0;
  for (const std::vector<int32_t>& of : work_ranges_of) {
    if (of.size() < 2) continue;
    const auto first = static_cast<size_t>(of[0]);
    rows[first].splits = static_cast<int32_t>(of.size());
    ++shared;
    if (of.size() > 2 || first % 2 != 0 || requests_of[first].size() > 1 || requests_of[first + 1].size() > 1) continue;
    rows[first].is_neighbours = rows[first + 1].is_neighbours = 1;
    ++neighbours;
  }
  for (WorkRangeRow& row : rows) row.shared = shared, row.neighbours = neighbours;
  return rows;
}

TEST_F(AnySchedule, DenseDecode) {
  constexpr int32_t kRow = 576, kPage = 64;
  std::vector<std::pair<int64_t, int64_t>> few{{1200, 2}, {49, 1}, {0, 0}, {700, 3}, {1, 1}, {10, 2}}, many, pairs;
  for (int64_t i = 0; i < 600; ++i) many.emplace_back(1 + i * 37 % 130, i % 11 == 3 ? 0 : 1);
  for (int64_t i = 0; i < 60; ++i) pairs.emplace_back(400 + i, 1);
  struct Call {
    const std::vector<std::pair<int64_t, int64_t>>& requests;
    int64_t heads;
    std::vector<int64_t> work_ranges;
  };
  for (const auto format : {KvFormat::bf16, KvFormat::fp8_tensor}) {
    for (const Call& call : {Call{few, 1, {1, 7, 40}}, Call{few, 16, {1, 7, 40}}, Call{few, 70, {1, 7, 40}}, Call{many, 2, {2, 77, 132}},
                             Call{pairs, 5, {128, 131, 132}}}) {
      testkit::Inputs in(device_, {.seed = static_cast<uint64_t>(call.heads)});
      std::vector<int32_t> start{0}, lens;
      std::vector<int64_t> rows;
      DenseAttnDecodeParams p;
      for (const auto& [length, queries] : call.requests) {
        start.push_back(start.back() + static_cast<int32_t>(queries));
        lens.push_back(static_cast<int32_t>(length));
        rows.push_back(queries > 0 ? length : 0);
        p.max_query_len = std::max(p.max_query_len, queries), p.max_seq_len = std::max(p.max_seq_len, length);
      }
      const int64_t tokens = start.back();
      const testkit::Paging paging = testkit::make_paging(in.rng(), kPage, rows);
      std::vector<int64_t> slots;
      for (size_t b = 0; b < rows.size(); ++b) {
        for (int64_t j = 0; j < rows[b]; ++j) slots.push_back(paging.slot(static_cast<int64_t>(b), j));
      }
      p.q = in.bf16({tokens, call.heads, kRow});
      p.cache =
          in.cache({.format = format, .row_dim = kRow, .page_size = kPage, .num_pages = paging.num_pages, .scale = 0.01f}, slots, 0.1);
      p.block_table = paging.table(in, {});
      p.query_start_loc = in.i32(start), p.seq_lens = in.i32(lens);
      p.softmax_scale = 0.135f;
      p.out = in.output(DType::bf16, {tokens, call.heads, 512});
      const Op<DenseAttnDecodeParams> op = default_ops().dense_attn_decode;
      const std::vector<float> plain = results(op, p);
      for (const int64_t work_ranges : call.work_ranges) {
        SCOPED_TRACE(testing::Message() << call.requests.size() << " requests, " << call.heads << " heads, " << work_ranges
                                        << " work ranges");
        p.schedule = upload(in, cut_requests(in.rng(), call.requests, work_ranges));
        test::expect_alike(results(op, p), plain);
      }
    }
  }
}

}  // namespace
}  // namespace strata
