// The page geometry that an engine allocates: the table of docs/formats.md, and vLLM's and FlashMLA's sizes (V4 specification 6).
#include <gtest/gtest.h>

#include "strata/attention.h"

namespace strata {
namespace {

struct Row {
  CacheGroup group;
  int32_t page_size;
  int64_t positions, payload, page, retained;
};

void expect_rows(const LayerOptions& options, int64_t layer, const std::vector<Row>& rows) {
  const ModelConfig config = preset("v4-flash");
  const auto groups = cache_groups_of_layer(config, options, layer);
  ASSERT_EQ(groups.size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(std::string(to_string(rows[i].group)));
    EXPECT_EQ(groups[i].group, rows[i].group);
    EXPECT_EQ(groups[i].page_size, rows[i].page_size);
    EXPECT_EQ(groups[i].positions_per_page(), rows[i].positions);
    EXPECT_EQ(page_payload_bytes(groups[i].format, groups[i].row_dim, groups[i].page_size), rows[i].payload);
    EXPECT_EQ(groups[i].page_bytes, rows[i].page);
    EXPECT_EQ(groups[i].retained, rows[i].retained);
  }
}

TEST(V4CacheGroups, Fp8Pages) {
  const Row window{CacheGroup::window, 64, 64, 37376, 37440, 128};
  expect_rows({}, 0, {window});
  expect_rows({}, 2,
              {window,
               {CacheGroup::c4_compressed, 64, 256, 37376, 37440, 0},
               {CacheGroup::c4_state, 4, 4, 32768, 32832, 8},
               {CacheGroup::c4_indexer, 64, 256, 8448, 8640, 0},
               {CacheGroup::c4_indexer_state, 4, 4, 8192, 8640, 8}});
  expect_rows({}, 3, {window, {CacheGroup::c128_compressed, 2, 256, 1168, 1728, 0}, {CacheGroup::c128_state, 8, 8, 32768, 32832, 128}});
  LayerOptions mxfp4;
  mxfp4.indexer_format = IndexerFormat::mxfp4;
  EXPECT_EQ(cache_groups_of_layer(preset("v4-flash"), mxfp4, 2)[3].page_bytes, 4608);
}

TEST(V4CacheGroups, PlainFormatsAreNotPaddedTo576) {
  LayerOptions options;
  options.kv_format = KvFormat::bf16;
  EXPECT_EQ(cache_groups_of_layer(preset("v4-flash"), options, 0)[0].page_bytes, 64 * 1024);
  options.kv_format = KvFormat::fp8_tensor;
  EXPECT_EQ(cache_groups_of_layer(preset("v4-flash"), options, 0)[0].page_bytes, 64 * 512);
}

}  // namespace
}  // namespace strata
