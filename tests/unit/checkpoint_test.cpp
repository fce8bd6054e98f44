// Checkpoint: directories, shards, and every spelling of a tensor's name.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "checkpoint/layer_tensors.h"
#include "checkpoint/tensor_names.h"
#include "checkpoint_files.h"
#include "strata/attention.h"
#include "test_data.h"

namespace strata::test {
namespace {

using nlohmann::json;

void add(TensorList& list, const std::string& name) { list.add<uint8_t>(name, DType::u8, {1}, {static_cast<uint8_t>(name.size())}); }

// A checkpoint with one-byte tensors of these names.
Checkpoint single(const TempDir& dir, const ModelConfig& config, const std::vector<std::string>& names) {
  TensorList list;
  for (const std::string& name : names) add(list, name);
  list.write(dir.path() / "model.safetensors");
  dir.write("config.json", config.to_json());
  return Checkpoint(dir.path());
}

TEST(Checkpoint, FindsEverySpellingOfV4) {
  const ModelConfig config = preset("v4-tiny");
  for (const std::string prefix : {"layers.1.attn.", "layers.1.self_attn.", "model.layers.1.attn.", "model.layers.1.self_attn."}) {
    for (const std::string scale : {"scale", "weight_scale_inv", "weight_scale"}) {
      const TempDir dir;
      const Checkpoint c = single(dir, config, {prefix + "wq_a.weight", prefix + "wq_a." + scale, prefix + "attn_sink"});
      ASSERT_NE(c.find(1, "wq_a.weight"), nullptr);
      EXPECT_EQ(c.find(1, "wq_a.weight")->name, prefix + "wq_a.weight");
      ASSERT_NE(c.find(1, "wq_a.scale"), nullptr);
      EXPECT_EQ(c.find(1, "wq_a.scale")->name, prefix + "wq_a." + scale);
      EXPECT_EQ(c.find(1, "wq_a.weight_scale_inv"), c.find(1, "wq_a.scale"));
      EXPECT_EQ(&c.require(1, "attn_sink"), c.find(prefix + "attn_sink"));
      EXPECT_EQ(c.find(0, "attn_sink"), nullptr);
      EXPECT_EQ(c.attention_layers(), std::vector<int64_t>{1});
    }
  }
}

TEST(Checkpoint, FindsMtpLayers) {
  const ModelConfig config = preset("v4-tiny");  // 3 layers: MTP layer j is layer 3 + j
  for (const std::string prefix : {"mtp.1.attn.", "model.mtp.1.self_attn.", "model.layers.4.self_attn."}) {
    const TempDir dir;
    const Checkpoint c = single(dir, config, {prefix + "attn_sink"});
    EXPECT_EQ(c.require(4, "attn_sink").name, prefix + "attn_sink");
    EXPECT_EQ(c.find(1, "attn_sink"), nullptr);
    EXPECT_EQ(c.attention_layers(), std::vector<int64_t>{4});
  }
}

TEST(Checkpoint, FindsMlaNames) {
  const TempDir dir;
  const std::string prefix = "model.layers.60.self_attn.";
  const Checkpoint c = single(dir, preset("v3"),
                              {prefix + "q_a_proj.weight", prefix + "q_a_proj.weight_scale_inv", "model.layers.61.self_attn.o_proj.weight",
                               "model.embed_tokens.weight"});
  EXPECT_EQ(c.require(60, "q_a_proj.weight").name, prefix + "q_a_proj.weight");
  EXPECT_EQ(c.require(60, "q_a_proj.scale").name, prefix + "q_a_proj.weight_scale_inv");
  EXPECT_EQ(c.require(61, "o_proj.weight").name, "model.layers.61.self_attn.o_proj.weight");
  EXPECT_EQ(c.attention_layers(), (std::vector<int64_t>{60, 61}));
}

TEST(Checkpoint, ListsNamesAndLayersInOrder) {
  const TempDir dir;
  const Checkpoint c =
      single(dir, preset("v4-tiny"),
             {"layers.10.attn.x", "layers.2.attn.x", "layers.2.attn.y", "mtp.0.attn.x", "layers.0.ffn.x", "layers.x.attn.y",
              "layers.-1.attn.y", "layers.99999999999999999999.attn.y", "layers.1000001.attn.y", "layers."});
  EXPECT_EQ(c.attention_layers(), (std::vector<int64_t>{2, 3, 10}));
  const std::vector<std::string> names = c.names();
  EXPECT_EQ(names.size(), 10u);
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_EQ(c.directory(), dir.path());
}

// Two names of one tensor: which one counts is unknown.
TEST(Checkpoint, RefusesTensorsUnderTwoNames) {
  TempDir dir;
  dir.write("config.json", preset("v3-tiny").to_json());
  TensorList list;
  list.add("model.layers.0.self_attn.o_proj.weight", DType::bf16, {1}, std::vector<uint16_t>{1});
  list.add("layers.0.attn.o_proj.weight", DType::bf16, {1}, std::vector<uint16_t>{2});
  list.write(dir.path() / "model.safetensors");
  const Checkpoint checkpoint(dir.path());
  expect_parts(message_of(ErrorCode::invalid_file, [&] { checkpoint.find(0, "o_proj.weight"); }),
               {"model.layers.0.self_attn.o_proj.weight", "expected under one name", "layers.0.attn.o_proj.weight is there too"});
}

// A bias, a sink, an adapter: of an attention that is another one. What is read, and what has no effect, is no fault.
TEST(Checkpoint, RefusesAttentionTensorsThatNoLayerReads) {
  const auto check = [](const char* model, const std::string& suffix) {
    const ModelConfig config = preset(model);
    const std::string name = official_prefix(config, 2) + suffix;
    const Checkpoint checkpoint(config, {{.name = name, .dtype = DType::f32, .shape = {0}, .data = nullptr, .bytes = 0}});
    check_layer_tensors(checkpoint, 1);  // of another layer
    check_layer_tensors(checkpoint, 2);
  };
  const auto expect_refused = [&](const char* model, const std::string& suffix) {
    SCOPED_TRACE(std::string(model) + " " + suffix);
    expect_parts(message_of(ErrorCode::invalid_file, [&] { check(model, suffix); }), {suffix, "expected none of this name"});
  };
  for (const char* suffix : {"q_a_proj.bias", "o_proj.bias", "attn_sink", "sinks", "k_norm.weight", "q_a_proj.lora_A.weight",
                             "g_proj.weight", "kv_a_layernorm.bias", "q_proj.weight", "indexer.wk.weight"}) {
    expect_refused("v3-tiny", suffix);
  }
  expect_refused("v2-lite-tiny", "q_a_proj.weight");
  expect_refused("v4-tiny", "wq_a.bias");
  expect_refused("v4-tiny", "kv_a_layernorm.weight");
  for (const char* suffix : {"q_a_proj.weight", "q_a_proj.weight_scale_inv", "k_scale", "v_scale", "kv_scale", "rotary_emb.inv_freq",
                             "kv_b_proj.weight_scale", "o_proj.qweight"}) {
    EXPECT_NO_THROW(check("v3-tiny", suffix)) << suffix;
  }
  for (const char* suffix : {"indexer.wk.weight", "indexer.k_norm.bias", "indexer.wq_b.weight_scale_inv"}) {
    EXPECT_NO_THROW(check("v3.2-tiny", suffix)) << suffix;
  }
  for (const char* suffix : {"wq_a.scale", "attn_sink", "kv_norm.weight", "norm.weight"})
    EXPECT_NO_THROW(check("v4-tiny", suffix)) << suffix;
}

// Downloads that share files by links, one of which was not completed.
TEST(Checkpoint, NamesLinksThatLeadNowhere) {
  const TempDir dir;
  dir.write("config.json", preset("v3-tiny").to_json());
  std::filesystem::create_symlink("../blobs/1234", dir.path() / "model.safetensors");
  expect_parts(message_of(ErrorCode::invalid_file, [&] { Checkpoint{dir.path()}; }),
               {"model.safetensors", "is a link to ../blobs/1234, which does not exist"});
}

TEST(Checkpoint, MissingTensorListsWhatWasTried) {
  const TempDir dir;
  const Checkpoint c = single(dir, preset("v4-tiny"), {"layers.0.attn.attn_sink"});
  expect_parts(message_of(ErrorCode::invalid_file, [&] { c.require(2, "wkv.scale"); }),
               {"tensor layers.2.attn.wkv.scale", "missing", "model.layers.2.self_attn.wkv.weight_scale_inv",
                "layers.2.self_attn.wkv.weight_scale"});
}

class Sharded : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_.write("config.json", preset("v4-tiny").to_json());
    TensorList first, second;
    add(first, "layers.0.attn.attn_sink");
    add(first, "layers.0.attn.q_norm.weight");
    add(first, "not.indexed");
    add(second, "layers.1.attn.attn_sink");
    first.write(dir_.path() / "model-00001-of-00002.safetensors");
    second.write(dir_.path() / "model-00002-of-00002.safetensors");
    index_ = {{"metadata", {{"total_size", 3}}},
              {"weight_map",
               {{"layers.0.attn.attn_sink", "model-00001-of-00002.safetensors"},
                {"layers.0.attn.q_norm.weight", "model-00001-of-00002.safetensors"},
                {"layers.1.attn.attn_sink", "model-00002-of-00002.safetensors"}}}};
  }
  Checkpoint open() {
    dir_.write("model.safetensors.index.json", index_.dump());
    return Checkpoint(dir_.path());
  }
  std::string refusal() {
    return message_of(ErrorCode::invalid_file, [&] { open(); });
  }

