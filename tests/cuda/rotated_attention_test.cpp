// sparse_attn_decode with positions: the bits of qnorm_rope_kv_insert, the same call without positions, and inverse_rope.
#include <string>

#include "cuda/cuda_fixture.h"
#include "testkit/harness/inputs.h"
#include "testkit/cases/attention_case.h"
#include "testkit/harness/paging.h"
#include "strata/op_set.h"

namespace strata {
namespace {

constexpr auto kV4 = KvFormat::fp8_ds_mla_v4;

struct Shape {
  int64_t batch, heads, topk, extra_topk;
  KvFormat format;
};

class RotatedAttention : public test::CudaTest, public testing::WithParamInterface<Shape> {
 protected:
  void add_scope(testkit::Inputs& in, int64_t topk, PagedCache& cache, TensorView& indices, TensorView& length) const {
    constexpr int32_t kPageSize = 64, kHoles[] = {-1};
    const Shape& s = GetParam();
    const int64_t num_pages = topk / kPageSize + 3;
    const std::vector<int64_t> slots = testkit::distinct_slots(in.rng(), num_pages * kPageSize, num_pages * kPageSize);
    const int32_t row_dim = s.format == KvFormat::fp8_ds_mla_v4 ? 512 : 576;
    cache = in.cache({.format = s.format, .row_dim = row_dim, .page_size = kPageSize, .num_pages = num_pages}, slots, 0.1);
    const auto made = testkit::make_indices(in.rng(), {.rows = s.batch, .width = topk}, slots, slots, kHoles);
    indices = in.values(DType::i32, {s.batch, 1, topk}, made.indices);
    length = in.i32(made.lengths);
  }
  SparseAttnDecodeParams rows(testkit::Inputs& in) const {
    const Shape& s = GetParam();
    SparseAttnDecodeParams p;
    add_scope(in, s.topk, p.cache, p.indices, p.topk_length);
    if (s.extra_topk > 0) add_scope(in, s.extra_topk, p.extra_cache, p.extra_indices, p.extra_topk_length);
    p.softmax_scale = 0.05f;
    return p;
  }
};

TEST_P(RotatedAttention, AsByTheOpBehind) {
  constexpr int64_t kPositions = 33;
  const Shape& s = GetParam();
  testkit::Inputs in(device_, {});
  SparseAttnDecodeParams p = rows(in);
  p.q = in.bf16({s.batch, 1, s.heads, p.cache.row_dim});
  p.out = in.output(DType::bf16, {s.batch, 1, s.heads, 512});
  run(default_ops().sparse_attn_decode, p);
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < s.batch; ++i) positions.push_back(in.rng().in(0, kPositions));
  const TensorView table = in.rope_table(kPositions), o = p.out.reshape({s.batch, s.heads, 512});
  const InverseRopeParams rotation{.o = o, .positions = in.i64(positions), .cos_sin = table, .out = o};
  run(default_ops().inverse_rope, rotation);
  const std::vector<uint8_t> separate = bytes_at(p.out.data, p.out.bytes());

  p.out = in.output(DType::bf16, {s.batch, 1, s.heads, 512});
  p.out_epilogue = {.positions = rotation.positions, .cos_sin = table};
  run(default_ops().sparse_attn_decode, p);
  EXPECT_EQ(separate, bytes_at(p.out.data, p.out.bytes()));
}

// Of the formats whose kernels normalise.
class NormedQueries : public RotatedAttention {};

TEST_P(NormedQueries, AsByTheOpInFront) {
  constexpr int64_t kPositions = 33;
  const Shape& s = GetParam();
  testkit::Inputs in(device_, {});
  SparseAttnDecodeParams p = rows(in);
  const int64_t dim = p.cache.row_dim;
  const TensorView raw = in.bf16({s.batch, 1, s.heads, dim}, 3.0), table = in.rope_table(kPositions);
  std::vector<int64_t> at;
  for (int64_t i = 0; i < s.batch; ++i) at.push_back(in.rng().in(0, kPositions));
  const TensorView positions = in.i64(at), normed = in.output(DType::bf16, {s.batch, s.heads, dim});
  run(default_ops().qnorm_rope_kv_insert, QNormRopeKvInsertParams{.q = raw.reshape({s.batch, s.heads, dim}),
                                                                  .kv = in.bf16({s.batch, dim}),
                                                                  .positions = positions,
                                                                  .cos_sin = table,
                                                                  .q_out = normed});
  p.q = normed.reshape({s.batch, 1, s.heads, dim});
  p.batch_invariant = s.extra_topk == 0;  // otherwise only one of the calls would use persistent CTAs
  p.out = in.output(DType::bf16, {s.batch, 1, s.heads, 512});
  run(default_ops().sparse_attn_decode, p);
  const std::vector<uint8_t> in_front = bytes_at(p.out.data, p.out.bytes());

  p.q = raw, p.query_prologue = {.positions = positions, .cos_sin = table};
  p.out = in.output(DType::bf16, {s.batch, 1, s.heads, 512});
  run(default_ops().sparse_attn_decode, p);
  EXPECT_EQ(in_front, bytes_at(p.out.data, p.out.bytes()));
}

std::string name_of(const testing::TestParamInfo<Shape>& info) {
  const Shape& s = info.param;
  return "batch" + std::to_string(s.batch) + "_heads" + std::to_string(s.heads) + "_rows" + std::to_string(s.topk + s.extra_topk) +
         (s.format == kV4 ? "_v4" : "_mla");
}

// CTAs of few heads in clusters, with and without combining; of 64 heads; of 64 in clusters; and persistent CTAs.
const auto kV4Shapes = testing::Values(Shape{1, 64, 128, 512, kV4}, Shape{1, 16, 128, 512, kV4}, Shape{8, 64, 128, 512, kV4},
                                       Shape{128, 8, 128, 512, kV4}, Shape{128, 16, 128, 512, kV4}, Shape{128, 32, 128, 512, kV4},
                                       Shape{140, 33, 128, 512, kV4}, Shape{32, 128, 128, 1024, kV4}, Shape{70, 128, 100, 0, kV4});
const auto kMlaShapes = testing::Values(Shape{1, 16, 2048, 0, KvFormat::fp8_ds_mla}, Shape{140, 32, 128, 0, KvFormat::fp8_ds_mla},
                                        Shape{70, 128, 512, 0, KvFormat::fp8_ds_mla});
INSTANTIATE_TEST_SUITE_P(V4, RotatedAttention, kV4Shapes, name_of);
INSTANTIATE_TEST_SUITE_P(Mla, RotatedAttention, kMlaShapes, name_of);
INSTANTIATE_TEST_SUITE_P(V4, NormedQueries, kV4Shapes, name_of);

}  // namespace
}  // namespace strata
