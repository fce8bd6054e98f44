// synthesize_checkpoint: official names and shapes, FP8 scales, value statistics, determinism.
#include <cmath>
#include <map>
#include <set>

#include "checkpoint_files.h"
#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "formats/ue8m0.h"

namespace strata::test {
namespace {

std::string read_all(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<double> values_of(const Checkpoint& c, const std::string& name) {
  const StoredTensor& t = *c.find(name);
  // [n, k] FP8 matrices have block scales, in one spelling or the other.
  const std::string stem = name.substr(0, name.rfind('.') + 1);
  const StoredTensor* e8m0 = c.find(stem + "scale");
  const StoredTensor* f32 = c.find(stem + "weight_scale_inv");
  std::vector<double> values(static_cast<size_t>(t.numel()));
  for (int64_t i = 0; i < t.numel(); ++i) {
    double& value = values[static_cast<size_t>(i)];
    if (t.dtype == DType::f32) {
      value = reinterpret_cast<const float*>(t.data)[i];
    } else if (t.dtype == DType::bf16) {
      value = to_float(reinterpret_cast<const Bf16*>(t.data)[i]);
    } else {
      const int64_t block = i / t.shape[1] / 128 * (e8m0 ? e8m0 : f32)->shape[1] + i % t.shape[1] / 128;
      const float scale =
          e8m0 ? to_float(reinterpret_cast<const E8m0*>(e8m0->data)[block]) : reinterpret_cast<const float*>(f32->data)[block];
      value = double{to_float(reinterpret_cast<const E4m3*>(t.data)[i])} * scale;
    }
  }
  return values;
}

void expect_moments(const std::vector<double>& values, double mean, double stddev) {
  double sum = 0, squares = 0;
  for (const double v : values) sum += v;
  const double m = sum / static_cast<double>(values.size());
  for (const double v : values) squares += (v - m) * (v - m);
  const double s = std::sqrt(squares / static_cast<double>(values.size()));
  // Four standard errors; blocks of different gains make the spread of FP8 matrices vary more.
  EXPECT_NEAR(m, mean, 4 * stddev / std::sqrt(static_cast<double>(values.size())));
  EXPECT_NEAR(s / stddev, 1.0, 0.25);
}

TEST(Synthesize, V4TensorsAreTheOfficialOnes) {
  const TempDir dir;
  ModelConfig config = preset("v4-tiny");
  config.num_nextn_predict_layers = 1;
  config.compress_ratios.push_back(0);
  synthesize_checkpoint(config, {}, dir.path());
  const Checkpoint c(dir.path());
  EXPECT_EQ(c.config(), config);
  EXPECT_EQ(c.attention_layers(), (std::vector<int64_t>{0, 1, 2, 3}));
  const auto expect = [&](const std::string& name, DType dtype, const std::vector<int64_t>& shape) {
    const StoredTensor* t = c.find(name);
    ASSERT_NE(t, nullptr) << name;
    EXPECT_EQ(t->dtype, dtype) << name;
    EXPECT_EQ(t->shape, shape) << name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t->data) % size_of(dtype), 0u) << name;
  };
  for (const std::string p : {"layers.0.attn.", "layers.1.attn.", "layers.2.attn.", "mtp.0.attn."}) {
    expect(p + "wq_a.weight", DType::e4m3, {256, 512});
    expect(p + "wq_a.scale", DType::e8m0, {2, 4});
    expect(p + "q_norm.weight", DType::bf16, {256});
    expect(p + "wq_b.weight", DType::e4m3, {4096, 256});
    expect(p + "wq_b.scale", DType::e8m0, {32, 2});
    expect(p + "wkv.weight", DType::e4m3, {512, 512});
    expect(p + "wkv.scale", DType::e8m0, {4, 4});
    expect(p + "kv_norm.weight", DType::bf16, {512});
    expect(p + "wo_a.weight", DType::e4m3, {512, 2048});
    expect(p + "wo_a.scale", DType::e8m0, {4, 16});
    expect(p + "wo_b.weight", DType::e4m3, {512, 512});
    expect(p + "wo_b.scale", DType::e8m0, {4, 4});
    expect(p + "attn_sink", DType::f32, {8});
  }
  const std::string c4 = "layers.1.attn.", c128 = "layers.2.attn.";
  expect(c4 + "compressor.ape", DType::f32, {4, 1024});
  expect(c4 + "compressor.wkv.weight", DType::bf16, {1024, 512});
  expect(c4 + "compressor.wgate.weight", DType::bf16, {1024, 512});
  expect(c4 + "compressor.norm.weight", DType::bf16, {512});
  expect(c4 + "indexer.wq_b.weight", DType::e4m3, {1024, 256});
  expect(c4 + "indexer.wq_b.scale", DType::e8m0, {8, 2});
  expect(c4 + "indexer.weights_proj.weight", DType::bf16, {8, 512});
  expect(c4 + "indexer.compressor.ape", DType::f32, {4, 256});
  expect(c4 + "indexer.compressor.wkv.weight", DType::bf16, {256, 512});
  expect(c4 + "indexer.compressor.wgate.weight", DType::bf16, {256, 512});
  expect(c4 + "indexer.compressor.norm.weight", DType::bf16, {128});
  expect(c128 + "compressor.ape", DType::f32, {128, 512});
  expect(c128 + "compressor.wkv.weight", DType::bf16, {512, 512});
  expect(c128 + "compressor.norm.weight", DType::bf16, {512});
  // 13 of every layer, 4 of a compressor, 3 and another compressor of the indexer: nothing else.
  EXPECT_EQ(c.names().size(), 4u * 13 + 2 * 4 + 3 + 4);
}

TEST(Synthesize, ValuesHaveTheirSize) {
  const TempDir dir;
  synthesize_checkpoint(preset("v4-tiny"), {}, dir.path());
  const Checkpoint c(dir.path());
  const std::string p = "layers.1.attn.";
  expect_moments(values_of(c, p + "wq_b.weight"), 0, 1 / std::sqrt(256.0));
  expect_moments(values_of(c, p + "wo_a.weight"), 0, 1 / std::sqrt(2048.0));
  expect_moments(values_of(c, p + "compressor.wkv.weight"), 0, 1 / std::sqrt(512.0));
  expect_moments(values_of(c, p + "compressor.wgate.weight"), 0, 2 / std::sqrt(512.0));
  expect_moments(values_of(c, p + "compressor.ape"), 0, 0.5);
  expect_moments(values_of(c, p + "kv_norm.weight"), 1, 0.1);
  // A scale read from a wrong address must show.
  const StoredTensor& scale = *c.find(p + "wq_b.scale");
  std::set<int> bytes;
  for (int64_t i = 0; i < scale.numel(); ++i) bytes.insert(std::to_integer<int>(scale.data[i]));
  EXPECT_GE(bytes.size(), 2u);
  EXPECT_LE(bytes.size(), 3u);
}

TEST(Synthesize, Bf16) {
  const TempDir dir;
  synthesize_checkpoint(preset("v4-tiny"), {.fp8 = false}, dir.path());
  const Checkpoint c(dir.path());
  EXPECT_FALSE(c.config().fp8_weights);
  EXPECT_EQ(c.find(0, "wq_a.scale"), nullptr);
  EXPECT_EQ(c.require(0, "wq_a.weight").dtype, DType::bf16);
  expect_moments(values_of(c, "layers.0.attn.wq_b.weight"), 0, 1 / std::sqrt(256.0));
}

TEST(Synthesize, FewerLayers) {
  const TempDir dir;
  ModelConfig config = preset("v4-tiny");
  config.num_nextn_predict_layers = 1;
  synthesize_checkpoint(config, {.num_layers = 2}, dir.path());
  const Checkpoint c(dir.path());
  EXPECT_EQ(c.attention_layers(), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(c.config().compress_ratios, (std::vector<int32_t>{0, 4}));
  expect_parts(message_of(ErrorCode::invalid_argument, [&] { synthesize_checkpoint(config, {.num_layers = 4}, dir.path()); }),
               {"num_layers", "0 to num_hidden_layers = 3", "is 4"});
}

ModelConfig small_mla(const std::string& name) {
  ModelConfig c = preset(name);
  c.hidden_size = 256;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 2;
  if (c.q_lora_rank > 0) c.q_lora_rank = 128;
  if (c.index_topk > 0) c.index_n_heads = 4;
  return c;
}

TEST(Synthesize, MlaTensorsAreTheOfficialOnes) {
  const TempDir dir;
  synthesize_checkpoint(small_mla("v3.2"), {}, dir.path());
  const Checkpoint c(dir.path());
  EXPECT_EQ(c.attention_layers(), (std::vector<int64_t>{0, 1, 2}));
  const std::string p = "model.layers.2.self_attn.";
  ASSERT_NE(c.find(p + "kv_a_proj_with_mqa.weight"), nullptr);
  EXPECT_EQ(c.find(p + "kv_a_proj_with_mqa.weight")->shape, (std::vector<int64_t>{576, 256}));
  EXPECT_EQ(c.find(p + "kv_a_proj_with_mqa.weight_scale_inv")->shape, (std::vector<int64_t>{5, 2}));
  EXPECT_EQ(c.find(p + "kv_a_proj_with_mqa.weight_scale_inv")->dtype, DType::f32);
  EXPECT_EQ(c.find(p + "q_b_proj.weight")->shape, (std::vector<int64_t>{384, 128}));
  EXPECT_EQ(c.find(p + "kv_b_proj.weight")->shape, (std::vector<int64_t>{512, 512}));
  EXPECT_EQ(c.find(p + "o_proj.weight")->shape, (std::vector<int64_t>{256, 256}));
  EXPECT_EQ(c.find(p + "indexer.wk.weight")->dtype, DType::e4m3);
  EXPECT_EQ(c.find(p + "indexer.weights_proj.weight")->dtype, DType::bf16);
  EXPECT_EQ(c.find(p + "indexer.k_norm.bias")->shape, std::vector<int64_t>{128});
  expect_moments(values_of(c, p + "kv_b_proj.weight"), 0, 1 / std::sqrt(512.0));
}

TEST(Synthesize, MlaWithoutQueryLatentAndWithSharedIndexers) {
  const TempDir dir;
  synthesize_checkpoint(small_mla("v2-lite"), {}, dir.path());
  const Checkpoint lite(dir.path());
  EXPECT_EQ(lite.require(0, "q_proj.weight").shape, (std::vector<int64_t>{384, 256}));
  EXPECT_TRUE(lite.config().fp8_weights);
  EXPECT_FALSE(lite.config().scale_ue8m0);
  expect_moments(values_of(lite, "model.layers.0.self_attn.q_proj.weight"), 0, 1 / 16.0);
  ModelConfig shared = small_mla("v3.2");
  shared.index_topk_pattern = "FS";
  synthesize_checkpoint(shared, {.overwrite = true}, dir.path());
  const Checkpoint c(dir.path());
  EXPECT_NE(c.find(0, "indexer.wk.weight"), nullptr);
  EXPECT_EQ(c.find(1, "indexer.wk.weight"), nullptr);
  EXPECT_NE(c.find(2, "indexer.wk.weight"), nullptr);
}

TEST(Synthesize, SeedDecidesEveryByte) {
  const TempDir a, b, other;
  synthesize_checkpoint(preset("v4-tiny"), {.seed = 7}, a.path());
  synthesize_checkpoint(preset("v4-tiny"), {.seed = 7}, b.path());
  synthesize_checkpoint(preset("v4-tiny"), {.seed = 8}, other.path());
  const std::string bytes = read_all(a.path() / "model.safetensors");
  EXPECT_EQ(bytes, read_all(b.path() / "model.safetensors"));
  EXPECT_NE(bytes, read_all(other.path() / "model.safetensors"));
  const Checkpoint c(a.path());
  EXPECT_NE(values_of(c, "layers.0.attn.attn_sink"), values_of(c, "layers.1.attn.attn_sink"));
}

TEST(Synthesize, ReportsProgress) {
  const TempDir dir;
  size_t last = 0, all = 0;
  synthesize_checkpoint(preset("v4-tiny"), {}, dir.path(), [&](size_t written, size_t total) {
    EXPECT_GT(written, last);
    last = written;
    all = total;
  });
  EXPECT_EQ(last, all);
  size_t stored = 0;
  const SafetensorsFile file(dir.path() / "model.safetensors");
  for (const StoredTensor& t : file.tensors()) stored += t.bytes;
  EXPECT_EQ(all, stored);
}

TEST(Synthesize, LeavesNothingBehindWhenStopped) {
  const TempDir dir;
  EXPECT_THROW(synthesize_checkpoint(preset("v4-tiny"), {}, dir.path(), [](size_t, size_t) { throw std::runtime_error("stop"); }),
               std::runtime_error);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  // Directories that were made for it go, too.
  EXPECT_THROW(
      synthesize_checkpoint(preset("v4-tiny"), {}, dir.path() / "a" / "b", [](size_t, size_t) { throw std::runtime_error("stop"); }),
      std::runtime_error);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(Synthesize, NeverReplacesACheckpointByItself) {
  const TempDir dir;
  const ModelConfig config = preset("v4-tiny");
  synthesize_checkpoint(config, {.num_layers = 1, .seed = 1}, dir.path());
  const std::string weights = read_all(dir.path() / "model.safetensors");
  const auto refusal = [&](const std::filesystem::path& directory, bool overwrite) {
    return message_of(ErrorCode::invalid_argument,
                      [&] { synthesize_checkpoint(config, {.num_layers = 1, .seed = 2, .overwrite = overwrite}, directory); });
  };
  expect_parts(refusal(dir.path(), false), {dir.path().string(), "expected no checkpoint, has ", "overwrite"});
  EXPECT_EQ(read_all(dir.path() / "model.safetensors"), weights);
  // Stopped while it replaces one: what was there stays.
  EXPECT_THROW(
      synthesize_checkpoint(config, {.seed = 2, .overwrite = true}, dir.path(), [](size_t, size_t) { throw std::runtime_error("stop"); }),
      std::runtime_error);
  EXPECT_EQ(read_all(dir.path() / "model.safetensors"), weights);
  EXPECT_EQ(Checkpoint(dir.path()).config().num_hidden_layers, 1);
  dir.write("cases.safetensors", "no part of a checkpoint");
  synthesize_checkpoint(config, {.num_layers = 1, .seed = 2, .overwrite = true}, dir.path());
  EXPECT_NE(read_all(dir.path() / "model.safetensors"), weights);
  EXPECT_EQ(Checkpoint(dir.path()).attention_layers(), std::vector<int64_t>{0});
  // Any file of one counts. Several files are not replaced at all.
  for (const auto& [name, replaceable] : std::map<std::string, bool>{{"config.json", true},
                                                                     {"model.safetensors", true},
                                                                     {"model.safetensors.index.json", false},
                                                                     {"model-00001-of-00163.safetensors", false}}) {
    SCOPED_TRACE(name);
    const TempDir other;
    other.write(name, "x");
    expect_parts(refusal(other.path(), false), {"has " + name});
    if (replaceable) {
      synthesize_checkpoint(config, {.num_layers = 1, .overwrite = true}, other.path());
      EXPECT_NO_THROW(Checkpoint(other.path()));
    } else {
      expect_parts(refusal(other.path(), true), {"has " + name, "never replaced"});
      EXPECT_EQ(read_all(other.path() / name), "x");
    }
  }
}

// Nor if the last file cannot be moved to its name.
TEST(Synthesize, LeavesNoPartOfAConfigThatCannotBeWritten) {
  const TempDir dir;
  std::filesystem::create_directories(dir.path() / "config.json" / "a folder");
  const std::string message = message_of(
      ErrorCode::invalid_argument, [&] { synthesize_checkpoint(preset("v4-tiny"), {.num_layers = 1, .overwrite = true}, dir.path()); });
  EXPECT_THAT(message, ::testing::HasSubstr("has config.json, which is no regular file"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

TEST(Synthesize, DirectoryThatCannotBe) {
  const TempDir dir;
  const auto file = dir.write("file", "x");
  expect_parts(message_of(ErrorCode::invalid_file, [&] { synthesize_checkpoint(preset("v4-tiny"), {}, file / "sub"); }),
               {"sub", "cannot be created"});
}

}  // namespace
}  // namespace strata::test
