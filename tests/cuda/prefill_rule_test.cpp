// The measured rule of PrefillMode::automatic: at its ends, and where the modes cross on Hopper.
#include "cuda/cuda_fixture.h"
#include "ops/sparse_attention/prefill_choice.h"

namespace strata {
namespace {

class PrefillRule : public test::CudaTest {
 protected:
  bool hopper() const {
    const DeviceProperties p = device_->properties();
    return p.compute_major == 9 && p.compute_minor == 0;
  }
  // One request with a context from which the tokens' rows are selected.
  bool reads_pages(int64_t tokens, int64_t heads, int64_t rows, int64_t context = 4096) const {
    const PrefillWork work{.format = KvFormat::fp8_ds_mla_v4,
                           .num_tokens = tokens,
                           .num_heads = heads,
                           .rows_per_token = rows,
                           .num_chunks = 1,
                           .gathered_rows = (context + tokens) / 4 + tokens + 127};
    return ops::paged_prefill_is_faster(work, *device_);
  }
};

TEST_F(PrefillRule, FewTokensReadThePages) {
  for (const int64_t tokens : {0, 1, 4, 16}) {
    for (const int64_t heads : {1, 8, 64, 128}) {
      if (tokens == 16 && heads > 64) continue;  // level with 1152 rows
      for (const int64_t rows : {100, 128, 640, 1152}) {
        EXPECT_EQ(reads_pages(tokens, heads, rows), hopper()) << tokens << " tokens, " << heads << " heads, " << rows << " rows";
      }
    }
  }
}

TEST_F(PrefillRule, LargeChunksAreGathered) {
  for (const int64_t tokens : {2048, 3000, 8192}) {
    for (const int64_t heads : {32, 64, 100, 128}) {
      for (const int64_t rows : {128, 300, 640, 1152, 2048}) {
        EXPECT_FALSE(reads_pages(tokens, heads, rows)) << tokens << " tokens, " << heads << " heads, " << rows << " rows";
      }
    }
  }
}

// The more heads, the more is spent on turning the same rows into numbers again for every token.
TEST_F(PrefillRule, FewHeadsReadThePagesOfMoreTokens) {
  EXPECT_EQ(reads_pages(256, 8, 640), hopper());
  EXPECT_FALSE(reads_pages(256, 64, 640));
  EXPECT_FALSE(reads_pages(256, 128, 640));
}

TEST_F(PrefillRule, ALongContextIsNotGatheredForFewTokens) {
  EXPECT_FALSE(reads_pages(128, 128, 640));
  EXPECT_EQ(reads_pages(128, 128, 640, 1 << 20), hopper());
  EXPECT_FALSE(reads_pages(2048, 128, 640, 1 << 17));
}

TEST_F(PrefillRule, OtherFormatsAreGathered) {
  EXPECT_FALSE(ops::paged_prefill_is_faster(
      {.format = KvFormat::bf16, .num_tokens = 16, .num_heads = 64, .rows_per_token = 640, .num_chunks = 1, .gathered_rows = 262144},
      *device_));
}

// MLA: rows that the kernel would convert for every token anew are gathered, of more heads than the kernel for few of them has.
TEST_F(PrefillRule, MlaRowsAreGatheredWhereTheyAreConverted) {
  const auto reads_pages = [&](KvFormat format, int64_t tokens, int64_t heads, int64_t context) {
    const PrefillWork work{.format = format,
                           .latent = true,
                           .num_tokens = tokens,
                           .num_heads = heads,
                           .rows_per_token = 2048,
                           .num_chunks = 1,
                           .gathered_rows = context};
    return ops::paged_prefill_is_faster(work, *device_);
  };
  for (const int64_t tokens : {1, 16, 512, 8192}) {
    EXPECT_TRUE(reads_pages(KvFormat::bf16, tokens, 128, 8192)) << tokens;
    EXPECT_TRUE(reads_pages(KvFormat::fp8_ds_mla, tokens, 16, 8192)) << tokens;
  }
  for (const auto format : {KvFormat::fp8_ds_mla, KvFormat::fp8_tensor}) {
    EXPECT_TRUE(reads_pages(format, 1, 128, 8192));
    EXPECT_TRUE(reads_pages(format, 64, 128, 1 << 20));
    EXPECT_EQ(reads_pages(format, 512, 128, 8192), !hopper());
    EXPECT_EQ(reads_pages(format, 8192, 64, 1 << 17), !hopper());
  }
}

}  // namespace
}  // namespace strata
