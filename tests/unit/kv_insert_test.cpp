// qnorm_rope_kv_insert and quantize_and_insert_k on the reference.
#include <cmath>

#include "formats/rope.h"
#include "ops/factories.h"
#include "page_memory.h"

namespace strata {
namespace {

using test::Array;
using test::expect_refused;
using test::PageMemory;
using test::random_bf16;
using test::run;

struct InsertCase {
  static constexpr int64_t kTokens = 4, kHeads = 3, kDim = 512;
  explicit InsertCase(KvFormat format = KvFormat::fp8_ds_mla_v4, int64_t padded_heads = 5)
      : q_out({kTokens, padded_heads, kDim}), pages(format, kDim, 2, 3, 24) {
    params = {.q = q,
              .kv = kv,
              .positions = positions,
              .cos_sin = table,
              .slot_mapping = slots.view().slice(0, 3),
              .cache = pages.cache,
              .q_out = q_out};
  }
  Array<Bf16> q{{kTokens, kHeads, kDim}, random_bf16(kTokens* kHeads* kDim, 3.0f, 1)};
  Array<Bf16> kv{{kTokens, kDim}, random_bf16(kTokens* kDim, 1.0f, 2)};
  Array<int64_t> positions{{kTokens}, {0, 9, 17, 31}};
  Array<int64_t> slots{{4}, {5, -1, 2, 0}};  // slot_mapping is the first three, one row fewer than tokens
  Array<Bf16> q_out;
  PageMemory pages;
  Tensor table = build_rope_table({}, 32, open_device({}));
  QNormRopeKvInsertParams params;

