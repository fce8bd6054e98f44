// The CPU's norm, rotation, insertion, gather and index ops against the scalar reference, at every instruction-set cap.
#include "unit/cpu_harness.h"

namespace strata::cpu_test {
namespace {

constexpr int64_t kPositions = 300;

// A cache with guard bytes everywhere: what an op must not touch stays as it was.
struct Pages {
  Pages(KvFormat format, int32_t row_dim, int32_t page_size, int64_t num_pages, int64_t extra) {
    cache = {.format = format,
             .row_dim = row_dim,
             .page_size = page_size,
             .num_pages = num_pages,
             .page_stride = page_payload_bytes(format, row_dim, page_size) + extra,
             .scale = 0.7f};
    bytes.assign(static_cast<size_t>(cache.page_stride * num_pages), 0xCD);
  }
  PagedCache on(std::vector<uint8_t>& memory) const {
    PagedCache result = cache;
    result.data = memory.data();
    return result;
  }
  PagedCache cache;
  std::vector<uint8_t> bytes;
};

// Distinct slots in random order, one in four negative.
std::vector<int64_t> slots(Random& random, int64_t n, int64_t num_slots) {
  std::vector<int64_t> all(static_cast<size_t>(num_slots));
  for (int64_t i = 0; i < num_slots; ++i) all[static_cast<size_t>(i)] = i;
  for (int64_t i = num_slots - 1; i > 0; --i) std::swap(all[static_cast<size_t>(i)], all[static_cast<size_t>(random.below(i + 1))]);
  all.resize(static_cast<size_t>(n));
  for (auto& s : all) {
    if (random.below(4) == 0) s = -1 - random.below(3);
  }
  return all;
}

TEST(CpuNorm, AgreesWithTheReference) {
  const auto op = ops::make_rms_norm_pair();
  for (const auto& [tokens, nq, nkv] :
       {std::tuple<int64_t, int64_t, int64_t>{0, 8, 8}, {1, 1024, 512}, {3, 1, 7}, {70, 100, 513}, {5, 0, 64}}) {
    Random random(1);
    auto q = random.bf16(tokens * (nq + 3)), kv = random.bf16(tokens * nkv);
    auto qw = random.normals(nq), kvw = random.normals(nkv);
    const auto params = [&, tokens = tokens, nq = nq, nkv = nkv](std::vector<Bf16>& q_out, std::vector<Bf16>& kv_out) {
      RmsNormPairParams p;
      if (nq > 0) {
        p.q = view(q, DType::bf16, {tokens, nq + 3}).columns(1, nq);
        p.q_weight = view(qw, DType::f32, {nq});
        p.q_out = view(q_out, DType::bf16, {tokens, nq});
      }
      p.kv = view(kv, DType::bf16, {tokens, nkv});
      p.kv_weight = view(kvw, DType::f32, {nkv});
      p.kv_out = view(kv_out, DType::bf16, {tokens, nkv});
      return p;
    };
    std::vector<Bf16> q_expected(static_cast<size_t>(tokens * nq)), kv_expected(static_cast<size_t>(tokens * nkv));
    ASSERT_TRUE(run(op, "reference", params(q_expected, kv_expected), *capped(CpuIsa::best)));
    for (const CpuIsa cap : kCaps) {
      std::vector<Bf16> q_out(q_expected.size()), kv_out(kv_expected.size());
      ASSERT_TRUE(run(op, "cpu/simd", params(q_out, kv_out), *capped(cap)));
      expect_near_bf16(q_expected, q_out, 1e-3, to_string(cap));
      expect_near_bf16(kv_expected, kv_out, 1e-3, to_string(cap));
    }
  }
}

// Bytes of the scalar quantiser, of the bf16 result.
TEST(CpuNorm, CodesAreThoseOfTheRoundedResult) {
  constexpr int64_t kTokens = 19, kKv = 16;
  const auto op = ops::make_rms_norm_pair();
  for (const int64_t nq : {1, 127, 256, 328}) {
    Random random(2);
    auto q = random.bf16(kTokens * nq), kv = random.bf16(kTokens * kKv);
    auto qw = random.normals(nq), kvw = random.normals(kKv);
    for (const CpuIsa cap : kCaps) {
      for (const auto format : {ActivationFormat::fp8_ue8m0, ActivationFormat::fp8_f32}) {
        std::vector<Bf16> q_out(q.size()), kv_out(kv.size());
        RmsNormPairParams p{.q = view(q, DType::bf16, {kTokens, nq}),
                            .q_weight = view(qw, DType::f32, {nq}),
                            .q_out = view(q_out, DType::bf16, {kTokens, nq}),
                            .kv = view(kv, DType::bf16, {kTokens, kKv}),
                            .kv_weight = view(kvw, DType::f32, {kKv}),
                            .kv_out = view(kv_out, DType::bf16, {kTokens, kKv})};
        ASSERT_TRUE(run(op, "cpu/simd", p, *capped(cap)));
        const int64_t blocks = (nq + 127) / 128;
        std::vector<E4m3> codes(q.size());
        std::vector<float> scales(static_cast<size_t>(kTokens * blocks));
        p.q_out = view(codes, DType::e4m3, {kTokens, nq});
        p.q_scale = view(scales, DType::f32, {kTokens, blocks});
        p.q_format = format;
        ASSERT_TRUE(run(op, "cpu/simd", p, *capped(cap)));
        for (int64_t t = 0; t < kTokens; ++t) {
          for (int64_t b = 0; b < blocks; ++b) {
            const int64_t first = t * nq + b * 128, count = std::min<int64_t>(128, nq - b * 128);
            E4m3 expected[128];
            const float scale = quantize_activation(q_out.data() + first, count, format == ActivationFormat::fp8_ue8m0, expected);
            EXPECT_EQ(scales[static_cast<size_t>(t * blocks + b)], scale) << to_string(cap);
            for (int64_t i = 0; i < count; ++i) ASSERT_EQ(codes[static_cast<size_t>(first + i)].bits, expected[i].bits) << to_string(cap);
          }
        }
      }
    }
  }
}

TEST(CpuQNormRopeKvInsert, AgreesWithTheReference) {
  const auto op = ops::make_qnorm_rope_kv_insert();
  struct Case {
    int64_t tokens, heads, padded_heads, dim, rotary, inserts;
    KvFormat format;
    bool e4m3_out;
  };
  const Case cases[] = {{1, 1, 1, 512, 64, 1, KvFormat::fp8_ds_mla_v4, false}, {0, 8, 8, 512, 64, 0, KvFormat::fp8_ds_mla_v4, false},
                        {5, 3, 8, 512, 64, 4, KvFormat::fp8_ds_mla_v4, false}, {33, 8, 8, 512, 64, 33, KvFormat::fp8_ds_mla_v4, false},
                        {7, 64, 64, 512, 64, 7, KvFormat::bf16, false},        {2, 128, 128, 512, 64, -1, KvFormat::bf16, false},
                        {9, 8, 8, 512, 64, 9, KvFormat::fp8_tensor, true},     {9, 2, 4, 96, 32, 9, KvFormat::bf16, false},
                        {4, 3, 3, 100, 26, 4, KvFormat::fp8_tensor, true},     {3, 2, 2, 600, 600, 3, KvFormat::bf16, false}};
  for (const Case& c : cases) {
    Random random(2);
    auto q = random.bf16(c.tokens * c.heads * c.dim), kv = random.bf16(c.tokens * (c.dim + 8));
    auto table = rope_table(kPositions, c.rotary);
    std::vector<int64_t> positions(static_cast<size_t>(c.tokens));
    for (auto& p : positions) p = random.below(kPositions);
    const Pages pages(c.format, static_cast<int32_t>(c.dim), 5, 12, 17);
    auto mapping = slots(random, std::max<int64_t>(c.inserts, 0), pages.cache.num_slots());
    const size_t out_bytes = static_cast<size_t>(c.tokens * c.padded_heads * c.dim) * (c.e4m3_out ? 1 : 2);
    const auto params = [&](std::vector<uint8_t>& out, std::vector<uint8_t>& memory) {
      QNormRopeKvInsertParams p;
      p.q = view(q, DType::bf16, {c.tokens, c.heads, c.dim});
      p.kv = view(kv, DType::bf16, {c.tokens, c.dim + 8}).columns(8, c.dim);
      p.positions = view(positions, DType::i64, {c.tokens});
      p.cos_sin = view(table, DType::f32, {kPositions, c.rotary});
      if (c.inserts >= 0) p.slot_mapping = view(mapping, DType::i64, {c.inserts});
      p.cache = pages.on(memory);
      p.q_out = view(out, c.e4m3_out ? DType::e4m3 : DType::bf16, {c.tokens, c.padded_heads, c.dim});
      p.q_scale_inv = c.e4m3_out ? 3.0f : 1.0f;
      return p;
    };
    std::vector<uint8_t> expected(out_bytes, 1), cache_expected = pages.bytes;
    ASSERT_TRUE(run(op, "reference", params(expected, cache_expected), *capped(CpuIsa::best)));
    for (const CpuIsa cap : kCaps) {
      std::vector<uint8_t> out(out_bytes, 1), cache = pages.bytes;
      ASSERT_TRUE(run(op, "cpu/simd", params(out, cache), *capped(cap)));
      expect_near_codes(expected, out, 2e-3, to_string(cap));
      // Quantised dimensions are bit-exact; rotated ones may be one step off, which is rare with these inputs.
      expect_near_codes(cache_expected, cache, 2e-3, to_string(cap));
    }
  }
}

constexpr std::pair<KvFormat, int32_t> kRowFormats[] = {
    {KvFormat::fp8_ds_mla_v4, 512}, {KvFormat::bf16, 512},          {KvFormat::bf16, 37},
    {KvFormat::fp8_tensor, 512},    {KvFormat::fp8_tensor, 576},    {KvFormat::fp8_tensor, 50},
    {KvFormat::indexer_fp8, 128},   {KvFormat::indexer_mxfp4, 128}, {KvFormat::fp8_ds_mla, 576}};

TEST(CpuQuantizeAndInsert, WritesTheSameBytes) {
  const auto op = ops::make_quantize_and_insert_k();
  for (const auto& [format, dim] : kRowFormats) {
    for (const bool ue8m0 : {false, true}) {
      if (ue8m0 && format != KvFormat::fp8_ds_mla) continue;
      for (const int64_t tokens : {0, 1, 50}) {
        Random random(3);
        auto k = random.bf16(tokens * dim);
        for (size_t i = 5; i < k.size(); i += 997) k[i] = {static_cast<uint16_t>(i % 2 == 0 ? 0x7F80 : 0xFFC0)};  // infinity, NaN
        const Pages pages(format, dim, 7, 10, 3);
        auto mapping = slots(random, tokens, pages.cache.num_slots());
        const auto params = [&, dim = dim](std::vector<uint8_t>& memory) {
          return QuantizeAndInsertKParams{view(k, DType::bf16, {tokens, dim}), view(mapping, DType::i64, {tokens}), pages.on(memory),
                                          ue8m0};
        };
        auto expected = pages.bytes;
        ASSERT_TRUE(run(op, "reference", params(expected), *capped(CpuIsa::best)));
        for (const CpuIsa cap : kCaps) {
          auto actual = pages.bytes;
          ASSERT_TRUE(run(op, "cpu/simd", params(actual), *capped(cap)));
          EXPECT_EQ(expected, actual) << to_string(format) << " " << dim << " " << to_string(cap);
        }
      }
    }
  }
}

TEST(CpuGather, ReadsTheSameValues) {
  const auto op = ops::make_dequantize_and_gather_k();
  for (const auto& [format, dim] : kRowFormats) {
    for (const bool some : {false, true}) {
      Random random(4);
      const Pages pages(format, dim, 6, 40, 5);
      auto memory = random.bytes(static_cast<int64_t>(pages.bytes.size()));  // every value and scale, NaN included
      std::vector<int32_t> seq_lens{0, 1, 100, 37}, gather_lens{0, 1, 50, 0}, table(4 * 20);
      for (auto& page : table) page = static_cast<int32_t>(random.below(40));
      constexpr int64_t kRows = 110;
      const auto params = [&, dim = dim](std::vector<Bf16>& out) {
        DequantizeAndGatherKParams p;
        p.cache = pages.on(memory);
        p.seq_lens = view(seq_lens, DType::i32, {4});
        if (some) p.gather_lens = view(gather_lens, DType::i32, {4});
        p.block_table = view(table, DType::i32, {4, 20});
        p.offset = 3;
        p.out = view(out, DType::bf16, {4, kRows, dim});
        return p;
      };
      std::vector<Bf16> expected(static_cast<size_t>(4 * kRows * dim), Bf16{0x1234});
      const auto untouched = expected;
      ASSERT_TRUE(run(op, "reference", params(expected), *capped(CpuIsa::best)));
      for (const CpuIsa cap : kCaps) {
        auto actual = untouched;
        ASSERT_TRUE(run(op, "cpu/simd", params(actual), *capped(cap)));
        for (size_t i = 0; i < expected.size(); ++i) {
          // NaN of any sign and payload is NaN.
          if (std::isnan(to_float(expected[i])) && std::isnan(to_float(actual[i]))) continue;
          ASSERT_EQ(expected[i].bits, actual[i].bits) << to_string(format) << " " << dim << " " << to_string(cap) << " element " << i;
        }
      }
    }
  }
}

TEST(CpuInverseRope, AgreesWithTheReference) {
  const auto op = ops::make_inverse_rope();
  const auto quant_op = ops::make_inverse_rope_quant();
  struct Case {
    int64_t tokens, heads, dim, rotary, groups;
  };
  for (const Case& c :
       {Case{0, 8, 512, 64, 1}, {1, 1, 512, 64, 1}, {7, 8, 512, 64, 1}, {3, 64, 512, 64, 8}, {2, 3, 128, 128, 3}, {5, 2, 256, 96, 1}}) {
    Random random(5);
    auto o = random.bf16(c.tokens * c.heads * c.dim);
    auto table = rope_table(kPositions, c.rotary);
    std::vector<int64_t> positions(static_cast<size_t>(c.tokens));
    for (auto& p : positions) p = random.below(kPositions);
    const TensorView position_view = view(positions, DType::i64, {c.tokens}), table_view = view(table, DType::f32, {kPositions, c.rotary});
    const TensorView o_view = view(o, DType::bf16, {c.tokens, c.heads, c.dim});
    const int64_t width = c.heads / c.groups * c.dim;
    std::vector<Bf16> expected(o.size());
    ASSERT_TRUE(run(op, "reference", {o_view, position_view, table_view, view(expected, DType::bf16, {c.tokens, c.heads, c.dim})},
                    *capped(CpuIsa::best)));
    std::vector<uint8_t> codes(o.size());
    std::vector<float> scales(o.size() / 128);
    const auto quant_params = [&](std::vector<uint8_t>& code, std::vector<float>& scale) {
      return InverseRopeQuantParams{o_view, position_view, table_view, view(code, DType::e4m3, {c.tokens, c.groups, width}),
                                    view(scale, DType::f32, {c.tokens, c.groups, width / 128})};
    };
    ASSERT_TRUE(run(quant_op, "reference", quant_params(codes, scales), *capped(CpuIsa::best)));
    for (const CpuIsa cap : kCaps) {
      std::vector<Bf16> actual(o.size()), in_place = o;
      ASSERT_TRUE(
          run(op, "cpu/simd", {o_view, position_view, table_view, view(actual, DType::bf16, {c.tokens, c.heads, c.dim})}, *capped(cap)));
      const TensorView in_place_view = view(in_place, DType::bf16, {c.tokens, c.heads, c.dim});
      ASSERT_TRUE(run(op, "cpu/simd", {in_place_view, position_view, table_view, in_place_view}, *capped(cap)));
      expect_near_bf16(expected, actual, 1e-3, to_string(cap));
      expect_near_bf16(actual, in_place, 0, to_string(cap));
      std::vector<uint8_t> code(codes.size());
      std::vector<float> scale(scales.size());
      ASSERT_TRUE(run(quant_op, "cpu/simd", quant_params(code, scale), *capped(cap)));
      expect_near_codes(codes, code, 1e-3, to_string(cap));
      EXPECT_EQ(scales, scale) << to_string(cap);
    }
  }
}

TEST(CpuIndices, AreEqual) {
  Random random(6);
  constexpr int64_t kTokens = 97, kRequests = 4, kBlocks = 40, kTopk = 50;
  std::vector<int64_t> positions(kTokens);
  std::vector<int32_t> request(kTokens), table(kRequests * kBlocks), topk(kTokens * kTopk);
  std::vector<uint8_t> valid(kTokens);
  for (auto& p : positions) p = random.below(kBlocks * 7);
  for (auto& r : request) r = static_cast<int32_t>(random.below(kRequests));
  for (auto& page : table) page = static_cast<int32_t>(random.below(1000));
  for (auto& v : valid) v = random.below(5) != 0;
  for (auto& j : topk) j = static_cast<int32_t>(random.below(kBlocks * 8) - 20);
  const TensorView position_view = view(positions, DType::i64, {kTokens}), request_view = view(request, DType::i32, {kTokens});
  const TensorView valid_view = view(valid, DType::u8, {kTokens}), table_view = view(table, DType::i32, {kRequests, kBlocks});
  const auto device = capped(CpuIsa::best);

  const auto compare = [&](const auto& op, auto params) {
    std::vector<std::vector<int64_t>> results;
    for (const std::string name : {"reference", "cpu/simd"}) {
      std::vector<int64_t> out(kTokens * 100, 77), lens(kTokens, 77);
      EXPECT_TRUE(run(op, name, params(out, lens), *device)) << op.name();
      out.insert(out.end(), lens.begin(), lens.end());
      results.push_back(out);
    }
    EXPECT_EQ(results[0], results[1]) << op.name();
  };
  for (const TensorView& v : {valid_view, TensorView{}}) {
    for (const int32_t ratio : {1, 4}) {
      compare(ops::make_slot_mapping(), [&](auto& out, auto&) {
        return SlotMappingParams{position_view, request_view, v, table_view, 7, ratio, view(out, DType::i64, {kTokens})};
      });
    }
    compare(ops::make_swa_indices(), [&](auto& out, auto& lens) {
      return SwaIndicesParams{
          position_view, request_view, v, table_view, 7, 20, view(out, DType::i32, {kTokens, 20}), view(lens, DType::i32, {kTokens})};
    });
    for (const TensorView& t : {table_view, TensorView{}}) {
      compare(ops::make_compressed_indices(), [&](auto& out, auto& lens) {
        return CompressedIndicesParams{
            position_view, request_view, v, t, 7, 4, view(out, DType::i32, {kTokens, 65}), view(lens, DType::i32, {kTokens})};
      });
    }
    for (const int32_t page_size : {7, 8})
      compare(ops::make_compute_global_topk(), [&](auto& out, auto& lens) {
        return ComputeGlobalTopkParams{
            view(topk, DType::i32, {kTokens, kTopk}), request_view, v, table_view, page_size, view(out, DType::i32, {kTokens, kTopk}),
            view(lens, DType::i32, {kTokens})};
      });
  }
  std::vector<int32_t> starts{10, 40, 40, 107}, seq_lens{200, 60, 67}, gather_lens{49, 0, 67};
  // Column j is read where there are more than j entries.
  for (size_t i = 0; i < topk.size(); ++i) topk[i] = static_cast<int32_t>(random.below(static_cast<int64_t>(i) % kTopk + 1));
  for (const int32_t top_k : {0, 50}) {
    compare(ops::make_combine_topk_swa(), [&](auto& out, auto& lens) {
      CombineTopkSwaParams p;
      if (top_k > 0) p.topk_indices = view(topk, DType::i32, {kTokens, kTopk});
      p.query_start_loc = view(starts, DType::i32, {4});
      p.seq_lens = view(seq_lens, DType::i32, {3});
      p.gather_lens = view(gather_lens, DType::i32, {3});
      p.window = 20;
      p.ratio = 4;
      p.top_k = top_k;
      p.m = 300;
      p.n = 75;
      p.combined_indices = view(out, DType::i32, {kTokens, 80});
      p.combined_lens = view(lens, DType::i32, {kTokens});
      return p;
    });
  }
}

}  // namespace
}  // namespace strata::cpu_test
