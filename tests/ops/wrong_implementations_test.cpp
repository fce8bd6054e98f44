// The cases catch what they are for: an implementation that is wrong in one way, put before the others of its op, fails its case, and the
// same implementation without the fault passes it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <stdexcept>

#include "formats/bf16.h"
#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata {
namespace {

using testing::HasSubstr;
using testkit::CheckResult;
using testkit::Outcome;

const testkit::AnyCase& find_case(const testkit::CaseList& list, const std::string& op, const std::string& name) {
  for (const auto& c : list) {
    if (c->op() == op && c->name() == name) return *c;
  }
  throw std::runtime_error(op + " has no case " + name);
}

template <class Params>
using Fault = std::function<void(const Params&, const ExecutionContext&)>;

template <class Params>
CheckResult check_with(Op<Params> OpSet::*member, const std::string& name, Fault<Params> fault, size_t workspace) {
  static const testkit::CaseList list = testkit::all_cases();
  OpSet ops = default_ops();
  Op<Params>& op = ops.*member;
  Implementation<Params> faulty = testkit::find_implementation(op, "reference");
  faulty.name = "faulty";
  faulty.workspace_bytes = [inner = faulty.workspace_bytes, workspace](const Params& p, const Device& d) {
    return inner(p, d) + workspace;
  };
  faulty.run = [inner = faulty.run, fault](const Params& p, const ExecutionContext& context) {
    inner(p, context);
    fault(p, context);
  };
  op.prepend(std::move(faulty));
  return find_case(list, op.name(), name).start_check(ops, {})->run(open_device({}), "faulty");
}

template <class Params>
void expect_caught(Op<Params> OpSet::*member, const std::string& name, const std::string& message, Fault<Params> fault,
                   size_t workspace = 0) {
  const CheckResult right = check_with<Params>(
      member, name, [](const Params&, const ExecutionContext&) {}, workspace);
  EXPECT_EQ(right.outcome, Outcome::passed) << right.message;
  const CheckResult wrong = check_with<Params>(member, name, fault, workspace);
  EXPECT_EQ(wrong.outcome, Outcome::failed);
  EXPECT_THAT(wrong.message, HasSubstr(message));
  EXPECT_THAT(wrong.message, HasSubstr("--case " + name + " --impl faulty --device cpu --seed 1"));
}

// f(element) for every bf16 of [T, n].
template <class F>
void for_each_bf16(const TensorView& v, F&& f) {
  for (int64_t t = 0; t < v.shape[0]; ++t) {
    for (int64_t i = 0; i < v.shape[1]; ++i) f(v.row<Bf16>(t)[i]);
  }
}

uint8_t* data_of(const PagedCache& cache, int64_t slot) { return static_cast<uint8_t*>(cache.data) + cache.data_offset(slot); }
uint8_t* scale_of(const PagedCache& cache, int64_t slot) { return static_cast<uint8_t*>(cache.data) + cache.scale_offset(slot); }

int64_t first_slot(const TensorView& slots) {
  for (int64_t i = 0; i < slots.shape[0]; ++i) {
    if (slots.ptr<int64_t>()[i] >= 0) return slots.ptr<int64_t>()[i];
  }
  throw std::runtime_error("the case writes no row");
}

int64_t unused_slot(const TensorView& slots, int64_t num_slots) {
  for (int64_t slot = 0; slot < num_slots; ++slot) {
    bool used = false;
    for (int64_t i = 0; i < slots.shape[0]; ++i) used = used || slots.ptr<int64_t>()[i] == slot;
    if (!used) return slot;
  }
  throw std::runtime_error("the case writes every row");
}

constexpr const char* kNorm = "T17-q1536-kv512-strided";

TEST(Exact, OneIndexOffByOne) {
  expect_caught<SwaIndicesParams>(&OpSet::swa_indices, "W128-B64-1of1", "indices[0, 0]",
                                  [](const SwaIndicesParams& p, const ExecutionContext&) { p.indices.ptr<int32_t>()[0] += 1; });
}

TEST(Exact, RowNotWritten) {
  expect_caught<SwaIndicesParams>(
      &OpSet::swa_indices, "W128-B64-300of300", "lens[299] is",
      [](const SwaIndicesParams& p, const ExecutionContext&) { std::memset(p.lens.ptr<int32_t>() + 299, 0x5A, sizeof(int32_t)); });
}

TEST(Close, OneElementFarOff) {
  expect_caught<RmsNormPairParams>(&OpSet::rms_norm_pair, kNorm, "are beyond abs", [](const RmsNormPairParams& p, const ExecutionContext&) {
    p.kv_out.row<Bf16>(16)[511] = to_bf16(1.5f * to_float(p.kv_out.row<Bf16>(16)[511]) + 1.0f);
  });
}

TEST(Close, EveryElementOneStepOff) {
  expect_caught<RmsNormPairParams>(&OpSet::rms_norm_pair, kNorm, "of which 0.02 may",
                                   [](const RmsNormPairParams& p, const ExecutionContext&) {
                                     for_each_bf16(p.q_out, [](Bf16& v) { v.bits = static_cast<uint16_t>(v.bits & ~1u); });
                                   });
}

TEST(Close, NaN) {
  expect_caught<RmsNormPairParams>(&OpSet::rms_norm_pair, kNorm, "q_out[0, 3] is nan",
                                   [](const RmsNormPairParams& p, const ExecutionContext&) { p.q_out.row<Bf16>(0)[3].bits = 0x7FC0; });
}

// However few of how many elements: what may be further away are numbers.
TEST(Close, NaNOrInfinityInALargeCase) {
  const std::string name = "b110-s1-H16-D512-rows60-fp8_ds_mla_v4-B64-and90-fp8_ds_mla_v4-B2-sink_mixed";
  const auto all_bits = [&](int64_t element, uint16_t bits, const std::string& message) {
    expect_caught<SparseAttnDecodeParams>(
        &OpSet::sparse_attn_decode, name, message,
        [=](const SparseAttnDecodeParams& p, const ExecutionContext&) { p.out.ptr<Bf16>()[element].bits = bits; });
  };
  all_bits(5 * 16 * 512 + 3, 0xFFFF, "out[5, 0, 0, 3] is -nan");  // as it was before the run
  all_bits(109 * 16 * 512 - 1, 0x7F80, "out[108, 0, 15, 511] is inf");
}

TEST(Close, EverythingOnePercentLarger) {
  // Within the tolerance of every element, but not as a whole.
  expect_caught<SparseAttnDecodeParams>(&OpSet::sparse_attn_decode, "b2-s1-H16-D512-rows200-fp8_ds_mla_v4-B64-sink_mixed",
                                        "out has cos_diff", [](const SparseAttnDecodeParams& p, const ExecutionContext&) {
                                          auto* out = p.out.ptr<Bf16>();
                                          for (int64_t i = 0; i < p.out.numel(); ++i) out[i] = to_bf16(1.01f * to_float(out[i]));
                                        });
}

TEST(CodeStep, OneCodeFarOff) {
  expect_caught<InverseRopeQuantParams>(&OpSet::inverse_rope_quant, "T3-H4-G1-D512-R64", "more than one code away",
                                        [](const InverseRopeQuantParams& p, const ExecutionContext&) {
                                          for (int64_t i = 0; i < 8; ++i) p.out.ptr<E4m3>()[i].bits ^= 0x80;
                                        });
}

TEST(CodeStep, ManyCodesOneStepOff) {
  expect_caught<IndexerQueryParams>(&OpSet::indexer_query, "T17-H64-D128-mxfp4", "of which 0.02 may",
                                    [](const IndexerQueryParams& p, const ExecutionContext&) {
                                      for (int64_t i = 0; i < p.q_out.numel(); i += 8) p.q_out.ptr<uint8_t>()[i] ^= 1;
                                    });
}

constexpr const char* kNormCodes = "T17-q1536-kv65-q_fp8";

TEST(CodeStep, CodesBesideTheirScales) {
  // One block has half its scale, or values of the other sign.
  expect_caught<RmsNormPairParams>(&OpSet::rms_norm_pair, kNormCodes, "q_scale[16, 11]",
                                   [](const RmsNormPairParams& p, const ExecutionContext&) { p.q_scale.row<float>(16)[11] *= 0.5f; });
  expect_caught<RmsNormPairParams>(&OpSet::rms_norm_pair, kNormCodes, "more than one code away",
                                   [](const RmsNormPairParams& p, const ExecutionContext&) {
                                     for (int64_t i = 0; i < 128; ++i) p.q_out.row<E4m3>(3)[i].bits ^= 0x80;
                                   });
}

// One block of many, as it was before the run: its values or its scale, whatever share of a case may be further off.
TEST(CodeStep, BlockNotWritten) {
  const auto forget = [](const TensorView& v, size_t bytes) { std::memset(v.data, 0xFF, bytes); };
  for (const bool codes : {true, false}) {
    expect_caught<InverseRopeQuantParams>(
        &OpSet::inverse_rope_quant, "T300-H4-G1-D512-R64", codes ? "out[0, 0, 0] is" : "scale[0, 0, 0] is",
        [=](const InverseRopeQuantParams& p, const ExecutionContext&) { codes ? forget(p.out, 128) : forget(p.scale, sizeof(float)); });
    expect_caught<GroupedLinearParams>(
        &OpSet::grouped_linear, "T17-G16-N1024-K384-e4m3-x_e4m3-y_fp8", codes ? "y[0, 0, 0] is" : "y_scale[0, 0, 0] is",
        [=](const GroupedLinearParams& p, const ExecutionContext&) { codes ? forget(p.y, 128) : forget(p.y_scale, sizeof(float)); });
  }
}

// NaN is the byte after the largest scale.
TEST(CodeStep, ScaleThatIsNaN) {
  using testkit::compare, testkit::code_step, testkit::HostArray;
  const auto scales = [](uint8_t last) { return HostArray{DType::e8m0, {3}, {std::byte{1}, std::byte{127}, std::byte{last}}}; };
  EXPECT_EQ(compare("scale", scales(253), scales(254), code_step()), "");
  EXPECT_EQ(compare("scale", scales(255), scales(255), code_step()), "");
  EXPECT_THAT(compare("scale", scales(255), scales(254), code_step()), HasSubstr("scale[2] is nan"));
  EXPECT_THAT(compare("scale", scales(254), scales(255), code_step()), HasSubstr("must be nan"));
}

constexpr const char* kCompress = "r4-D512-fp8_ds_mla_v4-S4-B64-17of17-3of3-4of4-300of300";

TEST(CodeStep, WrongScaleOfOneCacheRow) {
  expect_caught<CompressNormRopeStoreParams>(&OpSet::compress_norm_rope_store, kCompress, "more than one code away",
                                             [](const CompressNormRopeStoreParams& p, const ExecutionContext&) {
                                               for (int64_t t = 0; t < p.positions.shape[0]; ++t) {
                                                 if (p.positions.ptr<int64_t>()[t] == 7)
                                                   scale_of(p.cache, p.out_slots.ptr<int64_t>()[t])[3] += 1;
                                               }
                                             });
}

Fault<CompressNormRopeStoreParams> in_first_entry(std::function<void(const PagedCache&, int64_t slot)> change) {
  return [change](const CompressNormRopeStoreParams& p, const ExecutionContext&) {
    for (int64_t t = 0; t < p.positions.shape[0]; ++t) {
      if (p.positions.ptr<int64_t>()[t] == 3) return change(p.cache, p.out_slots.ptr<int64_t>()[t]);
    }
  };
}

TEST(CodeStep, NaNInOneCacheRowOfMany) {
  const std::string name = "r4-D512-fp8_ds_mla_v4-S4-B64-8600of8600";
  const auto caught = [&](const std::string& message, std::function<void(const PagedCache&, int64_t slot)> change) {
    expect_caught<CompressNormRopeStoreParams>(&OpSet::compress_norm_rope_store, name, message, in_first_entry(std::move(change)));
  };
  caught("lane 5 is nan", [](const PagedCache& cache, int64_t slot) { data_of(cache, slot)[5] = 0x7F; });
  caught("lane 128 is nan", [](const PagedCache& cache, int64_t slot) { scale_of(cache, slot)[2] = 0xFF; });
  caught("byte 7 of the scale row is 255", [](const PagedCache& cache, int64_t slot) { scale_of(cache, slot)[7] = 0xFF; });
}

TEST(CodeStep, InfinityInACacheRow) {
  expect_caught<CompressNormRopeStoreParams>(
      &OpSet::compress_norm_rope_store, "r4-D512-bf16-S4-B64-17of17-3of3-4of4-300of300", "lane 9 is inf",
      in_first_entry([](const PagedCache& cache, int64_t slot) { reinterpret_cast<Bf16*>(data_of(cache, slot))[9].bits = 0x7F80; }));
}

constexpr const char* kQuantize = "T17-fp8_ds_mla_v4-D512-B64";

TEST(CacheBytes, CodeOfAWrittenRow) {
  expect_caught<QuantizeAndInsertKParams>(
      &OpSet::quantize_and_insert_k, kQuantize, "bytes differ",
      [](const QuantizeAndInsertKParams& p, const ExecutionContext&) { data_of(p.cache, first_slot(p.slot_mapping))[17] ^= 1; });
}

TEST(CacheBytes, ScalePaddingNotZero) {
  expect_caught<QNormRopeKvInsertParams>(
      &OpSet::qnorm_rope_kv_insert, "T5-H64-fp8_ds_mla_v4-B64", "byte 7 of the scale row is 1",
      [](const QNormRopeKvInsertParams& p, const ExecutionContext&) { scale_of(p.cache, first_slot(p.slot_mapping))[7] = 1; });
}

TEST(CacheBytes, RowThatNoSlotNames) {
  expect_caught<QNormRopeKvInsertParams>(&OpSet::qnorm_rope_kv_insert, "T5-H64-fp8_ds_mla_v4-B64", "bytes differ",
                                         [](const QNormRopeKvInsertParams& p, const ExecutionContext&) {
                                           data_of(p.cache, unused_slot(p.slot_mapping, p.cache.num_slots()))[100] = 0;
                                         });
}

TEST(CacheBytes, PaddingOfAPage) {
  expect_caught<QuantizeAndInsertKParams>(
      &OpSet::quantize_and_insert_k, "T33-fp8_ds_mla_v4-D512-B2-stride+576", "bytes differ",
      [](const QuantizeAndInsertKParams& p, const ExecutionContext&) { static_cast<uint8_t*>(p.cache.data)[p.cache.page_stride - 1] = 0; });
}

constexpr const char* kTopk = "k16-H16-D128-indexer_fp8-B64-3of200-1of67";

// The candidate of the smallest logit replaces the selected one of rank `rank`, 0 being the largest logit.
Fault<IndexerTopkParams> smallest_instead_of(int64_t rank) {
  return [rank](const IndexerTopkParams& p, const ExecutionContext&) {
    const int64_t k = p.topk_indices.shape[1];
    IndexerLogitsParams l{.q = p.q,
                          .q_scale = p.q_scale,
                          .weights = p.weights,
                          .cache = p.cache,
                          .block_table = p.block_table,
                          .token_to_req = p.token_to_req,
                          .lengths = p.lengths,
                          .logits = {}};
    std::vector<float> logits(static_cast<size_t>(p.lengths.shape[0] * p.max_length));
    l.logits = TensorView::contiguous(logits.data(), DType::f32, {}, {p.lengths.shape[0], p.max_length});
    const auto device = open_device({});
    const OpSet ops = default_ops();
    testkit::find_implementation(ops.indexer_logits, "reference").run(l, ExecutionContext{*device});
    const int64_t length = p.lengths.ptr<int32_t>()[0];
    std::vector<int32_t> order(static_cast<size_t>(length));
    for (int64_t i = 0; i < length; ++i) order[static_cast<size_t>(i)] = static_cast<int32_t>(i);
    std::sort(order.begin(), order.end(),
              [&](int32_t a, int32_t b) { return logits[static_cast<size_t>(a)] < logits[static_cast<size_t>(b)]; });
    // The length is above k, so the smallest of all is not selected.
    int32_t* row = p.topk_indices.ptr<int32_t>();
    *std::find(row, row + k, order[static_cast<size_t>(length - 1 - rank)]) = order.front();
    std::sort(row, row + k);
  };
}

TEST(Selection, SmallestInsteadOfAChosenOne) {
  expect_caught<IndexerTopkParams>(&OpSet::indexer_topk, kTopk, "lacks", smallest_instead_of(0));
  // The last one selected may be left out for one that is as good; the smallest is not.
  expect_caught<IndexerTopkParams>(&OpSet::indexer_topk, kTopk, "is below the smallest chosen one", smallest_instead_of(15));
}

TEST(Selection, OrderAndPadding) {
  expect_caught<IndexerTopkParams>(&OpSet::indexer_topk, kTopk, "must be above", [](const IndexerTopkParams& p, const ExecutionContext&) {
    std::swap(p.topk_indices.ptr<int32_t>()[0], p.topk_indices.ptr<int32_t>()[1]);
  });
  // A token with fewer candidates than k: the remaining entries must be -1.
  expect_caught<IndexerTopkParams>(&OpSet::indexer_topk, "k64-H8-D128-indexer_fp8-B64-17of200-1of30-pad2-strided", "must be",
                                   [](const IndexerTopkParams& p, const ExecutionContext&) { p.topk_indices.row<int32_t>(17)[63] = 0; });
}

TEST(Memory, PaddingBetweenRows) {
  expect_caught<RmsNormPairParams>(&OpSet::rms_norm_pair, kNorm, "which is no output's",
                                   [](const RmsNormPairParams& p, const ExecutionContext&) { p.kv_out.row<Bf16>(2)[512] = to_bf16(0.0f); });
}

TEST(Memory, InputChanged) {
  expect_caught<RmsNormPairParams>(&OpSet::rms_norm_pair, kNorm, "which is no output's",
                                   [](const RmsNormPairParams& p, const ExecutionContext&) { p.kv_weight.ptr<float>()[5] += 1.0f; });
}

TEST(Memory, BehindTheWorkspace) {
  constexpr size_t kBytes = 1000;
  expect_caught<RmsNormPairParams>(
      &OpSet::rms_norm_pair, kNorm, "wrote past its workspace of 1000 bytes",
      [](const RmsNormPairParams&, const ExecutionContext& context) { static_cast<uint8_t*>(context.workspace.data)[kBytes] = 0; }, kBytes);
}

TEST(Errors, AnExceptionIsAFailure) {
  expect_caught<RmsNormPairParams>(&OpSet::rms_norm_pair, kNorm, "threw: no such thing",
                                   [](const RmsNormPairParams&, const ExecutionContext&) { throw std::runtime_error("no such thing"); });
}

TEST(Errors, ARefusalIsNoFailure) {
  static const testkit::CaseList list = testkit::all_cases();
  OpSet ops = default_ops();
  Implementation<RmsNormPairParams> refusing = testkit::find_implementation(ops.rms_norm_pair, "reference");
  refusing.name = "refusing";
  refusing.supports = [](const RmsNormPairParams&, const Device&) { return Support::no("not today"); };
  ops.rms_norm_pair.prepend(std::move(refusing));
  const CheckResult result = find_case(list, "rms_norm_pair", kNorm).start_check(ops, {})->run(open_device({}), "refusing");
  EXPECT_EQ(result.outcome, Outcome::skipped);
  EXPECT_EQ(result.message, "not today");
}

}  // namespace
}  // namespace strata