  // kv row n after the rotation, in fp32.
  std::vector<float> rotated(int64_t n) const {
    std::vector<double> row;
    for (int64_t i = 0; i < kDim; ++i) row.push_back(to_float(kv.values()[static_cast<size_t>(n * kDim + i)]));
    rotate(row.data() + 448, table.view().row<float>(positions.values()[static_cast<size_t>(n)]), 64, RopePairing::interleaved);
    return {row.begin(), row.end()};
  }
};

TEST(QNormRopeKvInsert, QueriesAreNormedThenRotatedThenRoundedOnce) {
  InsertCase c;
  run(ops::make_qnorm_rope_kv_insert(), c.params);
  for (int64_t n = 0; n < 4; ++n) {
    for (int64_t h = 0; h < 3; ++h) {
      double head[512], sum = 0.0;
      for (int64_t i = 0; i < 512; ++i) {
        head[i] = to_float(c.q[(n * 3 + h) * 512 + i]);
        sum += head[i] * head[i];
      }
      for (double& v : head) v /= std::sqrt(sum / 512 + 1e-6f);
      rotate(head + 448, c.table.view().row<float>(c.positions[n]), 64, RopePairing::interleaved);
      for (int64_t i = 0; i < 512; ++i) {
        const float got = to_float(c.q_out[(n * 5 + h) * 512 + i]);
        ASSERT_NEAR(got, head[i], std::fabs(head[i]) / 256) << n << " " << h << " " << i;
      }
    }
    for (int64_t i = 3 * 512; i < 5 * 512; ++i) ASSERT_EQ(c.q_out[n * 5 * 512 + i].bits, 0) << "padded heads are +0";
  }
}

TEST(QNormRopeKvInsert, KeysOfMappedRowsAndNoOthers) {
  for (KvFormat format : {KvFormat::fp8_ds_mla_v4, KvFormat::bf16, KvFormat::fp8_tensor}) {
    SCOPED_TRACE(to_string(format));
    InsertCase c(format);
    c.pages.cache.scale = c.params.cache.scale = format == KvFormat::fp8_tensor ? 0.25f : 1.0f;
    PageMemory expected(format, 512, 2, 3, 24);
    expected.cache.scale = c.pages.cache.scale;
    store_row(expected.cache, 5, c.rotated(0).data());
    store_row(expected.cache, 2, c.rotated(2).data());
    const std::string kv = c.kv.bytes(), before = c.pages.bytes();
    const auto op = ops::make_qnorm_rope_kv_insert();
    run(op, c.params);
    EXPECT_EQ(c.pages.bytes(), expected.bytes());
    EXPECT_EQ(c.kv.bytes(), kv);
    // Any other implementation: which rows, not their last bits.
    const auto device = open_device({});
    InsertCase other(format);
    other.pages.cache.scale = other.params.cache.scale = c.pages.cache.scale;
    other.slots[0] = other.slots[2] = -1;
    op(other.params, {*device, {}, {}});
    EXPECT_EQ(other.pages.bytes(), before) << "a row without a slot was written";
  }
}

TEST(QNormRopeKvInsert, InPlaceAndWithoutACache) {
  InsertCase padded, c(KvFormat::fp8_ds_mla_v4, 3);
  run(ops::make_qnorm_rope_kv_insert(), padded.params);
  c.params.q_out = c.q;
  c.params.slot_mapping = {};
  c.params.cache = {};
  const std::string pages = c.pages.bytes();
  run(ops::make_qnorm_rope_kv_insert(), c.params);
  EXPECT_EQ(c.pages.bytes(), pages);
  for (int64_t n = 0; n < 4; ++n) {
    for (int64_t i = 0; i < 3 * 512; ++i) ASSERT_EQ(c.q[n * 3 * 512 + i].bits, padded.q_out[n * 5 * 512 + i].bits);
  }
}

TEST(QNormRopeKvInsert, Fp8Queries) {
  InsertCase bf16(KvFormat::fp8_tensor), c(KvFormat::fp8_tensor);
  run(ops::make_qnorm_rope_kv_insert(), bf16.params);
  Array<E4m3> q_out({4, 3, 512});
  c.params.q_out = q_out;
  c.params.q_scale_inv = 2.0f;
  run(ops::make_qnorm_rope_kv_insert(), c.params);
  for (int64_t n = 0; n < 4; ++n) {
    for (int64_t i = 0; i < 3 * 512; ++i) {
      const float q = to_float(bf16.q_out[n * 5 * 512 + i]), got = to_float(q_out[n * 3 * 512 + i]);
      ASSERT_NEAR(got, 2 * q, std::fabs(2 * q) / 15 + 0x1p-10);
    }
  }
}

TEST(QNormRopeKvInsert, RowsWithGaps) {
  InsertCase dense, c;
  Array<Bf16> wide({4, 512 + 576});
  for (int64_t n = 0; n < 4; ++n) {
    for (int64_t i = 0; i < 512; ++i) wide[n * 1088 + 576 + i] = c.kv[n * 512 + i];
  }
  c.params.kv = wide.view().columns(576, 512);
  run(ops::make_qnorm_rope_kv_insert(), dense.params);
  run(ops::make_qnorm_rope_kv_insert(), c.params);
  EXPECT_EQ(c.pages.bytes(), dense.pages.bytes());
}

TEST(QNormRopeKvInsert, RefusesWhatContradictsTheContract) {
  const auto op = ops::make_qnorm_rope_kv_insert();
  const auto refused = [&](auto change, std::initializer_list<const char*> words) {
    InsertCase c;
    change(c);
    expect_refused(op, c.params, words, c.q_out, c.pages);
  };
  refused([](InsertCase& c) { c.params.eps = -1e-6f; }, {"eps", "negative", "-1e-06"});
  refused([](InsertCase& c) { c.params.q.dtype = DType::f32; }, {"q must be bf16", "f32"});
  refused([](InsertCase& c) { c.params.kv.shape[1] = 500; }, {"kv", "[4, 512]", "bf16[4, 500]"});
  refused([](InsertCase& c) { c.params.positions.dtype = DType::i32; }, {"positions", "i64", "i32"});
  refused([](InsertCase& c) { c.params.cos_sin.shape[1] = 32; }, {"cos_sin", "64 columns", "fp8_ds_mla_v4", "32"});
  refused([](InsertCase& c) { c.params.cos_sin.shape[1] = 1024; }, {"cos_sin", "[2, 512]", "1024"});
  refused([](InsertCase& c) { c.params.q_out.shape[1] = 2; }, {"q_out", "at least the 3 heads", "2"});
  refused([](InsertCase& c) { c.params.q_out.stride[1] = 256; }, {"q_out", "overlap"});
  refused([](InsertCase& c) { c.params.q_out.dtype = DType::e4m3; }, {"q_out", "the 3 heads", "5"});
  refused([](InsertCase& c) { c.params.q_out.dtype = DType::e4m3, c.params.q_out.shape[1] = 3; },
          {"q_out", "bf16", "fp8_ds_mla_v4", "e4m3"});
  refused([](InsertCase& c) { c.params.slot_mapping.shape[0] = 5; }, {"slot_mapping", "at most the 4 rows", "5"});
  refused([](InsertCase& c) { c.params.cache = {}; }, {"cache", "required", "absent"});
  refused([](InsertCase& c) { c.params.cache.format = KvFormat::fp8_ds_mla; },
          {"cache", "fp8_ds_mla_v4 or bf16 or fp8_tensor", "has fp8_ds_mla"});
  refused([](InsertCase& c) { c.params.cache.row_dim = 576; }, {"cache", "row_dim 512", "576"});
  refused([](InsertCase& c) { c.params.cache.page_stride = 1167; }, {"cache", "page_stride", "1168", "1167"});
  refused([](InsertCase& c) { c.params.cache.data = nullptr; }, {"cache", "must have memory", "null"});
  refused([](InsertCase& c) { c.params.cache.device = {DeviceKind::cuda, 1}; }, {"cache", "cpu", "cuda:1"});
  refused([](InsertCase& c) { c.params.cache.format = KvFormat::fp8_tensor, c.params.cache.scale = 0.0f; },
          {"cache.scale", "positive", "0"});
  refused([](InsertCase& c) { c.slots[2] = 6; }, {"slot_mapping[2]", "[0, 6)", "6"});
  refused([](InsertCase& c) { c.positions[3] = 32; }, {"positions[3]", "[0, 32)", "32"});
  refused([](InsertCase& c) { c.positions[1] = -1; }, {"positions[1]", "[0, 32)", "-1"});
}

struct QuantizeCase {
  QuantizeCase(KvFormat format, int32_t dim) : k({3, dim}, random_bf16(3 * dim, 1.0f, 7)), pages(format, dim, 53, 2, 8) {
    params = {.k = k, .slot_mapping = slots, .cache = pages.cache};
  }
  std::vector<float> row(int64_t n) const {
    const int64_t dim = pages.cache.row_dim;
    std::vector<float> values;
    for (int64_t i = 0; i < dim; ++i) values.push_back(to_float(k.values()[static_cast<size_t>(n * dim + i)]));
    return values;
  }
  Array<Bf16> k;
  Array<int64_t> slots{{3}, {105, -7, 0}};
  PageMemory pages;
  QuantizeAndInsertKParams params;
};

TEST(QuantizeAndInsertK, EveryFormat) {
  const std::pair<KvFormat, int32_t> formats[] = {{KvFormat::fp8_ds_mla_v4, 512}, {KvFormat::bf16, 512},       {KvFormat::bf16, 576},
                                                  {KvFormat::fp8_tensor, 512},    {KvFormat::fp8_tensor, 576}, {KvFormat::indexer_fp8, 128},
                                                  {KvFormat::indexer_mxfp4, 128}, {KvFormat::fp8_ds_mla, 576}};
  for (const auto& [format, dim] : formats) {
    for (bool ue8m0 : {false, true}) {
      if (ue8m0 && format != KvFormat::fp8_ds_mla) continue;
      SCOPED_TRACE(testing::Message() << to_string(format) << " " << dim);
      QuantizeCase c(format, dim);
      c.params.ue8m0 = ue8m0;
      c.params.cache.scale = format == KvFormat::fp8_tensor ? 0.37f : 1.0f;
      PageMemory expected(format, dim, 53, 2, 8);
      expected.cache.scale = c.params.cache.scale;
      const StoreOptions options{.ue8m0 = ue8m0, .divide = dim == 576};
      store_row(expected.cache, 105, c.row(0).data(), options);
      store_row(expected.cache, 0, c.row(2).data(), options);
      run(ops::make_quantize_and_insert_k(), c.params);
      EXPECT_EQ(c.pages.bytes(), expected.bytes());
    }
  }
}

TEST(QuantizeAndInsertK, RefusesWhatContradictsTheContract) {
  const auto op = ops::make_quantize_and_insert_k();
  const auto refused = [&](auto change, std::initializer_list<const char*> words) {
    QuantizeCase c(KvFormat::fp8_ds_mla_v4, 512);
    change(c);
    expect_refused(op, c.params, words, c.pages);
  };
  refused([](QuantizeCase& c) { c.params.k.dtype = DType::f32; }, {"k must be bf16", "f32"});
  refused([](QuantizeCase& c) { c.params.slot_mapping.shape[0] = 4; }, {"slot_mapping", "at most the 3 rows", "4"});
  refused([](QuantizeCase& c) { c.params.slot_mapping.dtype = DType::i32; }, {"slot_mapping", "i64", "i32"});
  refused([](QuantizeCase& c) { c.params.cache.format = KvFormat::state_f32; }, {"cache", "format", "has state_f32"});
  refused([](QuantizeCase& c) { c.params.cache.format = KvFormat::indexer_fp8; }, {"cache", "indexer_fp8", "row_dim 128", "512"});
  refused([](QuantizeCase& c) { c.params.k.shape[1] = 256, c.params.cache.row_dim = 256; }, {"cache", "row_dim 512", "256"});
  refused([](QuantizeCase& c) { c.params.ue8m0 = true; }, {"ue8m0", "fp8_ds_mla_v4", "true"});
  refused([](QuantizeCase& c) { c.slots[0] = 106; }, {"slot_mapping[0]", "[0, 106)", "106"});
  refused([](QuantizeCase& c) { c.params.cache.num_pages = -1; }, {"cache", "num_pages", "-1"});
}

}  // namespace
}  // namespace strata
