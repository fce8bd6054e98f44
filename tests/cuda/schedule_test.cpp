// Schedules of 128:1 attention in whole steps: what the builder makes follows the step's lengths, and a layer's outputs are those without.
#include <cstring>

#include "backends/cuda/sparse_attn_decode/sm90/schedule.h"
#include "cuda/cuda_fixture.h"
#include "testkit/harness/fill_caches.h"
#include "formats/bf16.h"
#include "runner/model_runner.h"
#include "test_data.h"

namespace strata {
namespace {

constexpr int64_t kHidden = 256, kMaxLen = 200000, kRequests = 8, kWindow = 128, kRatio = 128;
constexpr int64_t kC128Layer = 2;

// What attention was given, and without its schedule if so wanted.
struct Seen {
  bool strip = false;
  int scheduled = 0;
};
OpSet watched_ops(const std::shared_ptr<Seen>& seen) {
  OpSet ops = default_ops();
  const Op<SparseAttnDecodeParams> inner = ops.sparse_attn_decode;
  const auto given = [seen](SparseAttnDecodeParams p) {
    if (seen->strip) p.schedule = {};
    return p;
  };
  ops.sparse_attn_decode.prepend(
      {.name = "watched",
       .supports = [](const SparseAttnDecodeParams&, const Device&) { return Support::yes(); },
       .workspace_bytes = [=](const SparseAttnDecodeParams& p, const Device& device) { return inner.workspace_bytes(given(p), device); },
       .run =
           [=](const SparseAttnDecodeParams& p, const ExecutionContext& context) {
             seen->scheduled += p.schedule.present();
             inner(given(p), context);
           }});
  return ops;
}

class Schedules : public test::HopperTest {
 protected:
  // A 128:1 layer with random caches, as if requests of these lengths had come so far.
  struct Session {
    std::shared_ptr<Seen> seen = std::make_shared<Seen>();
    Checkpoint checkpoint{test::golden_folder("v4_fp8").string()};
    std::unique_ptr<runner::ModelRunner> runner;
    std::vector<runner::StepRequest> requests;
    Tensor hidden, out;

