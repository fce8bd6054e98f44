// Cache rows: where their bytes are (V4 specification 6 and 19, MLA 9.1), what a round trip gives, and that nothing else is touched.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "page_memory.h"

namespace strata {
namespace {

using test::PageMemory;

struct Record {
  KvFormat format;
  int32_t row_dim;
};
constexpr Record kRecords[] = {{KvFormat::bf16, 512},       {KvFormat::fp8_tensor, 576},  {KvFormat::fp8_ds_mla_v4, 512},
                               {KvFormat::fp8_ds_mla, 576}, {KvFormat::indexer_fp8, 128}, {KvFormat::indexer_mxfp4, 128},
                               {KvFormat::state_f32, 2048}};
constexpr int32_t kPageSizes[] = {2, 53, 64};

std::vector<float> random_row(int32_t n, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> row(static_cast<size_t>(n));
  for (float& v : row) v = distribution(generator);
  return row;
}

// The largest error of dimension `dim` that the format allows for a value v in a quantisation block with maximum a.
double tolerance(KvFormat format, int64_t dim, double v, double a) {
  const double bf16 = std::fabs(v) / 256;
  const double e4m3 =
      std::fmax(std::fabs(v) / 16, std::fmax(a, 1e-4) / 448 * 0x1p-9) + bf16;  // half a step, of normal or of subnormal values
  switch (format) {
    case KvFormat::state_f32: return 0.0;
    case KvFormat::bf16: return bf16;
    case KvFormat::fp8_tensor: return std::fmax(std::fabs(v) / 16, 0x1p-10);
    case KvFormat::fp8_ds_mla_v4: return dim >= 448 ? bf16 : e4m3;
    case KvFormat::fp8_ds_mla: return dim >= 512 ? bf16 : e4m3;
    case KvFormat::indexer_fp8: return e4m3;
    case KvFormat::indexer_mxfp4: return a / 3 * 1.02;  // half of the widest step, 4 to 6, under a scale below a / 3
  }
  return 0.0;
}

TEST(KvRows, RoundTripOfEveryFormatPageSizeAndStride) {
  for (const Record& record : kRecords) {
    for (int32_t page_size : kPageSizes) {
      for (int64_t padding : {0, 1, 576}) {
        SCOPED_TRACE(testing::Message() << to_string(record.format) << " page_size " << page_size << " padding " << padding);
        PageMemory pages(record.format, record.row_dim, page_size, 3, padding);
        const int64_t slots[] = {0, page_size - 1, page_size, 3 * page_size - 1};
        for (int64_t slot : slots) store_row(pages.cache, slot, random_row(record.row_dim, static_cast<uint32_t>(slot)).data());
        for (int64_t slot : slots) {
          const std::vector<float> x = random_row(record.row_dim, static_cast<uint32_t>(slot)), y = pages.row(slot);
          double a = 0.0;
          for (float v : x) a = std::fmax(a, std::fabs(v));
          for (size_t i = 0; i < x.size(); ++i) {
            ASSERT_NEAR(y[i], x[i], tolerance(record.format, static_cast<int64_t>(i), x[i], a)) << "slot " << slot << " dimension " << i;
          }
          if (record.format == KvFormat::fp8_ds_mla) continue;  // its fp32 scales are not
          store_row(pages.cache, slot, y.data());
          EXPECT_EQ(pages.row(slot), y) << "dequantised values are fixed points";
        }
      }
    }
  }
}

// The bytes of a row, by the specification's formulas written out once more.
std::set<int64_t> bytes_of_row(KvFormat format, int32_t row_dim, int64_t slot, int64_t page_size, int64_t stride) {
  std::set<int64_t> result;
  const auto add = [&](int64_t begin, int64_t count) {
    for (int64_t i = 0; i < count; ++i) result.insert(begin + i);
  };
  const int64_t page = slot / page_size * stride, row = slot % page_size;
  switch (format) {
    case KvFormat::bf16: add(page + row * row_dim * 2, row_dim * 2); break;
    case KvFormat::fp8_tensor: add(page + row * row_dim, row_dim); break;
    case KvFormat::fp8_ds_mla_v4:
      add(page + row * 576, 576);
      add(page + page_size * 576 + row * 8, 8);
      break;
    case KvFormat::fp8_ds_mla: add(page + row * 656, 656); break;
    case KvFormat::indexer_fp8:
      add(page + row * 128, 128);
      add(page + page_size * 128 + row * 4, 4);
      break;
    case KvFormat::indexer_mxfp4:
      add(page + row * 64, 64);
      add(page + page_size * 64 + row * 4, 4);
      break;
    case KvFormat::state_f32: add(page + row * row_dim * 4, row_dim * 4); break;
  }
  return result;
}

TEST(KvRows, StoreWritesTheBytesOfItsRowAndNoOthers) {
  for (const Record& record : kRecords) {
    for (int32_t page_size : kPageSizes) {
      SCOPED_TRACE(testing::Message() << to_string(record.format) << " page_size " << page_size);
      const int64_t slot = page_size + 1;
      std::set<int64_t> written;
      // Two backgrounds: a byte that differs from the background in either was written.
      for (uint8_t background : {0x00, 0xFF}) {
        PageMemory pages(record.format, record.row_dim, page_size, 3, 40);
        pages.memory.fill(background);
        store_row(pages.cache, slot, random_row(record.row_dim, 9).data());
        for (int64_t i = 0; i < static_cast<int64_t>(pages.memory.values().size()); ++i) {
          if (pages.byte(i) != background) written.insert(i);
        }
      }
      EXPECT_EQ(written, bytes_of_row(record.format, record.row_dim, slot, page_size,
                                      page_payload_bytes(record.format, record.row_dim, page_size) + 40));
    }
  }
}

TEST(KvRows, BytesOfAV4Row) {
  PageMemory pages(KvFormat::fp8_ds_mla_v4, 512, 64, 3, 64);
  ASSERT_EQ(pages.cache.page_stride, 37440);
  std::vector<float> x(512, 0.0f);
  x[0] = 1.0f;      // block 0: absmax 1 -> byte 119, e4m3 0x78
  x[64] = -448.0f;  // block 1: byte 127, e4m3 0xFE
  x[447] = 3.5f;    // block 6: byte 120, 3.5 * 128 = 448
  x[448] = 1.0f;
  x[511] = -2.0f;
  store_row(pages.cache, 130, x.data());
  const int64_t data = 76032, rotary = 76480, scales = 111760;
  EXPECT_EQ(pages.byte(data), 0x78);
  EXPECT_EQ(pages.byte(data + 1), 0x00);
  EXPECT_EQ(pages.byte(data + 64), 0xFE);
  EXPECT_EQ(pages.byte(data + 447), 0x7E);
  EXPECT_EQ(pages.byte(rotary), 0x80) << "bf16 1.0, little-endian";
  EXPECT_EQ(pages.byte(rotary + 1), 0x3F);
  EXPECT_EQ(pages.byte(rotary + 127), 0xC0);
  const int expected[] = {119, 127, 105, 105, 105, 105, 120, 0};
  for (int b = 0; b < 8; ++b) EXPECT_EQ(pages.byte(scales + b), expected[b]) << b;
  EXPECT_EQ(pages.row(130), x);
}

TEST(KvRows, ReadersTakeEveryScaleByteAndCode) {
  PageMemory pages(KvFormat::fp8_ds_mla_v4, 512, 2, 1, 0);
  for (int byte = 0; byte < 256; ++byte) {
    for (int i = 0; i < 448; ++i) pages.memory[i] = static_cast<uint8_t>(i);
    for (int b = 0; b < 7; ++b) pages.memory[1152 + b] = static_cast<uint8_t>(byte);
    const std::vector<float> row = pages.row(0);
    for (int i = 0; i < 448; ++i) {
      const double code = to_float(E4m3{static_cast<uint8_t>(i)});
      const float expected = static_cast<float>(byte == 255 ? NAN : std::ldexp(code, byte - 127));
      const float got = row[static_cast<size_t>(i)];
      ASSERT_TRUE(got == expected || (std::isnan(got) && std::isnan(expected))) << byte << " " << i;
    }
  }
}

TEST(KvRows, BytesOfAnMlaRow) {
  PageMemory pages(KvFormat::fp8_ds_mla, 576, 64, 2, 0);
  std::vector<float> x(576, 0.0f);
  x[128] = 7.0f;
  x[512] = 1.0f;
  store_row(pages.cache, 65, x.data());
  const int64_t row = 64 * 656 + 656;
  EXPECT_EQ(pages.byte(row + 128), 0x7E);
  EXPECT_EQ(load_f32(pages.memory.values().data() + row + 512), 0x1p-126f) << "an all-zero tile: FLT_MIN";
  EXPECT_EQ(load_f32(pages.memory.values().data() + row + 516), 7.0f / 448.0f);
  EXPECT_EQ(pages.byte(row + 529), 0x3F);
  x[128] = 5.0f;
  store_row(pages.cache, 65, x.data(), {.ue8m0 = true});
  EXPECT_EQ(load_f32(pages.memory.values().data() + row + 516), 0x1p-6f);
  EXPECT_EQ(load_f32(pages.memory.values().data() + row + 512), 0x1p-22f);
  EXPECT_EQ(pages.row(65), x);
}

TEST(KvRows, MlaRowsReadAsBf16OfTheFp32Product) {
  PageMemory pages(KvFormat::fp8_ds_mla, 576, 1, 1, 0);
  const std::vector<float> x = random_row(576, 4);
  store_row(pages.cache, 0, x.data());
  const std::vector<float> y = pages.row(0);
  for (int64_t i = 0; i < 512; ++i) {
    const float scale = load_f32(pages.memory.values().data() + 512 + 4 * (i / 128));
    EXPECT_EQ(y[static_cast<size_t>(i)], to_float(to_bf16(to_float(E4m3{pages.byte(i)}) * scale)));
  }
}

TEST(KvRows, BytesOfIndexerRows) {
  PageMemory fp8(KvFormat::indexer_fp8, 128, 64, 2, 192);
  ASSERT_EQ(fp8.cache.page_stride, 8640);
  std::vector<float> x(128, 0.0f);
  x[127] = 1.0f;
  store_row(fp8.cache, 65, x.data());
  EXPECT_EQ(fp8.byte(8768 + 127), 0x78);
  EXPECT_EQ(load_f32(fp8.memory.values().data() + 16836), 0x1p-8f);

  PageMemory mxfp4(KvFormat::indexer_mxfp4, 128, 64, 2, 256);
  ASSERT_EQ(mxfp4.cache.page_stride, 4608);
  x[127] = 0.0f;
  x[96] = 3.0f;
  x[97] = -0.2f;
  store_row(mxfp4.cache, 65, x.data());
  EXPECT_EQ(mxfp4.byte(4608 + 64 + 48), 0x97);
  const int64_t scales = 4608 + 64 * 64 + 4;
  EXPECT_EQ(mxfp4.byte(scales), 1);
  EXPECT_EQ(mxfp4.byte(scales + 3), 126);
}

TEST(KvRows, PerTensorScaleMultipliesTheReciprocalOrDivides) {
  PageMemory pages(KvFormat::fp8_tensor, 4, 1, 1, 0);
  pages.cache.scale = 3.0f;
  const float x[] = {3.0f, -6.0f, 1e9f, 0.0f};
  for (bool divide : {false, true}) {
    store_row(pages.cache, 0, x, {.divide = divide});
    EXPECT_EQ(pages.row(0), (std::vector<float>{3.0f, -6.0f, 448.0f * 3.0f, 0.0f}));
  }
  // 175/16 / 7 is the tie between 0x3C and 0x3D, 1/7 in fp32 is more than 1/7.
  pages.cache.scale = 7.0f;
  const float tie[] = {10.9375f, -10.9375f, 0, 0};
  store_row(pages.cache, 0, tie, {.divide = true});
  EXPECT_EQ(pages.byte(0), 0x3C);
  EXPECT_EQ(pages.byte(1), 0xBC);
  store_row(pages.cache, 0, tie);
  EXPECT_EQ(pages.byte(0), 0x3D);
  EXPECT_EQ(pages.byte(1), 0xBD);
  // No bf16 step in between: bf16 would round this to 1.0625, a tie that goes to the even 0x38.
  const float above_tie[] = {1.0626f, 0, 0, 0};
  pages.cache.scale = 1.0f;
  store_row(pages.cache, 0, above_tie);
  EXPECT_EQ(pages.byte(0), 0x39);
}

TEST(KvRows, ValuesAreRoundedToBf16BeforeTheirAbsmax) {
  PageMemory pages(KvFormat::fp8_ds_mla_v4, 512, 1, 1, 0);
  std::vector<float> x(512, 0.0f);
  x[0] = 1.751f;  // bf16: 1.75, whose scale byte is 119; 1.751 itself would need 120
  store_row(pages.cache, 0, x.data());
  EXPECT_EQ(pages.byte(576), 119);
}

// Arithmetic only: pages far beyond 4 GiB.
TEST(KvRows, OffsetsAre64Bit) {
  PagedCache cache{.format = KvFormat::fp8_ds_mla_v4, .row_dim = 512, .page_size = 64, .num_pages = 1 << 20, .page_stride = 37440};
  EXPECT_EQ(cache.num_slots(), 67108864);
  EXPECT_EQ(cache.data_offset(67108863), int64_t{1048575} * 37440 + 63 * 576);
  EXPECT_EQ(cache.scale_offset(67108863), int64_t{1048575} * 37440 + 64 * 576 + 63 * 8);
  cache.page_stride = int64_t{1} << 33;
  EXPECT_EQ(cache.data_offset(64), int64_t{1} << 33);
  cache = {.format = KvFormat::state_f32, .row_dim = 2048, .page_size = 1 << 30, .num_pages = 1, .page_stride = int64_t{1} << 43};
  EXPECT_EQ(cache.data_offset((1 << 30) - 1), ((int64_t{1} << 30) - 1) * 8192);
  cache = {.format = KvFormat::indexer_fp8, .row_dim = 128, .page_size = 1 << 28, .num_pages = 2, .page_stride = int64_t{132} << 28};
  EXPECT_EQ(cache.scale_offset((1 << 28) + 5), (int64_t{132} << 28) + (int64_t{128} << 28) + 20);
}

}  // namespace
}  // namespace strata
