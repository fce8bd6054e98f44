// The dense attention ops where the case lists do not reach: what must not leak, what must not depend on threads, and refusals.
#include <cmath>

#include "op_test.h"
#include "ops/factories.h"
#include "page_memory.h"

namespace strata {
namespace {

using test::Array;
using test::expect_refused;
using test::kInf;
using test::kNaN;
using test::PageMemory;
using test::random_bf16;

// 2 requests of 3 and 2 query tokens over 5 and 2 rows; 4 pages of 2 rows.
struct DecodeCase {
  DecodeCase() : pages(KvFormat::bf16, 64, 2, 6, 0) {
    const std::vector<Bf16> rows = random_bf16(7 * 64, 1.0f, 5);
    int64_t next = 0;
    for (const int64_t slot : {10, 11, 2, 3, 6, 8, 9}) write(slot, rows.data() + 64 * next++);
    params = {.q = q,
              .cache = pages.cache,
              .block_table = table,
              .query_start_loc = start,
              .seq_lens = lens,
              .max_query_len = 3,
              .max_seq_len = 5,
              .softmax_scale = 0.1f,
              .out = out,
              .lse = lse};
  }
  void write(int64_t slot, const Bf16* row) {
    std::memcpy(static_cast<std::byte*>(pages.cache.data) + pages.cache.data_offset(slot), row, 64 * sizeof(Bf16));
  }
  void fill(int64_t slot, float value) {
    const std::vector<Bf16> row(64, to_bf16(value));
    write(slot, row.data());
  }
  Array<Bf16> q{{5, 2, 64}, random_bf16(5 * 2 * 64, 1.0f, 4)};
  Array<int32_t> table{{2, 3}, {5, 1, 3, 4, 77, -9}};  // of request 1 the first entry is looked at
  Array<int32_t> start{{3}, {0, 3, 5}};
  Array<int32_t> lens{{2}, {5, 2}};
  Array<Bf16> out{{5, 2, 64}};
  Array<float> lse{{5, 2}};
  PageMemory pages;
  DenseAttnDecodeParams params;
};

// Every implementation that takes the call, on this machine.
template <class Params, class Check>
void with_every_implementation(const Op<Params>& op, const Params& params, int threads, Check&& check) {
  Config config;
  config.cpu_threads = threads;
  const auto device = open_device({}, config);
  int ran = 0;
  for (const auto& impl : op.implementations()) {
    if (!impl.supports(params, *device)) continue;
    SCOPED_TRACE(impl.name + " on " + std::to_string(threads) + " threads");
    const Tensor workspace(device, DType::u8, {impl.workspace_bytes(params, *device)});
    device->fill(workspace.view().data, 0xFF, workspace.allocated_bytes(), {});
    op.check(params, {});
    impl.run(params, {*device, {}, workspace_of(workspace)});
    check();
    ++ran;
  }
  EXPECT_GE(ran, 2);  // cpu/simd and the reference run everywhere
}

TEST(DenseAttnDecode, ARowThatOnlyLaterQueriesSeeDoesNotReachEarlierOnes) {
  for (const float bad : {kNaN, kInf}) {
    DecodeCase clean, spoilt;
    spoilt.fill(6, bad);  // the last row of request 0: its third query alone sees it
    with_every_implementation(ops::make_dense_attn_decode(), clean.params, 2, [] {});
    with_every_implementation(ops::make_dense_attn_decode(), spoilt.params, 2, [&] {
      for (int64_t i = 0; i < 5 * 2 * 64; ++i) {
        if (i / 128 == 2) continue;
        ASSERT_NEAR(to_float(spoilt.out[i]), to_float(clean.out[i]), 0.02f) << i;
      }
      EXPECT_TRUE(std::isnan(spoilt.lse[4]) || std::isinf(spoilt.lse[4]) || std::isnan(to_float(spoilt.out[2 * 128])))
          << "the third query must see it";
    });
  }
}

TEST(DenseAttnDecode, ResultsDoNotDependOnThreadsOrOnTheBatch) {
  std::vector<std::vector<Bf16>> whole;
  DecodeCase c;
  with_every_implementation(ops::make_dense_attn_decode(), c.params, 1, [&] { whole.push_back(c.out.values()); });
  for (const int threads : {2, 3, 8}) {
    size_t i = 0;
    with_every_implementation(ops::make_dense_attn_decode(), c.params, threads,
                              [&] { EXPECT_EQ(std::memcmp(whole[i++].data(), c.out.values().data(), 5 * 2 * 64 * 2), 0); });
  }
  // Request 1 alone: tokens 3 and 4, start locations that do not begin at 0.
  DecodeCase alone;
  alone.params.q = alone.q.view().slice(3, 2);
  alone.params.out = alone.out.view().slice(3, 2);
  alone.params.lse = {};
  alone.params.query_start_loc = alone.start.view().slice(1, 2);
  alone.params.seq_lens = alone.lens.view().slice(1, 1);
  alone.params.block_table = alone.table.view().slice(1, 1);
  size_t i = 0;
  with_every_implementation(ops::make_dense_attn_decode(), alone.params, 1, [&] {
    EXPECT_EQ(std::memcmp(whole[i++].data() + 3 * 128, alone.out.values().data() + 3 * 128, 2 * 128 * sizeof(Bf16)), 0);
  });
}

TEST(DenseAttnDecode, EveryQueryOfACallThatIsNotCausalSeesAllRows) {
  DecodeCase c;
  c.params.causal = false;
  with_every_implementation(ops::make_dense_attn_decode(), c.params, 2, [&] {
    const std::vector<float> lse = c.lse.values();
    // The result of each query is that of a request of its own, whose last query sees all rows.
    for (int64_t t = 0; t < 5; ++t) {
      const int64_t b = t < 3 ? 0 : 1;
      DecodeCase alone;
      alone.params.q = alone.q.view().slice(t, 1);
      alone.params.out = alone.out.view().slice(t, 1);
      alone.params.lse = alone.lse.view().slice(t, 1);
      Array<int32_t> start{{2}, {0, 1}};
      alone.params.query_start_loc = start;
      alone.params.seq_lens = alone.lens.view().slice(b, 1);
      alone.params.block_table = alone.table.view().slice(b, 1);
      const auto device = open_device({}, {});
      ops::make_dense_attn_decode().implementations().back().run(alone.params, {*device});
      for (int64_t h = 0; h < 2; ++h) EXPECT_NEAR(lse[2 * t + h], alone.lse[2 * t + h], 1e-3f) << t;
      for (int64_t i = 128 * t; i < 128 * (t + 1); ++i) ASSERT_NEAR(to_float(c.out[i]), to_float(alone.out[i]), 0.02f) << i;
    }
  });
}

// Two KV heads: the rows of head 0 and of head 1 of a slot are next to each other. Each has three query heads.
TEST(DenseAttnDecode, KvHeadsAreCallsOfTheirOwn) {
  for (const bool causal : {true, false}) {
    DecodeCase of[2];
    PageMemory both(KvFormat::bf16, 2 * 64, 2, 6, 64);
    Array<Bf16> q{{5, 6, 64}, random_bf16(5 * 6 * 64, 1.0f, 9)}, out{{5, 6, 64}};
    Array<float> lse{{5, 6}};
    DenseAttnDecodeParams params = of[0].params;
    params.q = q, params.out = out, params.lse = lse;
    params.cache = both.cache;
    params.cache.row_dim = 64;
    params.num_kv_heads = 2;
    params.causal = causal;
    std::vector<std::vector<Bf16>> outs;
    std::vector<std::vector<float>> lses;
    for (int64_t g = 0; g < 2; ++g) {
      const std::vector<Bf16> rows = random_bf16(7 * 64, 1.0f, 20 + static_cast<uint32_t>(g));
      int64_t next = 0;
      for (const int64_t slot : {10, 11, 2, 3, 6, 8, 9}) {
        const Bf16* const row = rows.data() + 64 * next++;
        of[g].write(slot, row);
        const int64_t stride = 2 * 2 * 64 * 2 + 64;  // of pages: 2 slots of 2 rows, and a gap
        std::memcpy(static_cast<std::byte*>(both.cache.data) + slot / 2 * stride + (slot % 2 * 2 + g) * 128, row, 128);
      }
      Array<Bf16> own_q{{5, 3, 64}}, own_out{{5, 3, 64}};
      Array<float> own_lse{{5, 3}};
      for (int64_t t = 0; t < 5; ++t) {
        for (int64_t i = 0; i < 3 * 64; ++i) own_q[t * 192 + i] = q[(t * 6 + 3 * g) * 64 + i];
      }
      DenseAttnDecodeParams own = of[g].params;
      own.q = own_q, own.out = own_out, own.lse = own_lse;
      own.causal = causal;
      with_every_implementation(ops::make_dense_attn_decode(), own, 2, [&] {
        outs.push_back(own_out.values());
        lses.push_back(own_lse.values());
      });
    }
    size_t i = 0;
    const size_t count = outs.size() / 2;
    with_every_implementation(ops::make_dense_attn_decode(), params, 2, [&] {
      ASSERT_LT(i, count);
      for (int64_t t = 0; t < 5; ++t) {
        for (int64_t h = 0; h < 6; ++h) {
          const std::vector<Bf16>& own = outs[i + (h < 3 ? 0 : count)];
          EXPECT_EQ(std::memcmp(&out[(t * 6 + h) * 64], own.data() + (t * 3 + h % 3) * 64, 128), 0) << t << " " << h;
          EXPECT_EQ(lse[t * 6 + h], lses[i + (h < 3 ? 0 : count)][static_cast<size_t>(t * 3 + h % 3)]) << t << " " << h;
        }
      }
      ++i;
    });
    EXPECT_EQ(i, count);
  }
}

TEST(DenseAttnDecode, RefusesWhatContradictsTheContract) {
  const auto op = ops::make_dense_attn_decode();
  const auto refused = [&](auto change, std::initializer_list<const char*> words) {
    DecodeCase c;
    change(c);
    expect_refused(op, c.params, words, c.out, c.lse);
  };
  refused([](DecodeCase& c) { c.params.q.dtype = DType::f32; }, {"q must be bf16", "f32"});
  refused([](DecodeCase& c) { c.params.q.shape[1] = 129; }, {"q", "1 to 128 heads", "129"});
  refused([](DecodeCase& c) { c.params.q.shape[1] = 0; }, {"q", "1 to 128 heads", "0"});
  refused([](DecodeCase& c) { c.params.num_kv_heads = 0; }, {"num_kv_heads", "at least 1", "0"});
  refused([](DecodeCase& c) { c.params.num_kv_heads = -2; }, {"num_kv_heads", "at least 1", "-2"});
  refused([](DecodeCase& c) { c.params.num_kv_heads = 3; }, {"q", "multiple of the 3 KV heads", "has 2"});
  refused([](DecodeCase& c) { c.params.num_kv_heads = 2, c.params.q.shape[1] = 258; }, {"q", "1 to 128 heads for each of 2", "258"});
  refused([](DecodeCase& c) { c.params.num_kv_heads = 2, c.params.q.shape[1] = 0; }, {"q", "1 to 128 heads for each of 2", "0"});
  refused([](DecodeCase& c) { c.params.num_kv_heads = 2; }, {"cache", "page_stride of at least 512 bytes", "2 KV heads", "256"});
  refused(
      [](DecodeCase& c) {
        c.params.num_kv_heads = 2, c.params.cache.page_size = 1 << 24, c.params.cache.page_stride = int64_t{1} << 40;
        c.params.cache.num_pages = 1;
      },
      {"num_kv_heads", "at most 1", "2"});
  refused(
      [](DecodeCase& c) {
        c.params.num_kv_heads = 2, c.params.cache.format = KvFormat::fp8_ds_mla;
        c.params.q.shape[2] = c.params.cache.row_dim = 576, c.params.cache.page_stride = 4096;
      },
      {"cache", "bf16 or fp8_tensor with 2 KV heads", "fp8_ds_mla"});
  refused([](DecodeCase& c) { c.params.q.shape[2] = 577; }, {"q", "1 to 576", "577"});
  refused([](DecodeCase& c) { c.params.q.stride[2] = 2; }, {"q", "stride 1", "2"});
  refused([](DecodeCase& c) { c.params.q.device = {DeviceKind::cuda, 0}; }, {"q", "cpu", "cuda:0"});
  refused([](DecodeCase& c) { c.params.cache.format = KvFormat::fp8_ds_mla_v4; }, {"cache", "format", "fp8_ds_mla_v4"});
  refused([](DecodeCase& c) { c.params.cache.row_dim = 128; }, {"cache", "row_dim 64", "128"});
  refused([](DecodeCase& c) { c.params.cache.page_stride = 8; }, {"cache", "page_stride", "8"});
  refused([](DecodeCase& c) { c.params.cache.device = {DeviceKind::cuda, 1}; }, {"cache", "cpu", "cuda:1"});
  refused([](DecodeCase& c) { c.params.block_table.dtype = DType::i64; }, {"block_table", "i32", "i64"});
  refused([](DecodeCase& c) { c.params.block_table.shape[1] = 2; }, {"block_table", "3 blocks", "5 rows of request 0", "2"});
  refused([](DecodeCase& c) { c.table[2] = 6; }, {"block_table[0, 2]", "[0, 6)", "6"});
  refused([](DecodeCase& c) { c.table[3] = -1; }, {"block_table[1, 0]", "[0, 6)", "-1"});
  refused([](DecodeCase& c) { c.start[1] = 6; }, {"query_start_loc[1]", "max_query_len = 3", "6"});
  refused([](DecodeCase& c) { c.start[2] = 2; }, {"query_start_loc[2]", "3", "2"});
  refused([](DecodeCase& c) { c.start[2] = 4; }, {"query_start_loc", "cover 5 rows", "4"});
  refused([](DecodeCase& c) { c.lens[1] = -1; }, {"seq_lens[1]", "[0, max_seq_len = 5]", "-1"});
  refused([](DecodeCase& c) { c.lens[0] = 6; }, {"seq_lens[0]", "[0, max_seq_len = 5]", "6"});
  refused([](DecodeCase& c) { c.params.softmax_scale = 0.0f; }, {"softmax_scale", "0"});
  refused([](DecodeCase& c) { c.params.softmax_scale = kNaN; }, {"softmax_scale", "nan"});
  refused([](DecodeCase& c) { c.params.max_query_len = -1; }, {"max_query_len", "[0, 2147483648)", "-1"});
  refused([](DecodeCase& c) { c.params.max_seq_len = -1; }, {"max_seq_len", "[0, 2147483648)", "-1"});
  refused([](DecodeCase& c) { c.params.max_seq_len = int64_t{1} << 31; }, {"max_seq_len", "[0, 2147483648)", "is 2147483648"});
  refused([](DecodeCase& c) { c.params.out.shape[2] = 65; }, {"out", "64", "65"});
  refused([](DecodeCase& c) { c.params.out.stride[0] = 64; }, {"out", "overlap", "strides"});
  refused([](DecodeCase& c) { c.params.lse.shape[1] = 3; }, {"lse", "[5, 2]", "f32[5, 3]"});
}

// 40 queries and 40 keys of 2 heads of 64 + 32 dimensions, values of 64.
struct PrefillCase {
  static constexpr int64_t kTokens = 40, kHeads = 2;
  PrefillCase() {
    const TensorView kv_view = kv.view();
    params = {.q = q,
              .k_nope = kv_view.columns(0, 64),
              .k_pe = k_pe,
              .v = kv_view.columns(64, 64),
              .query_start_loc = start,
              .key_start_loc = start,
              .max_query_len = kTokens,
              .max_key_len = kTokens,
              .softmax_scale = 0.1f,
              .out = out,
              .lse = lse};
  }
  Bf16* value(int64_t key, int64_t head) { return &kv[(key * kHeads + head) * 128 + 64]; }
  Array<Bf16> q{{kTokens, kHeads, 96}, random_bf16(kTokens* kHeads * 96, 1.0f, 1)};
  Array<Bf16> kv{{kTokens, kHeads, 128}, random_bf16(kTokens* kHeads * 128, 1.0f, 2)};
  Array<Bf16> k_pe{{kTokens, 32}, random_bf16(kTokens * 32, 1.0f, 3)};
  Array<int32_t> start{{2}, {0, kTokens}};
  Array<Bf16> out{{kTokens, kHeads, 64}};
  Array<float> lse{{kTokens, kHeads}};
  DenseAttnPrefillParams params;
};

// Tiles multiply what a query does not see by a weight of zero: a value that is not finite must not come through.
TEST(DenseAttnPrefill, AValueThatIsNotFiniteReachesTheQueriesThatSeeItOnly) {
  for (const float bad : {kNaN, kInf, -kInf}) {
    for (const int64_t key : {0, 5, 17, 31, 32, 39}) {
      PrefillCase clean, spoilt;
      spoilt.value(key, 1)[35] = to_bf16(bad);
      std::vector<std::vector<Bf16>> want;
      with_every_implementation(ops::make_dense_attn_prefill(), clean.params, 2, [&] { want.push_back(clean.out.values()); });
      size_t i = 0;
      with_every_implementation(ops::make_dense_attn_prefill(), spoilt.params, 2, [&] {
        const std::vector<Bf16>& expected = want[i++];
        for (int64_t e = 0; e < PrefillCase::kTokens * 2 * 64; ++e) {
          const int64_t token = e / 128, head = e / 64 % 2, dim = e % 64;
          if (token >= key && head == 1 && dim == 35) {
            ASSERT_FALSE(std::isfinite(to_float(spoilt.out[e]))) << "token " << token << " must see key " << key;
            if (std::isinf(bad)) {
              ASSERT_EQ(to_float(spoilt.out[e]), bad);
            }
          } else {
            ASSERT_EQ(spoilt.out[e].bits, expected[static_cast<size_t>(e)].bits) << "token " << token << " head " << head << " dim " << dim;
          }
        }
      });
    }
  }
}

TEST(DenseAttnPrefill, AKeyThatIsNotFiniteReachesTheQueriesThatSeeItOnly) {
  PrefillCase clean, spoilt;
  for (int64_t d = 0; d < 32; ++d) spoilt.k_pe[20 * 32 + d] = to_bf16(kNaN);
  std::vector<std::vector<Bf16>> want;
  with_every_implementation(ops::make_dense_attn_prefill(), clean.params, 2, [&] { want.push_back(clean.out.values()); });
  size_t i = 0;
  with_every_implementation(ops::make_dense_attn_prefill(), spoilt.params, 2, [&] {
    EXPECT_EQ(std::memcmp(want[i].data(), spoilt.out.values().data(), 20 * 128 * sizeof(Bf16)), 0);
    ++i;
    EXPECT_TRUE(std::isnan(to_float(spoilt.out[20 * 128])));
  });
}

// 700 queries are cut differently for every number of threads, and a slice of a batch is cut differently from the whole.
TEST(DenseAttnPrefill, ResultsDoNotDependOnThreadsOrOnTheBatch) {
  constexpr int64_t kTokens = 700;
  Array<Bf16> q({kTokens, 1, 96}, random_bf16(kTokens * 96, 1.0f, 1)), kv({kTokens, 1, 128}, random_bf16(kTokens * 128, 1.0f, 2));
  Array<Bf16> k_pe({kTokens, 32}, random_bf16(kTokens * 32, 1.0f, 3)), out({kTokens, 1, 64});
  Array<int32_t> start({4}, {7, 17, 647, 707});
  DenseAttnPrefillParams params{.q = q,
                                .k_nope = kv.view().columns(0, 64),
                                .k_pe = k_pe,
                                .v = kv.view().columns(64, 64),
                                .query_start_loc = start,
                                .key_start_loc = start,
                                .max_query_len = 630,
                                .max_key_len = 630,
                                .softmax_scale = 0.1f,
                                .out = out};
  std::vector<std::vector<Bf16>> want;
  const auto op = ops::make_dense_attn_prefill();
  with_every_implementation(op, params, 1, [&] { want.push_back(out.values()); });
  for (const int threads : {2, 7}) {
    size_t i = 0;
    with_every_implementation(op, params, threads,
                              [&] { EXPECT_EQ(std::memcmp(want[i++].data(), out.values().data(), kTokens * 64 * 2), 0); });
  }
  DenseAttnPrefillParams alone = params;  // request 1
  alone.q = params.q.slice(10, 630);
  alone.k_nope = params.k_nope.slice(10, 630);
  alone.v = params.v.slice(10, 630);
  alone.k_pe = params.k_pe.slice(10, 630);
  alone.out = params.out.slice(10, 630);
  alone.query_start_loc = alone.key_start_loc = {};
  size_t i = 0;
  with_every_implementation(op, alone, 2,
                            [&] { EXPECT_EQ(std::memcmp(want[i++].data() + 10 * 64, out.values().data() + 10 * 64, 630 * 64 * 2), 0); });
}

TEST(DenseAttnPrefill, RefusesWhatContradictsTheContract) {
  const auto op = ops::make_dense_attn_prefill();
  const auto refused = [&](auto change, std::initializer_list<const char*> words) {
    PrefillCase c;
    change(c);
    expect_refused(op, c.params, words, c.out, c.lse);
  };
  refused([](PrefillCase& c) { c.params.q.dtype = DType::f16; }, {"q must be bf16", "f16"});
  refused([](PrefillCase& c) { c.params.q.shape[2] = 97; }, {"k_nope and k_pe", "97 dimensions", "64 and 32"});
  refused([](PrefillCase& c) { c.params.q.shape[2] = 640; }, {"q", "2 to 576", "640"});
  refused([](PrefillCase& c) { c.params.k_nope.shape[1] = 1; }, {"k_nope", "2", "bf16[40, 1, 64]"});
  refused([](PrefillCase& c) { c.params.k_nope.stride[2] = 2; }, {"k_nope", "stride 1", "2"});
  refused([](PrefillCase& c) { c.params.k_pe.shape[0] = 39; }, {"k_pe", "40", "bf16[39, 32]"});
  refused([](PrefillCase& c) { c.params.v.shape[0] = 41; }, {"v", "40", "41"});
  refused([](PrefillCase& c) { c.params.v.device = {DeviceKind::cuda, 0}; }, {"v", "cpu", "cuda:0"});
  refused([](PrefillCase& c) { c.params.out.dtype = DType::f16; }, {"out", "bf16", "f32", "f16"});
  refused([](PrefillCase& c) { c.params.out.shape[2] = 63; }, {"out", "64", "63"});
  refused([](PrefillCase& c) { c.params.out.stride[1] = 0; }, {"out", "overlap"});
  refused([](PrefillCase& c) { c.params.lse.shape[0] = 39; }, {"lse", "[40, 2]", "f32[39, 2]"});
  refused([](PrefillCase& c) { c.params.max_query_len = 39; }, {"query_start_loc[1]", "max_query_len = 39", "40"});
  refused([](PrefillCase& c) { c.params.max_key_len = 39; }, {"key_start_loc[1]", "max_key_len = 39", "40"});
  refused([](PrefillCase& c) { c.params.max_key_len = -1; }, {"max_key_len", "[0, 2147483648)", "-1"});
  refused([](PrefillCase& c) { c.params.max_key_len = int64_t{1} << 31; }, {"max_key_len", "[0, 2147483648)", "is 2147483648"});
  refused([](PrefillCase& c) { c.params.key_start_loc = {}; }, {"key_start_loc", "present with query_start_loc", "absent"});
  refused([](PrefillCase& c) { c.start[1] = 41; }, {"query_start_loc[1]", "41"});
  const auto without_starts = [](PrefillCase& c) { c.params.query_start_loc = c.params.key_start_loc = {}; };
  refused([&](PrefillCase& c) { without_starts(c), c.params.max_query_len = 39; }, {"q", "max_query_len = 39", "40"});
  refused([&](PrefillCase& c) { without_starts(c), c.params.max_key_len = 39; }, {"k_nope", "max_key_len = 39", "40"});
  refused([](PrefillCase& c) { c.params.query_start_loc.shape[0] = c.params.key_start_loc.shape[0] = 0; },
          {"query_start_loc", "at least 1 entry", "0"});
  refused([](PrefillCase& c) { c.params.v.shape[2] = c.params.out.shape[2] = 0; }, {"v", "1 to 576 dimensions", "0"});
  refused([](PrefillCase& c) { c.params.v.shape[2] = c.params.out.shape[2] = 577; }, {"v", "1 to 576 dimensions", "577"});
  refused([](PrefillCase& c) { c.params.softmax_scale = -1.0f; }, {"softmax_scale", "-1"});
}

// What shapes show is refused where values are not looked at, too: workspaces and launches are planned by it.
TEST(DenseAttention, MoreQueriesThanTheRequestsHaveRoomForOnAGpu) {
  constexpr DeviceId kGpu{DeviceKind::cuda, 0};
  const auto refuse = [&](const auto& op, const auto& params, std::string_view words) {
    try {
      op.check(params, kGpu);
      ADD_FAILURE() << op.name() << " accepted the call";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), testing::HasSubstr(words));
    }
  };
  DecodeCase decode;
  DenseAttnDecodeParams d = decode.params;
  d.cache.device = kGpu;
  for (TensorView* view : {&d.q, &d.block_table, &d.query_start_loc, &d.seq_lens, &d.out, &d.lse}) view->device = kGpu;
  d.max_query_len = 2;
  refuse(ops::make_dense_attn_decode(), d, "q must have at most 4 rows, max_query_len = 2 for each of 2 requests, has 5");
  d.max_query_len = 3;
  EXPECT_NO_THROW(ops::make_dense_attn_decode().check(d, kGpu));

  PrefillCase prefill;
  DenseAttnPrefillParams p = prefill.params;
  for (TensorView* view : {&p.q, &p.k_nope, &p.k_pe, &p.v, &p.query_start_loc, &p.key_start_loc, &p.out, &p.lse}) view->device = kGpu;
  p.max_query_len = 39;
  refuse(ops::make_dense_attn_prefill(), p, "q must have at most 39 rows, max_query_len = 39 for each of 1 requests, has 40");
  p.max_query_len = 40;
  EXPECT_NO_THROW(ops::make_dense_attn_prefill().check(p, kGpu));
}

}  // namespace
}  // namespace strata
