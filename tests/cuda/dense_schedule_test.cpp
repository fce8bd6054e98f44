// Schedules of dense latent attention: what the builder makes follows the step's lengths, and results are those without.
#include <cstring>

#include "backends/cuda/dense_attn_decode/sm90/schedule.h"
#include "cuda/cuda_fixture.h"
#include "formats/bf16.h"
#include "testkit/harness/random.h"
#include "strata/batch.h"
#include "strata/op_set.h"

namespace strata {
namespace {

constexpr int64_t kHeads = 24, kRow = 576, kValue = 512, kPage = 64, kRequests = 8, kMaxLen = 9000;
constexpr int32_t kDrafted = 1;
constexpr BatchPadding kCaptured{.num_tokens = kRequests, .num_requests = kRequests, .max_seq_len = kMaxLen};

class DenseSchedules : public test::HopperTest {
 protected:
  void SetUp() override {
    HopperTest::SetUp();
    if (IsSkipped()) return;
    const int64_t pages = kRequests * ((kMaxLen + kPage - 1) / kPage);
    CacheGroupSpec spec{.group = CacheGroup::mla_latent,
                        .format = KvFormat::bf16,
                        .row_dim = kRow,
                        .page_size = kPage,
                        .page_bytes = kPage * kRow * 2,
                        .num_query_heads = kHeads};
    builder_ = std::make_unique<BatchBuilder>(
        device_, default_ops(),
        BatchLimits{.max_num_batched_tokens = 256, .max_num_seqs = kRequests, .max_model_len = kMaxLen, .num_speculative_tokens = kDrafted},
        std::vector{spec}, std::vector{pages}, 0);
    for (int32_t page = 0; page < pages; ++page) table_.push_back(page);
    rows_ = random({pages * kPage, kRow}, 5);
    q_ = random({256, kHeads, kRow}, 6);
    out_ = Tensor(device_, DType::bf16, {256, kHeads, kValue});
  }

  Tensor random(std::vector<int64_t> shape, uint64_t seed) {
    int64_t count = 1;
    for (const int64_t n : shape) count *= n;
    std::vector<float> values(static_cast<size_t>(count));
    testkit::Rng(seed).normal(values.data(), count, 0.5f);
    std::vector<Bf16> rounded;
    for (const float v : values) rounded.push_back(to_bf16(v));
    Tensor t(device_, DType::bf16, {count});
    device_->copy_from_host(t.view().data, rounded.data(), rounded.size() * sizeof(Bf16), {});
    device_->synchronize({});
    return t;
  }

  const Batch& build(const std::vector<std::pair<int64_t, int64_t>>& lengths_and_queries, BatchPadding padding = {}) {
    std::vector<BatchRequest> requests;
    const auto per_request = table_.size() / kRequests;
    for (const auto& [length, queries] : lengths_and_queries) {
      BatchRequest r{.seq_len = length, .query_len = queries};
      r.block_tables[CacheGroup::mla_latent] = std::span(table_).subspan(requests.size() * per_request, per_request);
      requests.push_back(r);
    }
    return builder_->build(requests, padding);
  }

  // As an MLA layer calls it.
  DenseAttnDecodeParams call(const Batch& batch, bool scheduled) {
    const int64_t n = batch.num_decodes, tokens = batch.num_decode_tokens;
    const auto heads = [&](const Tensor& t, int64_t dim) {
      return TensorView::contiguous(t.view().data, DType::bf16, device_->id(), {tokens, kHeads, dim});
    };
    DenseAttnDecodeParams p{.q = heads(q_, kRow),
                            .block_table = batch[CacheGroup::mla_latent].block_table.slice(0, n),
                            .query_start_loc = batch.query_start_loc.slice(0, n + 1),
                            .seq_lens = batch.seq_lens.slice(0, n),
                            .max_query_len = 1 + kDrafted,
                            .max_seq_len = kMaxLen,
                            .softmax_scale = 0.05f,
                            .out = heads(out_, kValue)};
    p.cache = {.data = rows_.view().data,
               .device = device_->id(),
               .format = KvFormat::bf16,
               .row_dim = kRow,
               .page_size = kPage,
               .num_pages = std::ssize(table_),
               .page_stride = kPage * kRow * 2};
    if (scheduled) p.schedule = batch.mla_schedule;
    return p;
  }

