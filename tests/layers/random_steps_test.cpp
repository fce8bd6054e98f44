// Whole layers, batched against one by one: random requests that advance by random numbers of tokens in random company, drafts and chunks,
// give what each gives alone in one step. Whatever decides by the number of tokens or requests, or by their lengths, is crossed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "testkit/harness/draw.h"
#include "formats/bf16.h"
#include "gpu.h"
#include "mla_model.h"
#include "tested_device.h"

namespace strata {
namespace {

using runner::StepRequest;
using testkit::Draw;

constexpr int64_t kMaxTokens = 448, kMaxRequests = 40, kMaxLength = 400, kTotal = 2000, kDrafts = 3;

struct Request {
  std::vector<Bf16> hidden;
  int64_t length = 0, done = 0;
  std::vector<std::vector<Bf16>> got;  // of each layer
};

class Steps {
 public:
  Steps(const std::string& directory, const std::shared_ptr<Device>& device, const LayerOptions& layer, bool shuffle)
      : checkpoint_(directory), device_(device), width_(checkpoint_.config().hidden_size) {
    runner::RunnerOptions options;
    options.layer = layer;
    options.layer.limits = {
        .max_num_batched_tokens = kMaxTokens, .max_num_seqs = kMaxRequests, .max_model_len = kMaxLength, .num_speculative_tokens = kDrafts};
    options.total_positions = kTotal;
    options.shuffle_pages = shuffle;
    options.fill = 0xFF;
    runner_ = std::make_unique<runner::ModelRunner>(checkpoint_, checkpoint_.attention_layers(), device, default_ops(), default_layers(),
                                                    options);
    hidden_ = Tensor(device, DType::bf16, {kMaxTokens, width_});
    out_ = Tensor(device, DType::bf16, {kMaxTokens, width_});
  }

  int64_t width() const { return width_; }
  size_t num_layers() const { return runner_->num_layers(); }

  void begin(Request& r, int64_t id) {
    r.done = 0;
    r.got.assign(num_layers(), std::vector<Bf16>(r.hidden.size()));
    runner_->add_request(id);
  }
  void end(int64_t id) { runner_->remove_request(id); }

  // The next tokens of these requests, decode requests first.
  void step(std::vector<Request>& requests, const std::vector<StepRequest>& step) {
    int64_t tokens = 0;
    for (const StepRequest& s : step) tokens += s.num_tokens;
    const Stream stream = runner_->stream();
    runner_->begin_step(step);
    const auto each = [&](const auto& copy) {
      int64_t row = 0;
      for (const StepRequest& s : step) {
        Request& r = requests[static_cast<size_t>(s.id)];
        copy(r, r.done * width_, row, static_cast<size_t>(s.num_tokens * width_) * sizeof(Bf16));
        row += s.num_tokens;
      }
    };
    each([&](Request& r, int64_t at, int64_t row, size_t bytes) {
      device_->copy_from_host(hidden_.view().row<Bf16>(row), r.hidden.data() + at, bytes, stream);
    });
    for (size_t l = 0; l < num_layers(); ++l) {
      runner_->run_layer(l, hidden_.view().slice(0, tokens), out_.view().slice(0, tokens));
      each([&](Request& r, int64_t at, int64_t row, size_t bytes) {
        device_->copy_to_host(r.got[l].data() + at, out_.view().row<Bf16>(row), bytes, stream);
      });
    }
    device_->synchronize(stream);
    runner_->end_step();
    for (const StepRequest& s : step) requests[static_cast<size_t>(s.id)].done += s.num_tokens;
  }

