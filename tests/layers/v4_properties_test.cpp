// Properties that hold whatever the weights: how tokens are cut into steps, batched, paged and padded must not change what comes out.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "formats/ue8m0.h"
#include "layer_fixture.h"
#include "runner/replay.h"
#include "tested_device.h"

namespace strata {
namespace {

using runner::ReplayOptions;
using runner::ReplayResult;

using V4Properties = test::TestedDevice;

// `model`: a golden one, or a directory.
std::vector<ReplayResult> run(const ReplayOptions& options, const Config& config = {}, const std::string& model = "v4_fp8") {
  const std::string directory = std::filesystem::path(model).is_absolute() ? model : test::golden_model(model);
  const Checkpoint checkpoint(directory);
  const SafetensorsFile file(directory + "/cases.safetensors");
  return runner::replay(checkpoint, file, test::open_tested_device(config), default_ops(), default_layers(), options);
}

double difference(const ReplayResult& a, const ReplayResult& b) {
  EXPECT_EQ(a.out.size(), b.out.size());
  double sum = 0, norm = 0;
  for (size_t i = 0; i < a.out.size(); ++i) {
    sum += (double{a.out[i]} - b.out[i]) * (double{a.out[i]} - b.out[i]);
    norm += double{b.out[i]} * b.out[i];
  }
  return std::sqrt(sum / norm);
}

// Rounding may differ (another order of fp32 sums moves single values of later quantisers by a step); a wrong row may not. The recorded
// selection keeps near-ties of the indexer out of the comparison.
void expect_same(const std::vector<ReplayResult>& a, const std::vector<ReplayResult>& b, double bound) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_LE(difference(a[i], b[i]), bound) << "layer " << a[i].layer << " sequence " << a[i].sequence;
  }
}

ReplayOptions base() {
  ReplayOptions options;
  options.topk = runner::TopkSource::recorded;
  options.layer.prefill_mode = PrefillMode::gathered;
  return options;
}

TEST_F(V4Properties, ChunkedEqualsWholeEqualsTokenByToken) {
  const auto whole = run(base());
  for (int64_t chunk : {1, 7, 64, 129}) {
    ReplayOptions options = base();
    options.chunk = chunk;
    SCOPED_TRACE("chunk " + std::to_string(chunk));
    expect_same(run(options), whole, 4e-3);
  }
}

TEST_F(V4Properties, BatchedEqualsAlone) {
  ReplayOptions alone = base();
  alone.together = false;
  alone.chunk = 50;
  ReplayOptions together = base();
  together.chunk = 50;
  expect_same(run(together), run(alone), 4e-3);
}

TEST_F(V4Properties, PermutedPagesChangeNothing) {
  ReplayOptions shuffled = base();
  shuffled.shuffle_pages = true;
  const auto a = run(shuffled), b = run(base());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].out, b[i].out) << "layer " << a[i].layer;
}

TEST_F(V4Properties, PoisonedUnusedRowsChangeNothing) {
  ReplayOptions poisoned = base();
  poisoned.poison = true;
  const auto a = run(poisoned), b = run(base());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].out, b[i].out) << "layer " << a[i].layer;
}

TEST_F(V4Properties, PaddingChangesNothing) {
  ReplayOptions padded = base();
  padded.pad_tokens = 5;
  padded.chunk = 64;
  ReplayOptions plain = base();
  plain.chunk = 64;
  expect_same(run(padded), run(plain), 4e-3);
}

// Of a model of longer sequences a step's index rows lie further apart than they are wide.
TEST_F(V4Properties, LongerModelsChangeNothing) {
  for (const PrefillMode mode : {PrefillMode::gathered, PrefillMode::paged}) {
    ReplayOptions plain = base();
    plain.layer.prefill_mode = mode;
    plain.chunk = 64;
    ReplayOptions longer = plain;
    longer.max_model_len = 40000;
    const auto a = run(longer), b = run(plain);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].out, b[i].out) << "layer " << a[i].layer;
  }
}

TEST_F(V4Properties, PagedPrefillEqualsGathered) {
  ReplayOptions paged = base();
  paged.layer.prefill_mode = PrefillMode::paged;
  expect_same(run(paged), run(base()), 4e-3);
}

TEST_F(V4Properties, AutomaticPrefillIsGatheredWhereNoRuleWasMeasured) {
  ReplayOptions automatic = base();
  automatic.layer.prefill_mode = PrefillMode::automatic;
  const auto a = run(automatic), b = run(base());
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].out, b[i].out) << "layer " << a[i].layer;
}

TEST_F(V4Properties, Bf16ActivationsDifferByTheQuantisationOnly) {
  ReplayOptions bf16 = base();
  bf16.layer.quantize_activations = false;
  const auto a = run(bf16), b = run(base());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_GT(difference(a[i], b[i]), 1e-3) << "the option changes nothing";
    EXPECT_LE(difference(a[i], b[i]), 8e-2);
  }
}

