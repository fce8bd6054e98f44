// Names of the layers that `strata bench` times.
#include "testkit/cases/layer_shape.h"

#include <gtest/gtest.h>

#include "testkit/cases/registry.h"

namespace strata::testkit {
namespace {

TEST(LayerShape, NamesSayEverything) {
  const LayerShape shapes[] = {
      {.preset = "v4-pro", .ratio = 4, .requests = 48, .context = 16384},
      {.preset = "v4-flash", .requests = 64, .context = 32768, .fp8_output = true},
      {.preset = "v4-flash", .ratio = 128, .new_tokens = 512},
      {.preset = "v3.2", .requests = 3, .new_tokens = 100, .context = 4096, .kv_format = KvFormat::fp8_ds_mla, .tp_size = 8},
      {.preset = "v4-tiny", .ratio = 4, .requests = 2, .fp8_output = true, .kv_format = KvFormat::fp8_ds_mla_v4, .tp_size = 2},
      {.preset = "v2-lite-tiny", .kv_format = KvFormat::fp8_tensor},
      {.preset = "v3", .new_tokens = 512, .decode_requests = 32, .context = 4096},
      {.preset = "v4-flash", .ratio = 4, .requests = 2, .new_tokens = 64, .decode_requests = 8, .fp8_output = true},
      {.preset = "v3", .requests = 32, .draft = 1, .context = 4096},
      {.preset = "v3.2", .new_tokens = 512, .decode_requests = 3, .draft = 2},
      {.preset = "v3", .requests = 32, .context = 4096, .ragged = true, .bound = 131072, .tp_size = 8},
      {.preset = "v4-pro", .ratio = 128, .requests = 4, .context = 100, .bound = 1048576},
  };
  for (const LayerShape& shape : shapes) {
    const std::string name = name_of(shape);
    const auto parsed = layer_shape(name);
    ASSERT_TRUE(parsed) << name;
    EXPECT_EQ(*parsed, shape) << name;
  }
  EXPECT_EQ(name_of(shapes[0]), "v4-pro-c4-decode-b48-context16384");
  EXPECT_EQ(name_of(shapes[3]), "v3.2-prefill-100-b3-context4096-fp8_ds_mla-tp8");
  EXPECT_EQ(name_of(shapes[6]), "v3-prefill-512-beside32-context4096");
  EXPECT_EQ(name_of(shapes[8]), "v3-decode-b32-draft1-context4096");
  EXPECT_EQ(name_of(shapes[10]), "v3-decode-b32-context4096-ragged-bound131072-tp8");
}

TEST(LayerShape, OtherNamesAreNone) {
  for (const char* name : {"",
                           "v4-pro",
                           "v4-pro-decode-b1",
                           "v3-c4-decode-b1",
                           "v5-decode-b1",
                           "v3-decode-b",
                           "v3-decode-b0",
                           "v3-decode-b01",
                           "v3-decode-b-1",
                           "v3-decode-b1-context0",
                           "v3-prefill-1",
                           "v3-prefill-0",
                           "v3-prefill-16-b1",
                           "v3-prefill-16-beside0",
                           "v3-decode-b1-beside2",
                           "v3-decode-b1-draft0",
                           "v3-prefill-16-draft1",
                           "v3-decode-b1-fp4",
                           "v3-decode-b1-tp1",
                           "v3-decode-b1-",
                           "v3-decode-b1-tp8-context4",
                           "v3-decode-b2-ragged",
                           "v3-decode-b2-context40-bound40",
                           "v3-decode-b2-context40-ragged-bound41",
                           "v3-decode-b2-context40-bound0",
                           "v3-decode-b1111111111",
                           "v3-decode-b*",
                           "xv3-decode-b1",
                           "v3-decode-b1x",
                           "b1-H16-D576-rows2048-bf16"}) {
    EXPECT_FALSE(layer_shape(name)) << name;
  }
}

TEST(LayerShape, NamesOfAnyLength) {
  for (const size_t length : {200, 60'000, 10'000'000}) {
    EXPECT_FALSE(layer_shape(std::string(length, 'a')));
    EXPECT_FALSE(layer_shape("v3-decode-b1-fp8_" + std::string(length, 'a')));
  }
}

TEST(LayerShape, ListedLayersAreThereOnceAndOthersCanBeAdded) {
  CaseList list = all_cases();
  const size_t before = list.size();
  add_layer_of(list, "v4-flash-c4-prefill-512");
  add_layer_of(list, "not a layer");
  EXPECT_EQ(list.size(), before);
  add_layer_of(list, "v4-tiny-c4-decode-b3-context100-tp2");
  ASSERT_EQ(list.size(), before + 1);
  EXPECT_EQ(list.back()->op(), "layer");
}

// What a layer of this name does once.
Work done_once(const std::string& name) {
  CaseList list;
  add_layer_of(list, name);
  const Work work = list.at(0)->prepare(default_ops(), open_device({}), "", {});
  EXPECT_TRUE(work.refusal.empty()) << work.refusal;
  work.call(0, {});
  return work;
}

// Drafted tokens are decode requests' own: every layer has such a step, and works on as many tokens more.
TEST(LayerShape, DraftedTokensAreTimed) {
  const auto flops_of = [](const std::string& name) { return done_once(name).flops; };
  for (const std::string preset : {"v4-tiny-c4", "v3.2-tiny", "v2-lite-tiny"}) {
    EXPECT_GT(flops_of(preset + "-decode-b2-draft2-context40"), 2.5 * flops_of(preset + "-decode-b2-context40")) << preset;
    EXPECT_GT(flops_of(preset + "-prefill-9-beside3-draft1-context40"), flops_of(preset + "-prefill-9-beside3-context40")) << preset;
  }
}

// A rank of two reads less than the whole layer does.
TEST(LayerShape, ARankOfSeveralIsTimedAlone) {
  const auto bytes_of = [](const std::string& name) { return done_once(name).bytes; };
  EXPECT_LT(bytes_of("v4-tiny-c4-decode-b2-context40-tp2"), bytes_of("v4-tiny-c4-decode-b2-context40"));
  EXPECT_LT(bytes_of("v3.2-tiny-prefill-8-b2-tp2"), bytes_of("v3.2-tiny-prefill-8-b2"));
}

}  // namespace
}  // namespace strata::testkit
