// Recordings of transformers' attention modules in float32, replayed from the checkpoints that transformers saved. The recordings round
// nothing, so the errors are those of this library's bf16: 0.004 to 0.0063 on a CPU.
#include <gtest/gtest.h>

#include "golden/schedule.h"
#include "runner/replay.h"
#include "test_data.h"
#include "tested_device.h"

namespace strata {
namespace {

using runner::ReplayOptions;
using runner::ReplayResult;
using runner::TopkSource;

constexpr double kBound = 1.2e-2;

struct Model {
  const char* name;
  size_t layers;
  bool selects;  // has an indexer
  bool v4;
};
constexpr Model kV3{"hf_v3", 1, false, false};
constexpr Model kGlm5{"hf_glm5", 2, true, false};
constexpr Model kGlm47Flash{"hf_glm47_flash", 1, false, false};
constexpr Model kV4{"hf_v4", 3, true, true};
constexpr Model kModels[] = {kV3, kGlm5, kGlm47Flash, kV4};

// Transformers keeps keys as they are, and so must the cache: V4's own format is FP8.
ReplayOptions as_recorded(const Model& model) {
  ReplayOptions options;
  if (model.v4) options.layer.kv_format = KvFormat::bf16;
  if (model.selects) options.topk = TopkSource::recorded;
  return options;
}

std::vector<ReplayResult> run(const Model& model, const Schedule& schedule, ReplayOptions options, const Config& config = {}) {
  options.together = schedule.together;
  options.chunk = schedule.chunk;
  options.layer.context_chunk_rows = 100;  // more than one chunk of context, and a last one that is not full
  options.shuffle_pages = true;
  options.poison = true;
  const std::string folder = test::golden_folder(model.name).string();
  const Checkpoint checkpoint(folder);
  const SafetensorsFile file(folder + "/cases.safetensors");
  std::vector<ReplayResult> results =
      runner::replay(checkpoint, file, test::open_tested_device(config), default_ops(), default_layers(), options);
  EXPECT_EQ(results.size(), 3 * model.layers);
  return results;
}

void expect_all_agree(const std::vector<ReplayResult>& results, double bound) {
  for (const ReplayResult& r : results) {
    SCOPED_TRACE("layer " + std::to_string(r.layer) + " sequence " + std::to_string(r.sequence));
    EXPECT_EQ(r.expected, "out");
    EXPECT_LE(r.out_error, bound);
    EXPECT_GT(r.out_error, 0);
  }
}

class GoldenTransformers : public test::TestedDevice,
                           public testing::WithParamInterface<std::tuple<Model, Schedule, MlaMode, PrefillMode>> {};

TEST_P(GoldenTransformers, Agrees) {
  const auto& [model, schedule, mode, prefill] = GetParam();
  ReplayOptions options = as_recorded(model);
  options.layer.mla_mode = mode;
  options.layer.prefill_mode = prefill;
  expect_all_agree(run(model, schedule, options), kBound);
}

std::string case_name(const testing::TestParamInfo<GoldenTransformers::ParamType>& test) {
  const auto& [model, schedule, mode, prefill] = test.param;
  return std::string(model.name) + "_" + schedule.name +
         (mode == MlaMode::mha   ? "_mha"
          : mode == MlaMode::mqa ? "_mqa"
                                 : "") +
         (prefill == PrefillMode::gathered ? "_gathered"
          : prefill == PrefillMode::paged  ? "_paged"
                                           : "");
}
INSTANTIATE_TEST_SUITE_P(Dense, GoldenTransformers,
                         testing::Combine(testing::Values(kV3, kGlm47Flash), testing::ValuesIn(kSchedules),
                                          testing::Values(MlaMode::automatic, MlaMode::mha, MlaMode::mqa),
                                          testing::Values(PrefillMode::automatic)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Sparse, GoldenTransformers,
                         testing::Combine(testing::Values(kGlm5, kV4), testing::ValuesIn(kSchedules), testing::Values(MlaMode::automatic),
                                          testing::Values(PrefillMode::gathered, PrefillMode::paged)),
                         case_name);

TEST(GoldenTransformersReference, TheReferenceBackendAgreesToo) {
  Config config;
  config.force["*"] = "reference";
  for (const Model& model : kModels) {
    SCOPED_TRACE(model.name);
    expect_all_agree(run(model, {"chunk64", true, 64}, as_recorded(model), config), kBound);
  }
}

using GoldenTransformersSelection = test::TestedDevice;
using GoldenTransformersSpellings = test::TestedDevice;
using GoldenTransformersCaches = test::TestedDevice;

// The layer's own selection: an indexer that rotates other pairs agrees in 0.66 to 0.95 of the entries. Where the layers differ, candidates
// are as good as each other within bf16.
TEST_F(GoldenTransformersSelection, AnUnquantisedIndexerSelectsTheSame) {
  for (const Model& model : {kGlm5, kV4}) {
    ReplayOptions options = as_recorded(model);
    options.topk = TopkSource::own;
    options.layer.indexer_format = IndexerFormat::none;
    int selections = 0;
    for (const ReplayResult& r : run(model, {"chunk64", true, 64}, options)) {
      SCOPED_TRACE(std::string(model.name) + " layer " + std::to_string(r.layer) + " sequence " + std::to_string(r.sequence));
      if (r.topk_agreement < 0) continue;  // no more candidates than are selected
      EXPECT_GE(r.topk_agreement, 0.99);
      ++selections;
    }
    EXPECT_EQ(selections, model.v4 ? 2 : 6) << model.name;
  }
}

// The same tensors and config in other spellings: DeepSeek's names and keys, and a language model inside a larger one.
std::string official_name(std::string name, bool v4) {
  const auto replace = [&](const std::string& from, const std::string& to) {
    if (const size_t at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
  };
  if (!v4) return name;
  replace("model.layers.", "layers.");
  replace(".attn.norm.", ".attn.kv_norm.");
  return name;
}

TEST_F(GoldenTransformersSpellings, OtherSpellingsGiveTheSameBits) {
  for (const Model& model : kModels) {
    SCOPED_TRACE(model.name);
    const std::string folder = test::golden_folder(model.name).string();
    const SafetensorsFile tensors(folder + "/model.safetensors"), cases(folder + "/cases.safetensors");
    ReplayOptions options = as_recorded(model);
    const auto outputs = [&](const Checkpoint& checkpoint) {
      return runner::replay(checkpoint, cases, test::open_tested_device(), default_ops(), default_layers(), options);
    };
    const auto respelled = [&](const std::string& prefix) {
      std::vector<StoredTensor> renamed = tensors.tensors();
      for (StoredTensor& t : renamed) t.name = prefix + official_name(t.name, model.v4);
      return Checkpoint(ModelConfig::parse(ModelConfig::load(folder).to_json()), renamed);
    };
    const auto expected = outputs(Checkpoint(folder));
    for (const char* prefix : {"", "language_model."}) {
      const auto results = outputs(respelled(prefix));
      ASSERT_EQ(results.size(), expected.size()) << prefix;
      for (size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i].out, expected[i].out) << prefix;
    }
  }
}

// The recordings have no quantised caches: results with them must be near, within the formats' rounding.
TEST_F(GoldenTransformersCaches, QuantisedFormatsAgreeWithinTheirPrecision) {
  for (const Model& model : kModels) {
    for (const KvFormat format : {KvFormat::fp8_tensor, model.v4 ? KvFormat::fp8_ds_mla_v4 : KvFormat::fp8_ds_mla}) {
      SCOPED_TRACE(std::string(model.name) + " " + std::string(to_string(format)));
      ReplayOptions options = as_recorded(model);
      options.layer.kv_format = format;
      expect_all_agree(run(model, {"chunk64", true, 64}, options), 4.5e-2);
    }
  }
}

}  // namespace
}  // namespace strata
