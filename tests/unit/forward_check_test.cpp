// What a layer refuses before anything runs, because the device has rules for addresses.
#include "layers/forward_check.h"

#include <gmock/gmock.h>

#include "layers/forward.h"

namespace strata {
namespace {

constexpr DeviceId kCuda{DeviceKind::cuda, 0};

class NoLayer final : public AttentionLayer {
 public:
  int64_t layer_index() const override { return 0; }
  int32_t compress_ratio() const override { return 1; }
  std::string kind() const override { return "none"; }
  int64_t hidden_size() const override { return 40; }
  int64_t num_heads() const override { return 1; }
  int64_t index_topk() const override { return 0; }
  std::vector<CacheGroupSpec> cache_groups() const override { return {}; }
  int64_t weight_bytes() const override { return 0; }
  int64_t workspace_bytes() const override { return 0; }
  void forward(const ForwardArgs&) override {}
};

TensorView rows(uintptr_t address, int64_t stride) {
  TensorView v = TensorView::contiguous(reinterpret_cast<void*>(address), DType::bf16, kCuda, {3, 40});
  v.stride[0] = stride;
  return v;
}

std::string refusal(const TensorView& hidden, const TensorView& out, const TensorView& q_tap = {}) {
  BatchLimits limits;
  limits.max_num_batched_tokens = 3;
  Batch batch;
  batch.limits = limits;
  batch.num_tokens = 3;
  batch.positions = TensorView::contiguous(reinterpret_cast<void*>(0x1000), DType::i64, kCuda, {3});
  try {
    check_forward(NoLayer(), {.batch = &batch, .hidden = hidden, .out = out, .q_tap = q_tap}, kCuda, limits, 40, 40);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

TEST(ForwardCheck, OnCudaMemoryIsAsAlignedAsItsRows) {
  const TensorView good = rows(0x1010, 40);  // rows 80 bytes apart
  const TensorView tap = TensorView::contiguous(reinterpret_cast<void*>(0x1008), DType::bf16, kCuda, {3, 1, 40});
  EXPECT_EQ(refusal(good, good), "");
  EXPECT_EQ(refusal(rows(0x2008, 44), good), "");
  EXPECT_THAT(refusal(rows(0x1008, 40), good), testing::HasSubstr("forward: hidden must begin at a multiple of 16 bytes, is at 0x1008"));
  EXPECT_THAT(refusal(good, rows(0x1004, 40)), testing::HasSubstr("forward: out must begin at a multiple of 16 bytes, is at 0x1004"));
  EXPECT_THAT(refusal(good, good, tap), testing::HasSubstr("forward: q_tap must begin at a multiple of 16 bytes, is at 0x1008"));
}

// Rows of 80 bytes, three of them.
TEST(ForwardCheck, OutIsHiddenOrApartFromIt) {
  const TensorView out = rows(0x1000, 40);
  EXPECT_EQ(refusal(out, out), "");
  EXPECT_EQ(refusal(rows(0x1000 + 240, 40), out), "");
  EXPECT_EQ(refusal(rows(0x1000 - 240, 40), out), "");
  EXPECT_THAT(refusal(rows(0x1000 + 160, 40), out),
              testing::HasSubstr("forward: out must be hidden itself or not overlap it, begins -160 bytes after it and hidden has 240"));
  EXPECT_THAT(refusal(rows(0x1000 - 160, 40), out), testing::HasSubstr("begins 160 bytes after it"));
  EXPECT_THAT(refusal(rows(0x1000, 48), out), testing::HasSubstr("begins 0 bytes after it and hidden has 272")) << "rows further apart";
}

TEST(ForwardMessage, NamesAtMostEightRequests) {
  Batch batch;
  EXPECT_EQ(message_of_layer(NoLayer(), nullptr, "what"), "layer 0 (none): what");
  EXPECT_EQ(message_of_layer(NoLayer(), &batch, "what"), "layer 0 (none): what");
  batch.request_ids_host = {-1, 3, 4};
  EXPECT_EQ(message_of_layer(NoLayer(), &batch, "what"), "layer 0 (none), requests 3, 4: what");
  batch.request_ids_host = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  EXPECT_EQ(message_of_layer(NoLayer(), &batch, "what"), "layer 0 (none), requests 0, 1, 2, 3, 4, 5, 6, 7 and 3 more: what");
}

}  // namespace
}  // namespace strata