  TempDir dir_;
  json index_;
};

TEST_F(Sharded, FindsTensorsInTheirShards) {
  const Checkpoint c = open();
  EXPECT_EQ(c.names().size(), 3u);
  EXPECT_EQ(c.attention_layers(), (std::vector<int64_t>{0, 1}));
  const StoredTensor& sink = c.require(1, "attn_sink");
  EXPECT_EQ(std::to_integer<size_t>(*sink.data), sink.name.size());
  c.release(sink);
  EXPECT_EQ(std::to_integer<size_t>(*sink.data), sink.name.size());
  EXPECT_EQ(c.find("not.indexed"), nullptr);
}

// A partial download: the layers that are there can be made, the others say what is missing.
TEST_F(Sharded, MissingShard) {
  std::filesystem::remove(dir_.path() / "model-00002-of-00002.safetensors");
  const Checkpoint c = open();
  EXPECT_EQ(c.names().size(), 3u);
  EXPECT_EQ(c.attention_layers(), (std::vector<int64_t>{0, 1}));
  EXPECT_NE(c.find(0, "attn_sink"), nullptr);
  EXPECT_EQ(c.find(2, "attn_sink"), nullptr);
  const std::vector<std::string> parts{"tensor \"layers.1.attn.attn_sink\"", "expected in shard \"model-00002-of-00002.safetensors\"",
                                       "is missing"};
  expect_parts(message_of(ErrorCode::invalid_file, [&] { c.require(1, "attn_sink"); }), parts);
  expect_parts(message_of(ErrorCode::invalid_file, [&] { c.find("layers.1.attn.attn_sink"); }), parts);
}