  std::vector<float> output(const DenseAttnDecodeParams& p) {
    std::vector<Bf16> raw(static_cast<size_t>(p.out.numel()));
    device_->copy_to_host(raw.data(), p.out.data, raw.size() * sizeof(Bf16), {});
    device_->synchronize({});
    std::vector<float> values;
    for (const Bf16 v : raw) values.push_back(to_float(v));
    return values;
  }
  std::vector<float> results(const DenseAttnDecodeParams& p) {
    device_->fill(out_.view().data, 0xFF, out_.allocated_bytes(), {});
    run(default_ops().dense_attn_decode, p);
    return output(p);
  }

  std::unique_ptr<BatchBuilder> builder_;
  std::vector<int32_t> table_;
  Tensor rows_, q_, out_;
};

const std::vector<std::pair<int64_t, int64_t>> kLengths{{300, 1}, {8900, 1}, {1, 1}, {48, 1}, {4097, 1}};

TEST_F(DenseSchedules, ResultsAreThoseWithout) {
  for (const BatchPadding padding : {BatchPadding{}, kCaptured}) {
    const Batch& batch = build(kLengths, padding);
    ASSERT_TRUE(batch.mla_schedule.present());
    test::expect_alike(results(call(batch, true)), results(call(batch, false)));
  }
  // Drafted tokens, a request without tokens; then prompts.
  for (const auto& lengths :
       std::vector<std::vector<std::pair<int64_t, int64_t>>>{{{300, 2}, {8900, 1}, {700, 0}, {2, 2}}, {{300, 2}, {8900, 1}, {90, 40}}}) {
    const Batch& batch = build(lengths);
    ASSERT_TRUE(batch.mla_schedule.present());
    test::expect_alike(results(call(batch, true)), results(call(batch, false)));
  }
}

TEST_F(DenseSchedules, WorkRangesHaveTheRowsOfTheDecodeRequests) {
  const Batch& batch = build(kLengths, kCaptured);
  std::vector<cuda::dense_decode::WorkRangeRow> work_ranges(static_cast<size_t>(batch.mla_schedule.numel()) /
                                                            sizeof(cuda::dense_decode::WorkRangeRow));
  const std::vector<uint8_t> bytes = bytes_at(batch.mla_schedule.data, static_cast<size_t>(batch.mla_schedule.numel()));
  std::memcpy(work_ranges.data(), bytes.data(), bytes.size());
  int32_t request = 0, row = 0;
  for (const auto& work_range : work_ranges) {
    EXPECT_EQ(work_range.begin, request);
    EXPECT_EQ(work_range.begin_row, row);
    request = work_range.end, row = work_range.end_row;
    EXPECT_TRUE(request > work_range.begin || row > work_range.begin_row || request == kRequests) << "in order";
  }
  EXPECT_EQ(request, kRequests) << "padding requests too";
  EXPECT_GT(work_ranges[0].shared, 0) << "the long one is cut";
}

// A step that was captured with short requests, launched with others, of which one is long.
TEST_F(DenseSchedules, ACapturedCallGoesByTheLengthsOfEachLaunch) {
  const Op<DenseAttnDecodeParams> op = default_ops().dense_attn_decode;
  const OwnedStream stream(device_);
  const Batch& first = build({{300, 1}, {20, 1}, {1, 1}}, kCaptured);
  const TensorView schedule = first.mla_schedule;
  const DenseAttnDecodeParams p = call(first, true);
  const int64_t bytes = op.workspace_bytes(p, *device_);
  const Tensor workspace(device_, DType::u8, {bytes + 1});
  const auto attend = [&] { op(p, {*device_, stream.get(), {workspace.view().data, bytes}}); };
  attend();
  device_->synchronize(stream.get());
  const auto graph = device_->capture(stream.get(), attend);
  for (const auto& lengths :
       {kLengths, std::vector<std::pair<int64_t, int64_t>>{{5, 1}, {9000, 1}, {8999, 1}, {3, 1}, {8000, 1}, {7, 1}}}) {
    const Batch& batch = build(lengths, kCaptured);
    EXPECT_EQ(batch.mla_schedule.data, schedule.data);
    EXPECT_EQ(batch.mla_schedule.shape, schedule.shape);
    device_->synchronize({});
    device_->fill(out_.view().data, 0xFF, out_.allocated_bytes(), {});
    device_->synchronize({});
    device_->launch(graph, stream.get());
    device_->synchronize(stream.get());
    const std::vector<float> launched = output(p);
    EXPECT_EQ(launched, results(call(batch, true)));
    test::expect_alike(launched, results(call(batch, false)));
  }
  device_->destroy_graph(graph);
}

}  // namespace
}  // namespace strata
