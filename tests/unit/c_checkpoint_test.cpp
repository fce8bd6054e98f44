// Checkpoints of the C API: what the C++ ones have, tensors in memory, synthesis, and every wrong use.
#include "c_calls.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "checkpoint_files.h"
#include "strata/checkpoint.h"
#include "test_data.h"

namespace strata {
namespace {

using test::OwnedCheckpoint;
using test::OwnedConfig;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

OwnedCheckpoint open(const std::string& directory) {
  OwnedCheckpoint checkpoint;
  EXPECT_DONE(strata_checkpoint_open(directory.c_str(), nullptr, &checkpoint));
  return checkpoint;
}
std::string golden(const char* model) { return test::golden_folder(model).string(); }

std::vector<std::string> names_of(strata_checkpoint checkpoint) {
  int64_t needed = 0, count = 0;
  EXPECT_DONE(strata_checkpoint_names(checkpoint, nullptr, 0, &needed, &count));
  std::string text(static_cast<size_t>(needed), 'x');
  EXPECT_DONE(strata_checkpoint_names(checkpoint, text.data(), needed, nullptr, nullptr));
  std::vector<std::string> names;
  for (const char* p = text.data(); p < text.data() + text.size(); p += names.back().size() + 1) names.emplace_back(p);
  EXPECT_EQ(std::ssize(names), count);
  return names;
}

void expect_same(const strata_stored_tensor& got, const StoredTensor& want) {
  EXPECT_EQ(got.name, want.name);
  EXPECT_EQ(strata_stored_dtype_name(got.dtype), want.dtype.name());
  EXPECT_EQ(std::vector<int64_t>(got.shape, got.shape + got.rank), want.shape);
  ASSERT_EQ(got.bytes, static_cast<int64_t>(want.bytes));
  EXPECT_EQ(std::memcmp(got.data, want.data, want.bytes), 0);
}

TEST(CCheckpoint, HasWhatTheCxxOneHas) {
  for (const char* model : {"v4_fp8", "mla_v32"}) {
    const Checkpoint want(golden(model));
    const OwnedCheckpoint checkpoint = open(golden(model));
    EXPECT_EQ(names_of(checkpoint), want.names());
    const std::vector<int64_t> layers = want.attention_layers();
    std::vector<int64_t> got(layers.size());
    int64_t count = 0;
    EXPECT_DONE(strata_checkpoint_attention_layers(checkpoint, got.data(), std::ssize(got), &count));
    EXPECT_EQ(count, std::ssize(layers));
    EXPECT_EQ(got, layers);
    for (const int64_t layer : layers) {
      const auto names = want.attention_names(layer);
      std::vector<const char*> texts(names.size());
      EXPECT_DONE(strata_checkpoint_attention_names(checkpoint, layer, texts.data(), std::ssize(texts), &count));
      EXPECT_EQ(count, std::ssize(names));
      for (size_t i = 0; i < names.size(); ++i) {
        EXPECT_EQ(texts[i], names[i]);
        strata_stored_tensor tensor = strata_stored_tensor_default();
        int32_t found = 0;
        ASSERT_DONE(strata_checkpoint_find(checkpoint, texts[i], &tensor, &found));
        EXPECT_EQ(found, 1);
        expect_same(tensor, *want.find(names[i]));
        EXPECT_DONE(strata_checkpoint_release(checkpoint, texts[i]));
      }
      float scale = 0;
      EXPECT_DONE(strata_checkpoint_kv_scale(checkpoint, layer, &scale));
      EXPECT_EQ(scale, want.kv_scale(layer));
    }
    EXPECT_DONE(strata_checkpoint_attention_names(checkpoint, 1000, nullptr, 0, &count));
    EXPECT_EQ(count, 0);
    int64_t needed = 0;
    EXPECT_DONE(strata_checkpoint_directory(checkpoint, nullptr, 0, &needed));
    EXPECT_EQ(needed, std::ssize(golden(model)) + 1);
  }
}

TEST(CCheckpoint, FindsByLayerAndSuffix) {
  const Checkpoint want(golden("mla_v3"));
  OwnedCheckpoint checkpoint = open(golden("mla_v3"));
  strata_stored_tensor tensor = strata_stored_tensor_default();
  int32_t found = 0;
  ASSERT_DONE(strata_checkpoint_find_in_layer(checkpoint, 0, "kv_b_proj.weight", &tensor, &found));
  EXPECT_EQ(found, 1);
  expect_same(tensor, *want.find(0, "kv_b_proj.weight"));
  tensor.rank = 77;
  EXPECT_DONE(strata_checkpoint_find_in_layer(checkpoint, 0, "no.weight", &tensor, &found));
  EXPECT_EQ(found, 0);
  EXPECT_DONE(strata_checkpoint_find(checkpoint, "no.weight", &tensor, &found));
  EXPECT_EQ(found, 0);
  EXPECT_EQ(tensor.rank, 77) << "it stays as it is";
  EXPECT_FAILS(strata_checkpoint_find_in_layer(checkpoint, 0, "no.weight", &tensor, nullptr), STRATA_INVALID_FILE, "tried ");
  EXPECT_FAILS(strata_checkpoint_find(checkpoint, "no.weight", &tensor, nullptr), STRATA_INVALID_FILE,
               "tensor no.weight: expected in the checkpoint, is missing");
  EXPECT_FAILS(strata_checkpoint_release(checkpoint, "no.weight"), STRATA_INVALID_FILE, "is missing");
}

TEST(CCheckpoint, TheConfigOutlivesIt) {
  OwnedCheckpoint checkpoint = open(golden("mla_v3"));
  OwnedConfig config;
  ASSERT_DONE(strata_checkpoint_get_config(checkpoint, &config));
  checkpoint.reset();
  strata_model_info info = strata_model_info_default();
  ASSERT_DONE(strata_model_config_get_info(config, &info));
  EXPECT_STREQ(info.model_type, "deepseek_v3");
}

// The tensors of a checkpoint, as a caller's own memory.
std::vector<strata_stored_tensor> tensors_of(strata_checkpoint checkpoint, const std::vector<std::string>& names) {
  std::vector<strata_stored_tensor> tensors(names.size(), strata_stored_tensor_default());
  for (size_t i = 0; i < names.size(); ++i) EXPECT_DONE(strata_checkpoint_find(checkpoint, names[i].c_str(), &tensors[i], nullptr));
  return tensors;
}

TEST(CCheckpoint, TensorsInMemory) {
  const OwnedCheckpoint file = open(golden("mla_v3"));
  const std::vector<std::string> names = names_of(file);
  const std::vector<strata_stored_tensor> tensors = tensors_of(file, names);
  OwnedConfig config;
  OwnedCheckpoint checkpoint;
  ASSERT_DONE(strata_checkpoint_get_config(file, &config));
  ASSERT_DONE(strata_checkpoint_create(config, tensors.data(), std::ssize(tensors), &checkpoint));
  EXPECT_EQ(names_of(checkpoint), names);
  std::array<char, 16> directory{};
  EXPECT_DONE(strata_checkpoint_directory(checkpoint, directory.data(), 16, nullptr));
  EXPECT_STREQ(directory.data(), "memory");
  strata_stored_tensor tensor = strata_stored_tensor_default();
  ASSERT_DONE(strata_checkpoint_find(checkpoint, names[0].c_str(), &tensor, nullptr));
  EXPECT_EQ(tensor.data, tensors[0].data) << "the data is not copied";
  EXPECT_NE(tensor.name, tensors[0].name) << "the name is";
  EXPECT_DONE(strata_checkpoint_release(checkpoint, names[0].c_str()));
  OwnedCheckpoint none;
  EXPECT_DONE(strata_checkpoint_create(config, nullptr, 0, &none));
  int64_t needed = 0, count = 7;
  EXPECT_DONE(strata_checkpoint_names(none, nullptr, 0, &needed, &count));
  EXPECT_EQ(needed, 1);
  EXPECT_EQ(count, 0);
}

TEST(CCheckpoint, WrongTensorsInMemory) {
  const OwnedConfig config = test::c_preset("v3-tiny");
  const int64_t shape[] = {2, 3}, negative[] = {2, -3};
  const std::array<char, 12> data{};
  strata_stored_tensor valid = strata_stored_tensor_default();
  valid.name = "model.norm.weight";
  valid.dtype = STRATA_STORED_BF16;
  valid.rank = 2;
  valid.shape = shape;
  valid.data = data.data();
  valid.bytes = 12;
  const auto create = [&](const strata_stored_tensor* tensors, int64_t count) {
    OwnedCheckpoint checkpoint;
    const strata_status status = strata_checkpoint_create(config, tensors, count, &checkpoint);
    if (status != STRATA_OK) {
      EXPECT_EQ(strata_checkpoint(checkpoint).value, 0u);
    }
    return status;
  };
  EXPECT_DONE(create(&valid, 1));
  const auto refused = [&](auto&& change, const char* part) {
    strata_stored_tensor tensor = valid;
    change(tensor);
    EXPECT_FAILS(create(&tensor, 1), STRATA_INVALID_ARGUMENT, part);
  };
  refused([](auto& t) { t.name = nullptr; }, "tensor.name: expected a text, is null");
  refused([](auto& t) { t.dtype = -1; }, "tensor.dtype: expected an enumerator, 0 to 21, is -1");
  refused([](auto& t) { t.dtype = 22; }, "tensor.dtype: expected an enumerator, 0 to 21, is 22");
  refused([](auto& t) { t.rank = -1; }, "number of tensor.shape: expected at least 0, is -1");
  refused([](auto& t) { t.shape = nullptr; }, "tensor.shape: expected an array of 2, is null");
  refused([&](auto& t) { t.shape = negative; }, "model.norm.weight");
  refused([](auto& t) { t.bytes = -1; }, "bytes: expected at least 0, is -1");
  refused([](auto& t) { t.bytes = 11; }, "model.norm.weight");
  refused([](auto& t) { t.data = nullptr; }, "expected memory for 12 bytes, is null");
  EXPECT_FAILS(create(&valid, -1), STRATA_INVALID_ARGUMENT, "number of tensors: expected at least 0, is -1");
  EXPECT_FAILS(create(nullptr, 1), STRATA_INVALID_ARGUMENT, "tensors: expected an array of 1, is null");
  strata_stored_tensor two[] = {valid, valid};
  EXPECT_FAILS(create(two, 2), STRATA_INVALID_ARGUMENT, "model.norm.weight");
  two[1].struct_size += 8;
  EXPECT_FAILS(create(two, 2), STRATA_INVALID_ARGUMENT, "element 1 has struct_size 56, expected 48");
  test::expect_versions_refused(valid, "strata_stored_tensor", [&](const strata_stored_tensor* t) { return create(t, 1); });
  EXPECT_FAILS(strata_checkpoint_create(config, nullptr, 0, nullptr), STRATA_INVALID_ARGUMENT, "checkpoint: expected a pointer, is null");
  OwnedCheckpoint checkpoint;
  EXPECT_FAILS(strata_checkpoint_create({}, nullptr, 0, &checkpoint), STRATA_INVALID_HANDLE, "strata_model_config, is null");
}

TEST(CCheckpoint, StoredDtypes) {
  for (int32_t i = 0; i < StoredDType::kCount; ++i) {
    const char* const name = strata_stored_dtype_name(i);
    ASSERT_NE(name, nullptr);
    EXPECT_EQ(name, StoredDType(static_cast<StoredDType::Value>(i)).name());
    strata_stored_dtype dtype = -1;
    EXPECT_DONE(strata_stored_dtype_from_name(name, &dtype));
    EXPECT_EQ(dtype, i);
  }
  EXPECT_EQ(strata_stored_dtype_name(-1), nullptr);
  EXPECT_EQ(strata_stored_dtype_name(22), nullptr);
  strata_stored_dtype dtype = -1;
  EXPECT_FAILS(strata_stored_dtype_from_name("bf16", &dtype), STRATA_INVALID_ARGUMENT, "expected a dtype of safetensors, is bf16");
  EXPECT_FAILS(strata_stored_dtype_from_name(nullptr, &dtype), STRATA_INVALID_ARGUMENT, "name: expected a text, is null");
  EXPECT_FAILS(strata_stored_dtype_from_name("BF16", nullptr), STRATA_INVALID_ARGUMENT, "dtype: expected a pointer, is null");
  EXPECT_EQ(dtype, -1);
}

TEST(CCheckpoint, WrongFiles) {
  OwnedCheckpoint checkpoint;
  EXPECT_FAILS(strata_checkpoint_open("/no/such/folder", nullptr, &checkpoint), STRATA_INVALID_FILE, "/no/such/folder");
  EXPECT_FAILS(strata_checkpoint_open(nullptr, nullptr, &checkpoint), STRATA_INVALID_ARGUMENT, "directory: expected a text, is null");
  EXPECT_FAILS(strata_checkpoint_open(".", nullptr, nullptr), STRATA_INVALID_ARGUMENT, "checkpoint: expected a pointer, is null");
  const test::TempDir directory;
  const std::string path = directory.path().string();
  directory.write("config.json", preset("v3-tiny").to_json());
  EXPECT_FAILS(strata_checkpoint_open(path.c_str(), nullptr, &checkpoint), STRATA_INVALID_FILE, "expected model.safetensors");
  directory.write("model.safetensors", "short");
  EXPECT_FAILS(strata_checkpoint_open(path.c_str(), nullptr, &checkpoint), STRATA_INVALID_FILE, "model.safetensors");
  directory.write("model.safetensors", test::safetensors_bytes("{", 0));
  EXPECT_FAILS(strata_checkpoint_open(path.c_str(), nullptr, &checkpoint), STRATA_INVALID_FILE, "model.safetensors");
  directory.write("config.json", "[]");
  EXPECT_FAILS(strata_checkpoint_open(path.c_str(), nullptr, &checkpoint), STRATA_INVALID_FILE, "config.json");
  EXPECT_EQ(strata_checkpoint(checkpoint).value, 0u);
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(CCheckpoint, SynthesizesTheCxxOnesBytes) {
  const OwnedConfig config = test::c_preset("v3-tiny");
  const test::TempDir c, cxx;
  strata_synthesize_options options = strata_synthesize_options_default();
  options.num_layers = 1;
  options.seed = 5;
  options.fp8 = 0;
  int64_t calls = 0;
  const auto count = [](void* user, int64_t written, int64_t total) {
    EXPECT_LE(written, total);
    ++*static_cast<int64_t*>(user);
    return strata_status{STRATA_OK};
  };
  const std::string path = c.path().string();
  ASSERT_DONE(strata_synthesize_checkpoint(config, &options, path.c_str(), count, &calls));
  EXPECT_GT(calls, 0);
  synthesize_checkpoint(preset("v3-tiny"), {.num_layers = 1, .fp8 = false, .seed = 5}, cxx.path());
  for (const char* file : {"config.json", "model.safetensors"}) EXPECT_EQ(bytes_of(c.path() / file), bytes_of(cxx.path() / file)) << file;
  EXPECT_FAILS(strata_synthesize_checkpoint(config, &options, path.c_str(), nullptr, nullptr), STRATA_INVALID_ARGUMENT, path);
  options.overwrite = 1;
  EXPECT_DONE(strata_synthesize_checkpoint(config, &options, path.c_str(), nullptr, nullptr));
}

TEST(CCheckpoint, WrongSynthesis) {
  OwnedConfig config = test::c_preset("v3-tiny");
  const test::TempDir directory;
  const std::string path = directory.path().string();
  const auto synthesize = [&](const strata_synthesize_options* o) {
    return strata_synthesize_checkpoint(config, o, path.c_str(), nullptr, nullptr);
  };
  const auto refused = [&](auto&& change, const char* part) {
    strata_synthesize_options options = strata_synthesize_options_default();
    change(options);
    EXPECT_FAILS(synthesize(&options), STRATA_INVALID_ARGUMENT, part);
    EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  };
  refused([](auto& o) { o.num_layers = -1; }, "-1");
  refused([](auto& o) { o.num_layers = 1000; }, "1000");
  refused([](auto& o) { o.fp8 = 2; }, "options.fp8: expected 0 or 1, is 2");
  refused([](auto& o) { o.overwrite = -1; }, "options.overwrite: expected 0 or 1, is -1");
  EXPECT_FAILS(strata_synthesize_checkpoint(config, nullptr, nullptr, nullptr, nullptr), STRATA_INVALID_ARGUMENT,
               "directory: expected a text, is null");
  // What the progress function returns is returned, and the folder is as before.
  const auto stop = [](void*, int64_t, int64_t) { return strata_status{STRATA_UNSUPPORTED}; };
  EXPECT_FAILS(strata_synthesize_checkpoint(config, nullptr, path.c_str(), stop, nullptr), STRATA_UNSUPPORTED,
               "progress of the caller returned 3 (STRATA_UNSUPPORTED)");
  const auto odd = [](void*, int64_t, int64_t) { return strata_status{99}; };
  EXPECT_FAILS(strata_synthesize_checkpoint(config, nullptr, path.c_str(), odd, nullptr), 99, "returned 99");
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  strata_synthesize_options valid = strata_synthesize_options_default();
  valid.overwrite = 1;
  valid.num_layers = 1;
  test::expect_versions_refused(valid, "strata_synthesize_options", synthesize);
  const strata_model_config gone = config.reset();
  EXPECT_FAILS(strata_synthesize_checkpoint(gone, nullptr, path.c_str(), nullptr, nullptr), STRATA_INVALID_HANDLE, "which is destroyed");
}

TEST(CCheckpoint, WrongArgumentsAndDestroyedHandles) {
  OwnedCheckpoint checkpoint = open(golden("mla_v3"));
  strata_stored_tensor tensor = strata_stored_tensor_default();
  int32_t found = 7;
  EXPECT_FAILS(strata_checkpoint_find(checkpoint, nullptr, &tensor, &found), STRATA_INVALID_ARGUMENT, "name: expected a text, is null");
  EXPECT_FAILS(strata_checkpoint_find(checkpoint, "x", nullptr, &found), STRATA_INVALID_ARGUMENT,
               "tensor: expected a strata_stored_tensor");
  EXPECT_FAILS(strata_checkpoint_find_in_layer(checkpoint, 0, nullptr, &tensor, &found), STRATA_INVALID_ARGUMENT,
               "suffix: expected a text");
  EXPECT_FAILS(strata_checkpoint_release(checkpoint, nullptr), STRATA_INVALID_ARGUMENT, "name: expected a text, is null");
  EXPECT_FAILS(strata_checkpoint_kv_scale(checkpoint, 0, nullptr), STRATA_INVALID_ARGUMENT, "scale: expected a pointer, is null");
  EXPECT_FAILS(strata_checkpoint_get_config(checkpoint, nullptr), STRATA_INVALID_ARGUMENT, "config: expected a pointer, is null");
  EXPECT_FAILS(strata_checkpoint_attention_layers(checkpoint, nullptr, 1, nullptr), STRATA_INVALID_ARGUMENT,
               "layers: expected an array of 1");
  EXPECT_FAILS(strata_checkpoint_attention_names(checkpoint, 0, nullptr, -1, nullptr), STRATA_INVALID_ARGUMENT, "capacity of names");
  EXPECT_FAILS(strata_checkpoint_names(checkpoint, nullptr, 1, nullptr, nullptr), STRATA_INVALID_ARGUMENT, "expected a buffer");
  tensor.struct_size = 1;
  EXPECT_FAILS(strata_checkpoint_find(checkpoint, "x", &tensor, &found), STRATA_INVALID_ARGUMENT,
               "strata_stored_tensor: struct_size must be");
  tensor = strata_stored_tensor_default();
  EXPECT_EQ(found, 7);
  const strata_checkpoint gone = checkpoint.reset();
  float scale = 0;
  strata_model_config config{};
  EXPECT_FAILS(strata_checkpoint_find(gone, "x", &tensor, &found), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_checkpoint_find_in_layer(gone, 0, "x", &tensor, &found), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_checkpoint_release(gone, "x"), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_checkpoint_kv_scale(gone, 0, &scale), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_checkpoint_get_config(gone, &config), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_checkpoint_attention_layers(gone, nullptr, 0, nullptr), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_checkpoint_attention_names(gone, 0, nullptr, 0, nullptr), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_checkpoint_names(gone, nullptr, 0, nullptr, nullptr), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_checkpoint_directory(gone, nullptr, 0, nullptr), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_FAILS(strata_checkpoint_destroy(gone), STRATA_INVALID_HANDLE, "which is destroyed");
  EXPECT_EQ(config.value, 0u);
}

}  // namespace
}  // namespace strata