// Nothing that is wrong with a file without attention matters to a layer.
TEST_F(Sharded, ShardWithoutAttention) {
  index_["weight_map"]["layers.0.ffn.w1.weight"] = "experts.safetensors";
  index_["weight_map"]["lm_head.weight"] = "absent.safetensors";
  dir_.write("experts.safetensors", "version https://git-lfs.github.com/spec/v1\n");
  const Checkpoint c = open();
  EXPECT_EQ(c.names().size(), 5u);
  EXPECT_NE(c.find(1, "attn_sink"), nullptr);
  for (int i = 0; i < 2; ++i) {
    expect_parts(message_of(ErrorCode::invalid_file, [&] { c.find("layers.0.ffn.w1.weight"); }),
                 {"experts.safetensors", "git-lfs pointer"});
  }
  expect_parts(message_of(ErrorCode::invalid_file, [&] { c.find("lm_head.weight"); }), {"lm_head.weight", "absent.safetensors", "missing"});
  TensorList experts;
  add(experts, "layers.0.ffn.w1.weight");
  experts.write(dir_.path() / "experts.safetensors");
  const Checkpoint whole = open();
  std::vector<std::thread> threads;
  std::atomic<int> found{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const StoredTensor* t = whole.find("layers.0.ffn.w1.weight");
      if (t != nullptr && std::to_integer<size_t>(*t->data) == t->name.size()) ++found;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found, 4);
  whole.release(*whole.find("layers.0.ffn.w1.weight"));
}

