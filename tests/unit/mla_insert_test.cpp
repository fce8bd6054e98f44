// mla_rope_kv_insert and indexer_key_insert where the case lists do not reach: fused and unfused give the same bits, and refusals.

#include "op_test.h"
#include "ops/factories.h"
#include "page_memory.h"

namespace strata {
namespace {

using test::Array;
using test::expect_refused;
using test::PageMemory;
using test::random_bf16;

constexpr int64_t kTokens = 5, kHeads = 3;

struct InsertCase {
  explicit InsertCase(KvFormat format = KvFormat::bf16) : pages(format, 576, 3, 3, 8) {
    params = {.q = q,
              .c = c,
              .k_pe = k_pe,
              .positions = positions,
              .cos_sin = table,
              .q_pe_out = q_pe_out,
              .slot_mapping = slots,
              .cache = pages.cache};
  }
  Array<Bf16> q{{kTokens, kHeads, 192}, random_bf16(kTokens* kHeads * 192, 1.0f, 1)};
  Array<Bf16> c{{kTokens, 512}, random_bf16(kTokens * 512, 1.0f, 2)};
  Array<Bf16> k_pe{{kTokens, 64}, random_bf16(kTokens * 64, 1.0f, 3)};
  Array<int64_t> positions{{kTokens}, {0, 31, 7, 2, 30}};
  Array<Bf16> q_pe_out{{4, kHeads, 64}};
  Array<int64_t> slots{{4}, {8, -1, 0, 3}};
  Tensor table = build_rope_table({}, 32, open_device({}));
  PageMemory pages;
  MlaRopeKvInsertParams params;
};

void run_as(const std::string& implementation, const MlaRopeKvInsertParams& params) {
  Config config;
  config.force["mla_rope_kv_insert"] = implementation;
  const auto device = open_device({}, config);
  ops::make_mla_rope_kv_insert()(params, {*device, {}, {}});
}

// MLA 14: the fused op is the rotation followed by the write, bit for bit, and rotates keys without a slot too.
TEST(MlaRopeKvInsert, FusedEqualsUnfused) {
  for (const std::string implementation : {"cpu/simd", "reference"}) {
    for (const auto format : {KvFormat::bf16, KvFormat::fp8_tensor, KvFormat::fp8_ds_mla}) {
      SCOPED_TRACE(implementation + " " + std::string(to_string(format)));
      InsertCase fused(format), unfused(format);
      run_as(implementation, fused.params);
      MlaRopeKvInsertParams rotate = unfused.params, write = unfused.params;
      rotate.slot_mapping = {};
      rotate.cache = {};
      write.cos_sin = write.positions = write.q_pe_out = {};
      run_as(implementation, rotate);
      run_as(implementation, write);
      EXPECT_EQ(fused.q.bytes(), unfused.q.bytes());
      EXPECT_EQ(fused.k_pe.bytes(), unfused.k_pe.bytes());
      EXPECT_EQ(fused.q_pe_out.bytes(), unfused.q_pe_out.bytes());
      EXPECT_EQ(fused.pages.bytes(), unfused.pages.bytes());
      const std::vector<Bf16> before = random_bf16(kTokens * 64, 1.0f, 3);
      EXPECT_NE(std::memcmp(&fused.k_pe[64], &before[64], 128), 0) << "the key of slot -1 must be rotated";
      EXPECT_EQ(std::memcmp(&fused.k_pe[0], &before[0], 128), 0) << "position 0 rotates by nothing";
    }
  }
}

TEST(MlaRopeKvInsert, RefusesWhatContradictsTheContract) {
  const auto op = ops::make_mla_rope_kv_insert();
  const auto refused = [&](auto change, std::initializer_list<const char*> words) {
    InsertCase c;
    change(c);
    expect_refused(op, c.params, words, c.q, c.k_pe, c.q_pe_out, c.pages);
  };
  refused([](InsertCase& c) { c.params.q.dtype = DType::f32; }, {"q must be bf16", "f32"});
  refused([](InsertCase& c) { c.params.q.stride[1] = 0; }, {"q", "overlap"});
  refused([](InsertCase& c) { c.params.c.shape[0] = 4; }, {"c", "5", "bf16[4, 512]"});
  refused([](InsertCase& c) { c.params.c.shape[1] = 511; }, {"cache", "row_dim", "576"});
  refused([](InsertCase& c) { c.params.k_pe.shape[1] = 63; }, {"k_pe", "even", "63"});
  refused([](InsertCase& c) { c.params.positions.dtype = DType::i32; }, {"positions", "i64", "i32"});
  refused([](InsertCase& c) { c.params.cos_sin.shape[1] = 32; }, {"cos_sin", "64 columns", "32"});
  refused([](InsertCase& c) { c.params.positions = {}; }, {"positions", "absent"});
  refused([](InsertCase& c) { c.positions[3] = 32; }, {"positions[3]", "[0, 32)", "32"});
  refused([](InsertCase& c) { c.params.q_pe_out.shape[2] = 32; }, {"q_pe_out", "64", "bf16[4, 3, 32]"});
  refused([](InsertCase& c) { c.params.q_pe_out.shape[0] = 6; }, {"q_pe_out", "at most the 5 rows", "6"});
  refused([](InsertCase& c) { c.params.llama_4_scaling = c.params.k_pe; }, {"llama_4_scaling", "f32"});
  refused([](InsertCase& c) { c.params.slot_mapping.shape[0] = 6; }, {"slot_mapping", "at most 5", "6"});
  refused([](InsertCase& c) { c.slots[3] = 9; }, {"slot_mapping[3]", "[0, 9)", "9"});
  refused([](InsertCase& c) { c.params.cache.format = KvFormat::indexer_fp8; }, {"cache", "format", "indexer_fp8"});
  refused([](InsertCase& c) { c.params.cache.device = {DeviceKind::cuda, 0}; }, {"cache", "cpu", "cuda:0"});
  refused([](InsertCase& c) { c.params.cache.page_stride = 100; }, {"cache", "page_stride", "100"});
  refused(
      [](InsertCase& c) {
        c.params.c.shape[1] = 544;
        c.params.k_pe.shape[1] = 32;
        c.params.cos_sin = c.params.positions = c.params.q_pe_out = {};
        c.params.cache.format = KvFormat::fp8_ds_mla;
      },
      {"k_pe", "64 dimensions with a cache of format fp8_ds_mla", "32"});
  refused([](InsertCase& c) { c.params.ue8m0 = true; }, {"ue8m0", "bf16", "true"});
}

struct KeyCase {
  KeyCase() : pages(KvFormat::indexer_fp8, 128, 3, 3, 8) {
    params = {
        .k = k, .weight = weight, .bias = bias, .positions = positions, .cos_sin = table, .slot_mapping = slots, .cache = pages.cache};
  }
  Array<Bf16> k{{kTokens, 128}, random_bf16(kTokens * 128, 1.0f, 1)};
  Array<float> weight{{128}, std::vector<float>(128, 1.0f)};
  Array<float> bias{{128}, std::vector<float>(128, 0.0f)};
  Array<int64_t> positions{{kTokens}, {0, 31, 7, 2, 30}};
  Array<int64_t> slots{{4}, {8, -1, 0, 3}};
  Tensor table = build_rope_table({}, 32, open_device({}));
  PageMemory pages;
  IndexerKeyInsertParams params;
};

// Nearly equal values with a large mean: a mean that is off by its last fp32 bit would show, as the deviation is small too.
TEST(IndexerKeyInsert, TakesOutALargeMean) {
  for (const std::string implementation : {"cpu/simd", "reference"}) {
    KeyCase c;
    for (int64_t i = 0; i < kTokens * 128; ++i) c.k[i] = to_bf16(i % 2 == 0 ? 1000.0f : 1004.0f);
    c.params.cos_sin = c.params.positions = {};
    Config config;
    config.force["indexer_key_insert"] = implementation;
    const auto device = open_device({}, config);
    ops::make_indexer_key_insert()(c.params, {*device, {}, {}});
    const std::vector<float> row = c.pages.row(8);
    for (size_t i = 0; i < 128; ++i) EXPECT_EQ(row[i], i % 2 == 0 ? -1.0f : 1.0f) << implementation << " dimension " << i;
  }
}

TEST(IndexerKeyInsert, RefusesWhatContradictsTheContract) {
  const auto op = ops::make_indexer_key_insert();
  const auto refused = [&](auto change, std::initializer_list<const char*> words) {
    KeyCase c;
    change(c);
    expect_refused(op, c.params, words, c.pages);
  };
  refused([](KeyCase& c) { c.params.k.dtype = DType::f32; }, {"k must be bf16", "f32"});
  refused([](KeyCase& c) { c.params.k.stride[1] = 2; }, {"k", "stride 1", "2"});
  refused([](KeyCase& c) { c.params.k.shape[1] = 513; }, {"k", "1 to 512 dimensions", "513"});
  refused(
      [](KeyCase& c) {
        c.positions[1] = c.positions[4] = 0, c.params.cos_sin = TensorView::contiguous(c.table.view().data, DType::f32, {}, {8, 130});
      },
      {"cos_sin", "even number of columns in [2, 128]", "130"});
  refused([](KeyCase& c) { c.params.weight.shape[0] = 127; }, {"weight", "[128]", "f32[127]"});
  refused([](KeyCase& c) { c.params.bias = {}; }, {"bias", "absent"});
  refused([](KeyCase& c) { c.params.eps = 0.0f; }, {"eps", "0"});
  refused([](KeyCase& c) { c.params.positions = {}; }, {"positions", "absent"});
  refused([](KeyCase& c) { c.positions[1] = -1; }, {"positions[1]", "[0, 32)", "-1"});
  refused([](KeyCase& c) { c.slots[0] = 9; }, {"slot_mapping[0]", "[0, 9)", "9"});
  refused([](KeyCase& c) { c.params.slot_mapping.shape[0] = 6; }, {"slot_mapping", "at most 5", "6"});
  refused([](KeyCase& c) { c.params.cache.format = KvFormat::indexer_mxfp4; }, {"cache", "format", "indexer_mxfp4"});
  refused([](KeyCase& c) { c.params.cache.num_pages = -1; }, {"cache", "num_pages", "-1"});
  refused(
      [](KeyCase& c) {
        c.params.k.shape[1] = c.params.weight.shape[0] = c.params.bias.shape[0] = 100;
        c.params.hadamard = true;
      },
      {"k", "power of two", "100"});
}

}  // namespace
}  // namespace strata