TEST_F(V4Properties, BatchInvariantModeDoesNotDependOnTheBatch) {
  ReplayOptions alone = base();
  alone.layer.batch_invariant = true;
  alone.layer.prefill_mode = PrefillMode::paged;
  alone.chunk = 1;
  alone.together = false;
  ReplayOptions together = alone;
  together.together = true;
  // The attention is bit-equal by construction; the matrix products around it are so only where their own order does not depend on the
  // batch.
  expect_same(run(together), run(alone), 4e-3);
}

// With FP8 activations a last-bit difference before the quantiser can move a quantised value by a step, 2^-4 of it; with bf16 it cannot.
TEST_F(V4Properties, EveryCpuPathAgrees) {
  for (const auto& [model, bound] : {std::pair{"v4_bf16", 5e-3}, std::pair{"v4_fp8", 1.5e-2}}) {
    const auto best = run(base(), {}, model);
    for (CpuIsa isa : {CpuIsa::portable, CpuIsa::avx2, CpuIsa::avx512, CpuIsa::avx512_bf16}) {
      Config config;
      config.cpu_isa = isa;
      SCOPED_TRACE(std::string(model) + " " + to_string(isa));
      expect_same(run(base(), config, model), best, bound);
    }
    Config one_thread;
    one_thread.cpu_threads = 1;
    expect_same(run(base(), one_thread, model), best, bound);
  }
}

TEST_F(V4Properties, OtherCacheFormatsAgreeWithinTheirPrecision) {
  const auto fp8 = run(base());
  ReplayOptions bf16 = base();
  bf16.layer.kv_format = KvFormat::bf16;
  expect_same(run(bf16), fp8, 5e-2);
  ReplayOptions tensor = base();
  tensor.layer.kv_format = KvFormat::fp8_tensor;
  expect_same(run(tensor), fp8, 8e-2);
}

TEST_F(V4Properties, Fp8OutputPathAgreesWithinItsPrecision) {
  ReplayOptions fp8 = base();
  fp8.layer.fp8_output = true;
  const auto a = run(fp8), b = run(base());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_LE(difference(a[i], b[i]), 5e-2);
    EXPECT_GT(difference(a[i], b[i]), 1e-4) << "the FP8 output path does not seem to quantise";
  }
}

// The FP8 golden model with the FP8 weights whose names contain `part` as the same values in bf16.
void write_partly_bf16(const std::filesystem::path& directory, const std::string& part) {
  const std::filesystem::path golden = test::golden_model("v4_fp8");
  for (const char* name : {"config.json", "cases.safetensors"}) std::filesystem::copy_file(golden / name, directory / name);
  const SafetensorsFile file(golden / "model.safetensors");
  std::vector<StoredTensor> tensors;
  std::vector<std::vector<Bf16>> converted;
  for (const StoredTensor& tensor : file.tensors()) {
    if (tensor.name.find(part) == std::string::npos) {
      tensors.push_back(tensor);
    } else if (tensor.dtype == DType::e4m3) {
      constexpr int64_t kBlock = 128;
      const StoredTensor* scale = file.find(tensor.name.substr(0, tensor.name.size() - std::string("weight").size()) + "scale");
      ASSERT_NE(scale, nullptr) << tensor.name;
      const int64_t n = tensor.shape[0], k = tensor.shape[1];
      std::vector<Bf16>& values = converted.emplace_back(static_cast<size_t>(n * k));
      for (int64_t i = 0; i < n * k; ++i) {
        const int64_t block = i / k / kBlock * scale->shape[1] + i % k / kBlock;
        values[static_cast<size_t>(i)] =
            to_bf16(to_float(reinterpret_cast<const E4m3*>(tensor.data)[i]) * to_float(reinterpret_cast<const E8m0*>(scale->data)[block]));
      }
      const size_t bytes = values.size() * sizeof(Bf16);
      tensors.push_back({tensor.name, DType::bf16, tensor.shape, reinterpret_cast<const std::byte*>(values.data()), bytes});
    }
  }
  ASSERT_FALSE(converted.empty()) << "no FP8 weight is named " << part;
  write_safetensors(directory / "model.safetensors", tensors);
}

// Two products of one latent, of which one takes quantised x and the other bf16: the norm stores bf16, and the first quantises by itself.
TEST_F(V4Properties, Fp8QueryBesideABf16IndexerQuery) {
  const test::ModelDirectory directory;
  write_partly_bf16(directory.path(), "attn.indexer.wq_b.");
  const auto all_fp8 = run(base());
  expect_same(run(base(), {}, directory.string()), all_fp8, 4e-3);
  ReplayOptions own_choice = base();
  own_choice.topk = runner::TopkSource::own;
  expect_same(run(own_choice, {}, directory.string()), all_fp8, 1e-1);
}

}  // namespace
}  // namespace strata