TEST_F(Sharded, TensorAbsentFromItsShard) {
  index_["weight_map"]["layers.1.ffn.w1.weight"] = "model-00002-of-00002.safetensors";
  const Checkpoint c = open();
  expect_parts(message_of(ErrorCode::invalid_file, [&] { c.find("layers.1.ffn.w1.weight"); }), {"layers.1.ffn.w1.weight", "is not there"});
  index_["weight_map"]["layers.1.attn.q_norm.weight"] = "model-00002-of-00002.safetensors";
  expect_parts(refusal(), {"layers.1.attn.q_norm.weight", "expected in shard \"model-00002-of-00002.safetensors\"", "is not there"});
}

// The index says where an attention tensor is, and nothing else has one.
TEST_F(Sharded, TensorsThatTheIndexDoesNotName) {
  json& map = index_["weight_map"];
  map.erase("layers.0.attn.q_norm.weight");
  expect_parts(refusal(),
               {"index.json", "layers.0.attn.q_norm.weight", "expected in shard \"model-00001-of-00002.safetensors\"", "is missing"});
  TensorList second;
  add(second, "layers.1.attn.attn_sink");
  add(second, "layers.0.attn.q_norm.weight");
  second.write(dir_.path() / "model-00002-of-00002.safetensors");
  map["layers.0.attn.q_norm.weight"] = "model-00001-of-00002.safetensors";
  expect_parts(refusal(),
               {"layers.0.attn.q_norm.weight", "model-00002-of-00002.safetensors", "is in \"model-00001-of-00002.safetensors\""});
}

