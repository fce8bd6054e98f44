// What config.json says of each layer: which has an indexer, of which kind it is.
#include <fmt/format.h>

#include "small_configs.h"

namespace strata::test {
namespace {

TEST(IndexerTypes, AgreeWithTheOtherForms) {
  json j = mla();
  j["indexer_types"] = {"full", "full", "shared", "full"};
  const ModelConfig c = parse(j);
  EXPECT_TRUE(c.skip_topk(2));
  EXPECT_FALSE(c.skip_topk(3));
  EXPECT_EQ(ModelConfig::parse(c.to_json()), c);
  j["index_topk_freq"] = 2;
  EXPECT_EQ(parse(j), c);
  j["index_topk_freq"] = 3;
  expect_parts(refusal(j), {"indexer_types[3]", "index_topk_freq"});
  j.erase("index_topk_freq");
  j["index_topk_pattern"] = "FFSF";
  EXPECT_EQ(parse(j), c);
  j["index_topk_pattern"] = "FFFF";
  expect_parts(refusal(j), {"indexer_types[2]", "index_topk_pattern"});
  j.erase("indexer_types");
  j["index_topk_pattern"] = "FFSF";
  j["index_topk_freq"] = 2;
  EXPECT_EQ(parse(j), c);
  j["index_topk_freq"] = 1;
  expect_parts(refusal(j), {"index_topk_pattern[2]", "index_topk_freq"});
  j.erase("index_topk_freq");
  for (const char* pattern : {"FXSF", "ffsf", "", "FFS"}) {
    j["index_topk_pattern"] = pattern;
    expect_parts(refusal(j), {"index_topk_pattern"});
  }
  j.erase("index_topk_pattern");
  for (const json& bad :
       {json("FFSF"), json({"full", "full", "half", "full"}), json({"full"}), json({"shared", "full", "full", "full"}), json(1)}) {
    j["indexer_types"] = bad;
    expect_parts(refusal(j), {bad == json({"shared", "full", "full", "full"}) ? "layer 0" : "indexer_types"});
  }
}

TEST(Indexer, IsThereAsAWhole) {
  json j = mla();
  j["index_topk"] = nullptr;
  expect_parts(refusal(j), {"index_topk", "deepseek_v32", "null"});
  j.erase("index_topk");
  expect_parts(refusal(j), {"index_topk", "missing"});
  json dense = json::parse(preset("v3-tiny").to_json());
  for (const auto& [key, value] :
       {std::pair("index_n_heads", json(4)), std::pair("index_head_dim", json(128)), std::pair("index_topk_pattern", json("FFFF")),
        std::pair("index_topk_freq", json(1)), std::pair("index_skip_topk_offset", json(2)), std::pair("indexer_types", json::array()),
        std::pair("indexer_rope_interleave", json(false))}) {
    json odd = dense;
    odd[key] = value;
    expect_parts(refusal(odd), {key, "without index_topk"});
    odd[key] = nullptr;
    EXPECT_EQ(parse(odd), preset("v3-tiny"));
  }
}

TEST(IndexerRope, HasItsDefaultByModel) {
  json j = mla();
  j.erase("indexer_rope_interleave");
  EXPECT_FALSE(parse(j).indexer_rope_interleave);
  j["model_type"] = "glm_moe_dsa";
  j["architectures"] = {"GlmMoeDsaForCausalLM"};
  EXPECT_TRUE(parse(j).indexer_rope_interleave);
  j["indexer_rope_interleave"] = false;
  EXPECT_FALSE(parse(j).indexer_rope_interleave);
  EXPECT_EQ(ModelConfig::parse(parse(j).to_json()), parse(j));
}

TEST(LayerTypes, OfMlaAreOfOneKind) {
  json j = mla();
  const auto layers = j["num_hidden_layers"].get<size_t>();
  for (const char* kind : {"indexed_attention", "deepseek_sparse_attention"}) {
    j["layer_types"] = std::vector<std::string>(layers, kind);
    EXPECT_EQ(parse(j), parse(mla()));
  }
  for (const char* kind : {"sliding_attention", "full_attention"}) {
    j["layer_types"][1] = kind;
    expect_parts(refusal(j), {"layer_types[1]", kind});
  }
  j = json::parse(preset("v3-tiny").to_json());
  j["num_nextn_predict_layers"] = 1;
  const ModelConfig dense = parse(j);
  const auto dense_layers = static_cast<size_t>(dense.num_hidden_layers);
  for (const size_t entries : {dense_layers, dense_layers + 1}) {
    j["layer_types"] = std::vector<std::string>(entries, "full_attention");
    EXPECT_EQ(parse(j), dense);
  }
  for (const size_t entries : {dense_layers - 1, dense_layers + 2}) {
    j["layer_types"] = std::vector<std::string>(entries, "full_attention");
    expect_parts(refusal(j), {"layer_types", "num_hidden_layers", fmt::format("{} entries", entries)});
  }
  j["layer_types"] = std::vector<std::string>(dense_layers, "indexed_attention");
  expect_parts(refusal(j), {"layer_types[0]", "full_attention"});
}

TEST(LayerTypes, OfV4AgreeWithCompressRatios) {
  json j = v4();
  j["layer_types"] = {"sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"};
  EXPECT_EQ(parse(j), parse(v4()));
  j["layer_types"][1] = "heavily_compressed_attention";
  expect_parts(refusal(j), {"layer_types[1]", "compress_ratios[1] = 4"});
  json few = v4();
  few["layer_types"] = {"sliding_attention"};
  expect_parts(refusal(few), {"layer_types", "num_hidden_layers = 3", "1 entries"});
  j.erase("compress_ratios");
  EXPECT_EQ(parse(j).compress_ratio(1), 128);
  j["layer_types"] = {"sliding_attention"};
  expect_parts(refusal(j), {"layer_types", "num_hidden_layers = 3"});
  j.erase("layer_types");
  expect_parts(refusal(j), {"compress_ratios", "missing"});
}

}  // namespace
}  // namespace strata::test