 private:
  Checkpoint checkpoint_;
  std::shared_ptr<Device> device_;
  int64_t width_;
  std::unique_ptr<runner::ModelRunner> runner_;
  Tensor hidden_, out_;
};

std::vector<Request> random_requests(Draw& draw, int64_t width) {
  std::vector<Request> requests;
  int64_t left = kTotal;
  const int64_t count = draw.tokens(kMaxRequests - 1) + 1, longest = draw.size(1, kMaxLength);
  while (std::ssize(requests) < count && left > 0) {
    Request& r = requests.emplace_back();
    r.length = std::min(left, draw.chance(0.3) ? longest : draw.size(1, longest));
    left -= (r.length + 255) / 256 * 256;  // whole pages
    std::vector<float> values(static_cast<size_t>(r.length * width));
    testkit::Rng(static_cast<uint64_t>(draw.in(0, 1 << 30))).normal(values.data(), std::ssize(values), 1.0f);
    for (const float v : values) r.hidden.push_back(to_bf16(v));
  }
  return requests;
}

// Some of the requests that are not at their end, each with one token, a few or many.
std::vector<StepRequest> random_step(Draw& draw, const std::vector<Request>& requests) {
  std::vector<StepRequest> step;
  int64_t left = kMaxTokens;
  const double share = draw.of({0.3, 0.8, 1.0});
  for (size_t i = 0; i < requests.size(); ++i) {
    const int64_t rest = requests[i].length - requests[i].done;
    const int64_t wanted = draw.chance(0.4) ? 1 : draw.chance(0.5) ? draw.in(1, kDrafts + 1) : draw.tokens(kMaxLength);
    const int64_t tokens = std::min({wanted, rest, left});
    if (tokens <= 0 || !draw.chance(share)) continue;
    step.push_back({static_cast<int64_t>(i), tokens});
    left -= tokens;
  }
  std::stable_partition(step.begin(), step.end(), [](const StepRequest& s) { return s.num_tokens <= kDrafts + 1; });
  return step;
}

// Of each token by itself, as one of many may be wrong.
double largest_difference(const std::vector<Bf16>& a, const std::vector<Bf16>& b, int64_t width) {
  double largest = 0;
  for (size_t t = 0; t < a.size(); t += static_cast<size_t>(width)) {
    double sum = 0, norm = 0;
    for (size_t i = t; i < t + static_cast<size_t>(width); ++i) {
      const double x = to_float(a[i]), y = to_float(b[i]);
      sum += (x - y) * (x - y), norm += y * y;
    }
    const double difference = std::sqrt(sum / norm);
    if (!(difference <= largest)) largest = difference;  // NaN, too
  }
  return largest;
}

struct Family {
  const char* name;
  const char* model;
};
constexpr Family kFamilies[] = {{"v4", "v4_fp8"}, {"v2_lite", "mla_v2_lite"}, {"v3", "mla_v3"}, {"v32", "mla_v32"}};

class RandomSteps : public test::TestedDevice, public testing::WithParamInterface<Family> {
 protected:
  void check(const std::shared_ptr<Device>& device, int64_t number) const {
    Draw draw(1, number);
    ModelConfig config = ModelConfig::load(test::golden_model(GetParam().model));
    if (config.index_topk > 0)
      config.index_topk = 512;  // everything: which of two equal entries is selected may depend on the other entries
    config.num_attention_heads = draw.of<int64_t>({2, 4, 8, 16});
    const bool fp8 = draw.chance(0.5);
    const auto directory = test::synthesized(config, fp8);
    LayerOptions options;
    options.prefill_mode = draw.of({PrefillMode::paged, PrefillMode::gathered, PrefillMode::automatic});
    if (config.index_topk == 0) options.mla_mode = draw.of({MlaMode::mha, MlaMode::mqa, MlaMode::automatic});
    // Rounding differs, and by one step where activations are quantised. The two forms of dense MLA, of which automatic takes one for
    // prompts and one for decode, quantise other things (0.062). The other layers of a CPU did not differ at all (0.0000); theirs of a GPU
    // were not measured and keep the wide bound.
    const bool two_forms = options.mla_mode == MlaMode::automatic && (config.index_topk == 0 || device->id().kind != DeviceKind::cpu);
    const double bound = fp8 && two_forms ? 0.12 : 0.03;
    options.context_chunk_rows = draw.of<int64_t>({0, 100});
    Steps run(directory->string(), device, options, draw.chance(0.5));
    std::vector<Request> requests = random_requests(draw, run.width()), alone = requests;
    for (size_t i = 0; i < requests.size(); ++i) run.begin(requests[i], static_cast<int64_t>(i));
    while (std::any_of(requests.begin(), requests.end(), [](const Request& r) { return r.done < r.length; })) {
      if (const auto step = random_step(draw, requests); !step.empty()) run.step(requests, step);
    }
    for (size_t i = 0; i < requests.size(); ++i) run.end(static_cast<int64_t>(i));
    for (size_t i = 0; i < alone.size(); ++i) {
      run.begin(alone[i], static_cast<int64_t>(i));
      run.step(alone, {{static_cast<int64_t>(i), alone[i].length}});
      run.end(static_cast<int64_t>(i));
      for (size_t l = 0; l < run.num_layers(); ++l) {
        EXPECT_LE(largest_difference(requests[i].got[l], alone[i].got[l], run.width()), bound)
            << "case " << number << ", layer " << l << ", request " << i << " of " << requests.size() << " with " << alone[i].length
            << " tokens";
      }
    }
  }
};

TEST_P(RandomSteps, BatchedEqualsAlone) {
  const auto device = test::open_tested_device(Config::from_environment());
  const int64_t cases = device->id().kind == DeviceKind::cpu ? 8 : 2;  // OpenCL on a CPU takes longer
  for (int64_t number = 0; number < cases; ++number) check(device, number);
}

TEST_P(RandomSteps, BatchedEqualsAloneOnAGpu) {
  constexpr int64_t kCases = 20;
  const std::shared_ptr<Device> device = test::gpu_or_null();
  if (device == nullptr) GTEST_SKIP() << "no GPU, or a build without CUDA";
  for (int64_t number = 0; number < kCases; ++number) check(device, number);
}

INSTANTIATE_TEST_SUITE_P(Families, RandomSteps, testing::ValuesIn(kFamilies), [](const auto& family) { return family.param.name; });

}  // namespace
}  // namespace strata