// What a terminal would obey, or is longer than a line, is not printed as it is.
TEST_F(Sharded, NamesThatAreNotText) {
  index_["weight_map"]["layers.1.attn.attn_sink"] = "a\n\x1b[31m" + std::string(10'000, 'b');
  const Checkpoint c = open();
  const std::string message = message_of(ErrorCode::invalid_file, [&] { c.require(1, "attn_sink"); });
  expect_parts(message, {"shard \"a\\n\\u001b[31mbbb", "bbb...", "missing"});
  EXPECT_LT(message.size(), dir_.path().string().size() + 200);
}

TEST_F(Sharded, ShardNamesThatLeaveTheDirectory) {
  for (const json& name : {json("../x.safetensors"), json("/etc/passwd"), json("sub/x.safetensors"), json("..\\x.safetensors"), json(""),
                           json("."), json(".."), json(std::string("a\0b", 3)), json(7), json(nullptr)}) {
    index_["weight_map"]["layers.1.attn.attn_sink"] = name;
    SCOPED_TRACE(name.dump());
    expect_parts(refusal(),
                 {"weight_map[\"layers.1.attn.attn_sink\"]", "expected the name of a file next to the index", "is " + name.dump()});
  }
}

TEST_F(Sharded, MalformedIndex) {
  index_.erase("weight_map");
  expect_parts(refusal(), {"weight_map", "expected an object", "missing"});
  index_["weight_map"] = json::array();
  expect_parts(refusal(), {"weight_map", "expected an object", "is []"});
  index_ = json::array();
  expect_parts(refusal(), {"weight_map", "missing"});
  dir_.write("model.safetensors.index.json", R"({"weight_map":{"a":"x","a":"y"}})");
  expect_parts(message_of(ErrorCode::invalid_file, [&] { Checkpoint c(dir_.path()); }), {"\"a\"", "once", "twice"});
  dir_.write("model.safetensors.index.json", "{");
  expect_parts(message_of(ErrorCode::invalid_file, [&] { Checkpoint c(dir_.path()); }), {"index.json", "valid JSON"});
}

TEST_F(Sharded, MalformedShard) {
  dir_.write("model-00002-of-00002.safetensors", "short");
  expect_parts(refusal(), {"model-00002-of-00002.safetensors", "at least 8 bytes", "is 5"});
}

TEST_F(Sharded, IndexThatIsNone) {
  dir_.write("model.safetensors.index.json", "version https://git-lfs.github.com/spec/v1\noid sha256:0123\n");
  expect_parts(message_of(ErrorCode::invalid_file, [&] { Checkpoint c(dir_.path()); }), {"index.json", "git-lfs pointer", "git lfs pull"});
  dir_.write("model.safetensors.index.json", "");
  expect_parts(message_of(ErrorCode::invalid_file, [&] { Checkpoint c(dir_.path()); }), {"index.json", "is empty"});
}

// model.safetensors next to an index: one of them may be left over, and it is unknown which.
TEST_F(Sharded, SingleFileAndIndex) {
  const auto write_single = [&](const std::vector<std::string>& names) {
    TensorList list;
    for (const std::string& name : names) add(list, name);
    list.write(dir_.path() / "model.safetensors");
  };
  const std::vector<std::string> all{"layers.0.attn.attn_sink", "layers.0.attn.q_norm.weight", "layers.1.attn.attn_sink", "not.indexed"};
  write_single(all);
  expect_parts(refusal(), {"expected to agree", "shard \"model-00001-of-00002.safetensors\" is there too", "remove"});
  for (const char* shard : {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"})
    std::filesystem::remove(dir_.path() / shard);
  EXPECT_EQ(open().attention_layers(), (std::vector<int64_t>{0, 1})) << "the index of the shards that the one file was made of";
  EXPECT_NE(open().find("not.indexed"), nullptr);
  for (auto& [name, file] : index_["weight_map"].items()) file = "model.safetensors";
  EXPECT_EQ(open().names().size(), 4u);
  write_single({all[0], all[1], all[3]});
  expect_parts(refusal(), {"tensor \"layers.1.attn.attn_sink\" is only in the index"});
  write_single({all[0], all[1], all[2], "layers.2.attn.attn_sink"});
  expect_parts(refusal(), {"tensor \"layers.2.attn.attn_sink\" is not in the index"});
}

TEST(Checkpoint, DirectoriesThatAreNone) {
  const TempDir dir;
  expect_parts(message_of(ErrorCode::invalid_file, [&] { Checkpoint c(dir.path() / "absent"); }),
               {"absent", "expected a directory", "missing"});
  expect_parts(message_of(ErrorCode::invalid_file, [&] { Checkpoint c(dir.write("file", "x")); }), {"expected a directory", "a file"});
  expect_parts(message_of(ErrorCode::invalid_file, [&] { Checkpoint c(dir.path()); }), {"config.json", "cannot be opened"});
  dir.write("config.json", preset("v4-tiny").to_json());
  expect_parts(message_of(ErrorCode::invalid_file, [&] { Checkpoint c(dir.path()); }),
               {"model.safetensors", "model.safetensors.index.json", "neither"});
  const auto refusal = [&] { return message_of(ErrorCode::invalid_file, [&] { Checkpoint c(dir.path()); }); };
  dir.write("pytorch_model.bin", "x");
  expect_parts(refusal(), {"has only \"pytorch_model.bin\"", "convert to safetensors"});
  dir.write("model-00001-of-00002.safetensors", "x");
  expect_parts(refusal(), {"has only \"model-00001-of-00002.safetensors\" and 1 more", "an index is missing"});
  dir.write("config.json", "<!doctype html>\n<title>Sign in</title>");
  expect_parts(refusal(), {"config.json", "expected JSON", "HTML page"});
  dir.write("config.json", "version https://git-lfs.github.com/spec/v1\n");
  expect_parts(refusal(), {"config.json", "git-lfs pointer"});
}

// Tensors that no attention layer reads may be of any type.
TEST(Checkpoint, OtherTensorsOfAnyDtype) {
  const std::filesystem::path golden = test::golden_folder("mla_v3");
  const SafetensorsFile file(golden / "model.safetensors");
  const TempDir dir;
  std::vector<StoredTensor> tensors(file.tensors().begin(), file.tensors().end());
  const std::vector<std::byte> data(64);
  for (int64_t i = 0; i < StoredDType::kCount; ++i) {
    const StoredDType dtype = static_cast<StoredDType::Value>(i);
    tensors.push_back({"model.layers.0.mlp." + std::string(dtype.name()), dtype, {8}, data.data(), static_cast<size_t>(dtype.bits())});
  }
  write_safetensors(dir.path() / "model.safetensors", tensors);
  std::filesystem::copy_file(golden / "config.json", dir.path() / "config.json");
  const Checkpoint checkpoint(dir.path());
  EXPECT_EQ(std::ssize(checkpoint.names()), std::ssize(file.tensors()) + StoredDType::kCount);
  EXPECT_EQ(checkpoint.find("model.layers.0.mlp.F4")->bytes, 4u);
  const auto device = open_device({});
  LayerOptions options;
  options.limits = {.max_num_batched_tokens = 8, .max_num_seqs = 1, .max_model_len = 64};
  const OpSet ops = default_ops();
  EXPECT_NO_THROW(default_layers().make({.checkpoint = checkpoint,
                                         .layer = 0,
                                         .device = device,
                                         .ops = ops,
                                         .options = options,
                                         .rope_tables = std::make_shared<RopeTables>(device, 64)}));
}

TEST(Checkpoint, ScaleOfFp8Caches) {
  const ModelConfig config = preset("v3-tiny");
  const auto with = [&](const std::string& suffix, StoredDType dtype, std::vector<int64_t> shape, auto values) {
    const TempDir dir;
    TensorList list;
    add(list, "model.layers.0.self_attn.x");
    list.add("model.layers.1.self_attn." + suffix, dtype, std::move(shape), values);
    list.write(dir.path() / "model.safetensors");
    dir.write("config.json", config.to_json());
    const Checkpoint c(dir.path());
    EXPECT_EQ(c.kv_scale(0), 1.0f);
    return c.kv_scale(1);
  };
  EXPECT_EQ(with("k_scale", DType::f32, {}, std::vector<float>{0.25f}), 0.25f);
  EXPECT_EQ(with("attn.k_scale", DType::f32, {1}, std::vector<float>{3.0f}), 3.0f);
  EXPECT_EQ(with("k_proj.k_scale", DType::bf16, {1}, std::vector<uint16_t>{0x3F00}), 0.5f);
  EXPECT_EQ(with("kv_scale", DType::f16, {1}, std::vector<uint16_t>{0x4000}), 2.0f);
  EXPECT_EQ(with("v_scale", DType::f32, {1}, std::vector<float>{2.0f}), 1.0f);
  const auto refused = [&](StoredDType dtype, std::vector<int64_t> shape, auto values) {
    return message_of(ErrorCode::invalid_file, [&] { with("k_scale", dtype, std::move(shape), values); });
  };
  expect_parts(refused(DType::f32, {1}, std::vector<float>{0.0f}), {"layers.1.self_attn.k_scale", "> 0", "is 0"});
  expect_parts(refused(DType::f32, {1}, std::vector<float>{std::numeric_limits<float>::infinity()}), {"finite", "is inf"});
  expect_parts(refused(DType::f32, {2}, std::vector<float>{1.0f, 1.0f}), {"one F32, BF16 or F16 number", "F32[2]"});
  expect_parts(refused(DType::u8, {1}, std::vector<uint8_t>{1}), {"one F32, BF16 or F16 number", "U8[1]"});
}

// The tensors of a loader of the caller's make the layer that the files make.
TEST(Checkpoint, OfTensorsInMemory) {
  const Checkpoint files(test::golden_folder("v4_fp8").string());
  std::vector<StoredTensor> tensors;
  for (const std::string& name : files.names()) tensors.push_back(*files.find(name));
  const Checkpoint memory(files.config(), tensors);
  EXPECT_EQ(memory.config(), files.config());
  EXPECT_EQ(memory.names(), files.names());
  EXPECT_EQ(memory.attention_layers(), files.attention_layers());
  EXPECT_EQ(memory.require(1, "wkv.weight").data, files.require(1, "wkv.weight").data);
  EXPECT_EQ(memory.find(7, "wkv.weight"), nullptr);
  const auto device = open_device({});
  const OpSet ops = default_ops();
  LayerOptions options;
  options.limits = {.max_num_batched_tokens = 8, .max_num_seqs = 1, .max_model_len = 64};
  const auto tables = std::make_shared<RopeTables>(device, 64);
  const auto weights = [&](const Checkpoint& c) {
    return default_layers()
        .make({.checkpoint = c, .layer = 1, .device = device, .ops = ops, .options = options, .rope_tables = tables})
        ->weight_bytes();
  };
  EXPECT_EQ(weights(memory), weights(files));
  expect_parts(message_of(ErrorCode::invalid_file, [&] { Checkpoint(files.config(), {}).require(1, "wkv.weight"); }),
               {"memory: tensor layers.1.attn.wkv.weight", "missing"});
}

TEST(Checkpoint, RefusesTensorsInMemoryThatCannotBe) {
  const ModelConfig config = preset("v4-tiny");
  const std::byte data[8]{};
  const StoredTensor good{.name = "layers.0.attn.attn_sink", .dtype = DType::f32, .shape = {2}, .data = data, .bytes = 8};
  const auto refusal = [&](ErrorCode code, const ModelConfig& c, std::vector<StoredTensor> tensors) {
    return message_of(code, [&] { Checkpoint(c, std::move(tensors)); });
  };
  expect_parts(refusal(ErrorCode::invalid_argument, config, {good, good}), {"memory", "attn_sink", "given twice"});
  StoredTensor bad = good;
  bad.bytes = 4;
  expect_parts(refusal(ErrorCode::invalid_argument, config, {bad}), {"attn_sink", "expected 8", "is 4"});
  bad = good;
  bad.data = nullptr;
  expect_parts(refusal(ErrorCode::invalid_argument, config, {bad}), {"attn_sink", "8 bytes", "null"});
  ModelConfig none = config;
  none.num_attention_heads = 0;
  expect_parts(refusal(ErrorCode::invalid_file, none, {good}), {"num_attention_heads"});
}

// Every recorded checkpoint there is (tests/golden/README.md), and its recorded cases.
TEST(Checkpoint, OpensRecordedCheckpoints) {
  int opened = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::data_folder() / "golden")) {
    if (!std::filesystem::exists(entry.path() / "config.json")) continue;
    SCOPED_TRACE(entry.path().string());
    const Checkpoint c(entry.path());
    ++opened;
    EXPECT_EQ(ModelConfig::parse(c.config().to_json()), c.config());
    EXPECT_EQ(static_cast<int64_t>(c.attention_layers().size()), c.config().num_hidden_layers);
    const bool v4 = c.config().family == ModelFamily::deepseek_v4;
    for (const int64_t layer : c.attention_layers()) {
      EXPECT_NE(c.find(layer, v4 ? "wkv.weight" : "kv_b_proj.weight"), nullptr);
      EXPECT_EQ(c.find(layer, v4 ? "wkv.scale" : "kv_b_proj.scale") != nullptr, c.config().fp8_weights);
      EXPECT_EQ(c.find(layer, "compressor.ape") != nullptr, c.config().compress_ratio(layer) != 1);
    }
    const SafetensorsFile cases(entry.path() / "cases.safetensors");
    EXPECT_NE(cases.find("layer0.seq0.x"), nullptr);
  }
  EXPECT_GE(opened, 1);
}

}  // namespace
}  // namespace strata::test