    Session(const std::shared_ptr<Device>& device, bool strip) {
      seen->strip = strip;
      runner::RunnerOptions options;
      options.layer.limits = {.max_num_batched_tokens = 64, .max_num_seqs = kRequests, .max_model_len = kMaxLen};
      options.total_positions = kRequests * kMaxLen;
      runner = std::make_unique<runner::ModelRunner>(checkpoint, std::vector<int64_t>{kC128Layer}, device, watched_ops(seen),
                                                     default_layers(), options);
      testkit::Rng rng(3);
      testkit::fill_caches(runner->pool().layer(0), *device, rng);
      std::vector<float> values(static_cast<size_t>(kRequests * kHidden));
      rng.normal(values.data(), std::ssize(values), 1.0f);
      std::vector<Bf16> rounded;
      for (const float v : values) rounded.push_back(to_bf16(v));
      hidden = Tensor(device, DType::bf16, {kRequests, kHidden});
      out = Tensor(device, DType::bf16, {kRequests, kHidden});
      device->copy_from_host(hidden.view().data, rounded.data(), rounded.size() * sizeof(Bf16), {});
      device->synchronize({});
    }
    void set_lengths(const std::vector<int64_t>& lengths) {
      for (const runner::StepRequest& r : requests) runner->remove_request(r.id);
      requests.clear();
      for (int64_t i = 0; i < std::ssize(lengths); ++i) {
        runner->add_request(i);
        runner->pretend_position(i, lengths[static_cast<size_t>(i)] - 1);
        requests.push_back({i, 1});
      }
    }
    std::vector<float> output() const {
      const int64_t tokens = runner->batch().num_tokens;
      std::vector<Bf16> raw(static_cast<size_t>(tokens * kHidden));
      runner->device()->copy_to_host(raw.data(), out.view().data, raw.size() * sizeof(Bf16), runner->stream());
      runner->device()->synchronize(runner->stream());
      std::vector<float> values;
      for (const Bf16 v : raw) values.push_back(to_float(v));
      return values;
    }
    std::vector<float> step(BatchPadding padding) {
      const Batch& batch = runner->begin_step(requests, padding);
      runner->device()->fill(out.view().data, 0xFF, out.allocated_bytes(), runner->stream());
      runner->run_layer(0, hidden.view().slice(0, batch.num_tokens), out.view().slice(0, batch.num_tokens));
      std::vector<float> values = output();
      runner->end_step();
      return values;
    }
  };
};

constexpr BatchPadding kCaptured{.num_tokens = kRequests, .num_requests = kRequests, .max_seq_len = kMaxLen};
// One long request among short ones, one without compressed entries, one of a single token.
const std::vector<int64_t> kLengths{300, 190000, 20000, 1, 127, 4097};

TEST_F(Schedules, ALayersOutputsAreThoseWithout) {
  Session with(device_, false), without(device_, true);
  for (const BatchPadding padding : {BatchPadding{}, kCaptured}) {
    SCOPED_TRACE(padding.max_seq_len);
    *with.seen = {}, *without.seen = {.strip = true};
    with.set_lengths(kLengths), without.set_lengths(kLengths);
    const std::vector<float> a = with.step(padding), b = without.step(padding);
    EXPECT_EQ(with.seen->scheduled, 1);
    test::expect_alike(a, b);
  }
}

// A step that was captured with short requests, launched with others, of which one is long.
TEST_F(Schedules, ACapturedStepGoesByTheLengthsOfEachLaunch) {
  Session session(device_, false);
  session.set_lengths({300, 200, 100, 50, 40, 30});
  const Batch& first = session.runner->begin_step(session.requests, kCaptured);
  const TensorView schedule = first.c128_schedule;
  ASSERT_TRUE(schedule.present());
  const auto run_layer = [&] { session.runner->run_layer(0, session.hidden, session.out); };
  run_layer();
  const auto graph = device_->capture(session.runner->stream(), run_layer);
  session.runner->end_step();
  for (const std::vector<int64_t>& lengths : {kLengths, std::vector<int64_t>{5, 199999, 100000, 150000, 7, 9, 199000, 3}}) {
    session.set_lengths(lengths);
    const Batch& batch = session.runner->begin_step(session.requests, kCaptured);
    EXPECT_EQ(batch.c128_schedule.data, schedule.data);
    EXPECT_EQ(batch.c128_schedule.shape, schedule.shape);
    device_->fill(session.out.view().data, 0xFF, session.out.allocated_bytes(), session.runner->stream());
    device_->launch(graph, session.runner->stream());
    const std::vector<float> launched = session.output();
    device_->fill(session.out.view().data, 0xFF, session.out.allocated_bytes(), session.runner->stream());
    run_layer();
    EXPECT_EQ(launched, session.output());
    session.runner->end_step();
  }
  device_->destroy_graph(graph);
}

TEST_F(Schedules, PiecesHaveTheRowsOfTheDecodeTokens) {
  Session session(device_, false);
  session.set_lengths(kLengths);
  const Batch& batch = session.runner->begin_step(session.requests, kCaptured);
  ASSERT_TRUE(batch.c128_schedule.present());
  device_->synchronize(session.runner->stream());
  const std::vector<uint8_t> bytes = bytes_at(batch.c128_schedule.data, static_cast<size_t>(batch.c128_schedule.numel()));
  const std::vector<int32_t> window = i32_of(batch.swa_lens), entries = i32_of(batch.c128_lens);
  std::vector<int64_t> rows(static_cast<size_t>(batch.num_decode_tokens), 0), seen = rows;
  int64_t work_items = 0;
  cuda::sparse_decode::WorkItemRow work_item;
  for (size_t at = 0;; at += sizeof work_item) {
    std::memcpy(&work_item, bytes.data() + at, sizeof work_item);
    if (work_item.token < 0) break;
    const auto token = static_cast<size_t>(work_item.token);
    ASSERT_LT(token, rows.size());
    EXPECT_EQ(work_item.main, window[token]);
    EXPECT_EQ(work_item.all, window[token] + entries[token]);
    rows[token] += work_item.end_row - work_item.first_row, ++seen[token], ++work_items;
  }
  EXPECT_EQ(std::ssize(rows), kRequests) << "padding requests too";
  EXPECT_GT(work_items, kRequests) << "the long one is cut";
  for (size_t t = 0; t < rows.size(); ++t) {
    const int64_t length = t < kLengths.size() ? kLengths[t] : 0;
    EXPECT_EQ(rows[t], std::min(length, kWindow) + length / kRatio) << t;
    EXPECT_GE(seen[t], 1) << t;
  }
}

TEST_F(Schedules, AreThereWhereTheyAreFaster) {
  Session session(device_, false);
  const auto has_schedule = [&](const std::vector<int64_t>& lengths, BatchPadding padding) {
    session.set_lengths(lengths);
    const bool has = session.runner->begin_step(session.requests, padding).c128_schedule.present();
    session.runner->end_step();
    return has;
  };
  EXPECT_FALSE(has_schedule({20000, 20000, 20000}, {}));
  EXPECT_FALSE(has_schedule({300, 200, 100}, {}));
  BatchPadding near = kCaptured;
  near.max_seq_len = 20000;
  EXPECT_FALSE(has_schedule({300, 200, 100}, near));
  EXPECT_TRUE(has_schedule({300, 200, 100}, kCaptured));
}

}  // namespace
}  // namespace strata
