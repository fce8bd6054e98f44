// What every op refuses, field by field, whatever the rest of the call is.
#include <limits>

#include "formats/kv_rows.h"
#include "ops/c_params.h"
#include "ops/contract.h"

namespace strata {
namespace {

using test::Contract;
using test::ViewField;
using test::ViewKind;
using test::When;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr ViewKind kInput{};
constexpr ViewKind kOptional{.optional = true};
constexpr ViewKind kOutput{.output = true};
constexpr ViewKind kOptionalOutput{.optional = true, .output = true};
constexpr ViewKind kContiguous{.contiguous = true};
constexpr ViewKind kContiguousOutput{.output = true, .contiguous = true};

template <class P>
ViewField<P> view(const char* name, TensorView P::*m, const char* extents, ViewKind is = kInput, When<P> when = {}) {
  return {name, [m](P& p) -> TensorView& { return p.*m; }, extents, is, std::move(when)};
}

// A member of a prologue or an epilogue, which may be absent.
template <class P, class F>
ViewField<P> view_of(const char* name, std::optional<F> P::*fusion, TensorView F::*m, const char* extents, ViewKind is = kInput,
                     When<P> when = {}) {
  return {name,
          [=](P& p) -> TensorView& {
            static TensorView absent;
            return p.*fusion ? (*(p.*fusion)).*m : absent = {};
          },
          extents, is, std::move(when)};
}

// Of a weight that belongs to the test's copy of a call. What packed weights must be is in linear_test.
template <class P>
ViewField<P> of_weight(const char* name, TensorView LinearWeight::*m, ViewKind is = kInput) {
  return {name, [m](P& p) -> TensorView& { return const_cast<LinearWeight*>(p.weight)->*m; }, "==", is};
}

Contract<LinearParams> contract_of(const Op<LinearParams>&) {
  using P = LinearParams;
  const When<P> codes = [](const P& p) { return p.x.dtype == DType::e4m3; };
  return {.views = {view("x", &P::x, "=="), view("x_scale", &P::x_scale, "=="), view("y", &P::y, "==", kOutput),
                    of_weight<P>("weight.weight", &LinearWeight::weight, {.optional = true, .contiguous = true}),
                    of_weight<P>("weight.scale", &LinearWeight::scale)},
          .values = {{"weight", [](P& p) { p.weight = nullptr; }},
                     {"weight", [](P& p) { const_cast<LinearWeight*>(p.weight)->weight = {}; }},
                     {"activation", [](P& p) { p.activation = ActivationFormat::bf16; }, codes},
                     {"x_scale", [](P& p) { p.x_scale = p.x; }, [=](const P& p) { return !codes(p); }}}};
}

Contract<GroupedLinearParams> contract_of(const Op<GroupedLinearParams>&) {
  using P = GroupedLinearParams;
  const When<P> codes = [](const P& p) { return p.y.dtype == DType::e4m3; };
  const When<P> values = [](const P& p) { return p.y.dtype != DType::e4m3; };
  return {.views = {view("x", &P::x, "==="), view("x_scale", &P::x_scale, "==="), view("y", &P::y, "===", kOutput, values),
                    view("y", &P::y, "===", kContiguousOutput, codes), view("y_scale", &P::y_scale, "===", kContiguousOutput),
                    of_weight<P>("weight.weight", &LinearWeight::weight, {.optional = true, .contiguous = true}),
                    of_weight<P>("weight.scale", &LinearWeight::scale)},
          .values = {{"weight", [](P& p) { p.weight = nullptr; }},
                     {"weight", [](P& p) { const_cast<LinearWeight*>(p.weight)->weight = {}; }},
                     {"y_format", [](P& p) { p.y_format = ActivationFormat::bf16; }, codes},
                     {"y_scale", [](P& p) { p.y_scale = p.y; }, values}}};
}

Contract<RmsNormPairParams> contract_of(const Op<RmsNormPairParams>&) {
  using P = RmsNormPairParams;
  const When<P> both = [](const P& p) { return p.q.present(); };
  const When<P> plain = [](const P& p) { return !p.insert_epilogue; };
  const When<P> inserts = [](const P& p) { return p.insert_epilogue.has_value(); };
  return {.views = {view("q", &P::q, "==", kOptional), view("q_weight", &P::q_weight, "=", kInput, both),
                    view("q_out", &P::q_out, "==", kOutput, both), view("q_scale", &P::q_scale, "==", kOutput, both),
                    view("kv", &P::kv, "=="), view("kv_weight", &P::kv_weight, "="), view("kv_out", &P::kv_out, "==", kOutput, plain),
                    view_of<P>("insert_epilogue: slot_mapping", &P::insert_epilogue, &KeyInsert::slot_mapping, "*"),
                    view_of<P>("insert_epilogue: positions", &P::insert_epilogue, &KeyInsert::positions, "="),
                    view_of<P>("insert_epilogue: cos_sin", &P::insert_epilogue, &KeyInsert::cos_sin, "*=")},
          .caches = {{"insert_epilogue: cache",
                      [](P& p) -> PagedCache& {
                        static PagedCache absent;
                        return p.insert_epilogue ? p.insert_epilogue->cache : absent = {};
                      }}},
          .values = {{"eps", [](P& p) { p.eps = kNaN; }}, {"kv_out", [](P& p) { p.kv_out = p.kv; }, inserts}}};
}

Contract<QNormRopeKvInsertParams> contract_of(const Op<QNormRopeKvInsertParams>&) {
  using P = QNormRopeKvInsertParams;
  return {.views = {view("q", &P::q, "=*="), view("kv", &P::kv, "=="), view("positions", &P::positions, "="),
                    view("cos_sin", &P::cos_sin, "*="), view("slot_mapping", &P::slot_mapping, "*", kOptional),
                    view("q_out", &P::q_out, "=*=", kOutput)},
          .caches = {{"cache", &P::cache, false, [](const P& p) { return p.slot_mapping.present(); }}},
          .values = {{"eps", [](P& p) { p.eps = -1; }},
                     {"q_scale_inv", [](P& p) { p.q_scale_inv = 0; }, [](const P& p) { return p.q_out.dtype == DType::e4m3; }}}};
}

Contract<QuantizeAndInsertKParams> contract_of(const Op<QuantizeAndInsertKParams>&) {
  using P = QuantizeAndInsertKParams;
  return {.views = {view("k", &P::k, "*="), view("slot_mapping", &P::slot_mapping, "*")},
          .caches = {{"cache", &P::cache}},
          .values = {{"ue8m0", [](P& p) { p.ue8m0 = true; }, [](const P& p) { return p.cache.format != KvFormat::fp8_ds_mla; }}}};
}

Contract<DequantizeAndGatherKParams> contract_of(const Op<DequantizeAndGatherKParams>&) {
  using P = DequantizeAndGatherKParams;
  const auto too_wide = [](P& p) {
    p.cache.format = KvFormat::bf16;
    p.cache.row_dim = kMaxRowDim + 1;
    p.cache.num_pages = 0;
    p.cache.page_stride = page_payload_bytes(p.cache.format, p.cache.row_dim, p.cache.page_size);
  };
  return {.views = {view("seq_lens", &P::seq_lens, "="), view("gather_lens", &P::gather_lens, "=", kOptional),
                    view("block_table", &P::block_table, "=*"), view("out", &P::out, "=*=", kOutput)},
          .caches = {{"cache", &P::cache}},
          .values = {{"cache", too_wide}, {"offset", [](P& p) { p.offset = -1; }}}};
}

Contract<SavePartialStatesParams> contract_of(const Op<SavePartialStatesParams>&) {
  using P = SavePartialStatesParams;
  return {.views = {view("kv_score", &P::kv_score, "=="), view("ape", &P::ape, "*="), view("positions", &P::positions, "="),
                    view("state_slots", &P::state_slots, "=")},
          .caches = {{"state", &P::state}}};
}

Contract<CompressNormRopeStoreParams> contract_of(const Op<CompressNormRopeStoreParams>&) {
  using P = CompressNormRopeStoreParams;
  return {.views = {view("block_table", &P::block_table, "**"), view("token_to_req", &P::token_to_req, "="),
                    view("positions", &P::positions, "="), view("state_slots", &P::state_slots, "="), view("out_slots", &P::out_slots, "="),
                    view("norm_weight", &P::norm_weight, "="), view("cos_sin", &P::cos_sin, "*="),
                    view_of<P>("save_prologue: kv_score", &P::save_prologue, &StateSave::kv_score, "=="),
                    view_of<P>("save_prologue: ape", &P::save_prologue, &StateSave::ape, "==")},
          .caches = {{"state", &P::state}, {"cache", &P::cache}},
          .values = {{"ratio", [](P& p) { p.ratio = 5; }},
                     {"eps", [](P& p) { p.eps = -1; }},
                     {"hadamard", [](P& p) { p.hadamard = true; }, [](const P& p) { return p.norm_weight.shape[0] == 512; }}}};
}

Contract<IndexerQueryParams> contract_of(const Op<IndexerQueryParams>&) {
  using P = IndexerQueryParams;
  return {.views = {view("q", &P::q, "==="), view("weights", &P::weights, "=="), view("positions", &P::positions, "=", kOptional),
                    view("cos_sin", &P::cos_sin, "*=", kOptional), view("q_out", &P::q_out, "===", kContiguousOutput),
                    view("q_scale_out", &P::q_scale_out, "===", kContiguousOutput),
                    view("weights_out", &P::weights_out, "==", kContiguousOutput)},
          .values = {{"softmax_scale", [](P& p) { p.softmax_scale = 0; }},
                     {"head_scale", [](P& p) { p.head_scale = 0; }},
                     {"amax_floor", [](P& p) { p.amax_floor = 0; }},
                     {"positions", [](P& p) { p.positions = {}; }, [](const P& p) { return p.cos_sin.present(); }},
                     {"q_scale_out", [](P& p) { p.q_scale_out = p.q_out; }, [](const P& p) { return p.q_out.dtype != DType::u8; }}}};
}

Contract<IndexerLogitsParams> contract_of(const Op<IndexerLogitsParams>&) {
  using P = IndexerLogitsParams;
  return {
      .views = {view("q", &P::q, "===", kContiguous), view("q_scale", &P::q_scale, "===", kContiguous),
                view("weights", &P::weights, "==", kContiguous), view("block_table", &P::block_table, "**"),
                view("token_to_req", &P::token_to_req, "="), view("lengths", &P::lengths, "="), view("logits", &P::logits, "=*", kOutput)},
      .caches = {{"cache", &P::cache}},
      .values = {{"q_scale", [](P& p) { p.q_scale = p.q; }, [](const P& p) { return p.q.dtype != DType::u8; }}}};
}

Contract<TopkSelectParams> contract_of(const Op<TopkSelectParams>&) {
  using P = TopkSelectParams;
  return {.views = {view("logits", &P::logits, "=*"), view("lengths", &P::lengths, "="),
                    view("topk_indices", &P::topk_indices, "=*", kOutput)}};
}

Contract<IndexerTopkParams> contract_of(const Op<IndexerTopkParams>&) {
  using P = IndexerTopkParams;
  const auto scores = [](const P& p) { return p.max_length > p.topk_indices.shape[1]; };
  const auto has_slots = [](const P& p) { return p.slots_epilogue.has_value(); };
  const auto makes_query = [=](const P& p) { return scores(p) && p.query_prologue.has_value(); };
  const auto has_query = [=](const P& p) { return scores(p) && !p.query_prologue.has_value(); };
  const auto of_query = [&](const char* name, TensorView IndexerQueryPrologue::*m, const char* extents, ViewKind is = kInput) {
    return view_of<P>(name, &P::query_prologue, m, extents, is, makes_query);
  };
  const auto of_slots = [&](const char* name, TensorView TopkSlots::*m, const char* extents, ViewKind is = kInput) {
    return view_of<P>(name, &P::slots_epilogue, m, extents, is);
  };
  return {.views = {view<P>("q", &P::q, "===", kContiguous, has_query), view<P>("q_scale", &P::q_scale, "===", kContiguous, has_query),
                    view<P>("weights", &P::weights, "==", kContiguous, has_query),
                    view<P>("block_table", &P::block_table, "**", kInput, scores),
                    view<P>("token_to_req", &P::token_to_req, "=", kInput, [=](const P& p) { return scores(p) || has_slots(p); }),
                    view("lengths", &P::lengths, "="), view("topk_indices", &P::topk_indices, "=*", kOutput),
                    of_slots("slots_epilogue: block_table", &TopkSlots::block_table, "**"),
                    of_slots("slots_epilogue: slots", &TopkSlots::slots, "==", kOutput),
                    of_slots("slots_epilogue: lens", &TopkSlots::lens, "="), of_query("query_prologue: q", &IndexerQueryPrologue::q, "==="),
                    of_query("query_prologue: weights", &IndexerQueryPrologue::weights, "=="),
                    of_query("query_prologue: positions", &IndexerQueryPrologue::positions, "=", kOptional),
                    of_query("query_prologue: cos_sin", &IndexerQueryPrologue::cos_sin, "*=", kOptional)},
          .caches = {{"cache", &P::cache, false, scores}},
          .values = {{"max_length", [](P& p) { p.max_length = -1; }},
                     {"slots_epilogue: page_size", [](P& p) { p.slots_epilogue->page_size = 0; }, has_slots},
                     {"weights", [](P& p) { p.weights = p.query_prologue->weights; }, makes_query},
                     {"query_prologue: softmax_scale", [](P& p) { p.query_prologue->softmax_scale = 0; }, makes_query}}};
}

Contract<ScatterBlockTablesParams> contract_of(const Op<ScatterBlockTablesParams>&) {
  using P = ScatterBlockTablesParams;
  return {.views = {view("entries", &P::entries, "*"), view("segments", &P::segments, "*=", kContiguous),
                    view("block_table", &P::block_table, "**", kOutput)}};
}

Contract<SlotMappingParams> contract_of(const Op<SlotMappingParams>&) {
  using P = SlotMappingParams;
  return {.views = {view("positions", &P::positions, "="), view("token_to_req", &P::token_to_req, "="),
                    view("is_valid_token", &P::is_valid_token, "=", kOptional), view("block_table", &P::block_table, "**"),
                    view("slot_mapping", &P::slot_mapping, "=", kOutput)},
          .values = {{"page_size", [](P& p) { p.page_size = 0; }}, {"ratio", [](P& p) { p.ratio = 0; }}}};
}

Contract<SwaIndicesParams> contract_of(const Op<SwaIndicesParams>&) {
  using P = SwaIndicesParams;
  return {.views = {view("positions", &P::positions, "="), view("token_to_req", &P::token_to_req, "="),
                    view("is_valid_token", &P::is_valid_token, "=", kOptional), view("block_table", &P::block_table, "**"),
                    view("indices", &P::indices, "==", kOutput), view("lens", &P::lens, "=", kOutput)},
          .values = {{"page_size", [](P& p) { p.page_size = 0; }}, {"window", [](P& p) { p.window = 0; }}}};
}

Contract<CompressedIndicesParams> contract_of(const Op<CompressedIndicesParams>&) {
  using P = CompressedIndicesParams;
  const auto has_table = [](const P& p) { return p.block_table.present(); };
  return {.views = {view("positions", &P::positions, "="), view("token_to_req", &P::token_to_req, "=", kOptional),
                    view("is_valid_token", &P::is_valid_token, "=", kOptional), view("block_table", &P::block_table, "**", kOptional),
                    view("indices", &P::indices, "=*", kOutput), view("lens", &P::lens, "=", kOutput)},
          .values = {{"token_to_req", [](P& p) { p.token_to_req = {}; }, has_table},
                     {"page_size", [](P& p) { p.page_size = 0; }, has_table},
                     {"ratio", [](P& p) { p.ratio = 0; }}}};
}

Contract<ComputeGlobalTopkParams> contract_of(const Op<ComputeGlobalTopkParams>&) {
  using P = ComputeGlobalTopkParams;
  return {.views = {view("topk_indices", &P::topk_indices, "=="), view("token_to_req", &P::token_to_req, "="),
                    view("is_valid_token", &P::is_valid_token, "=", kOptional), view("block_table", &P::block_table, "**"),
                    view("global_indices", &P::global_indices, "==", kOutput), view("lens", &P::lens, "=", kOutput)},
          .values = {{"page_size", [](P& p) { p.page_size = 0; }}}};
}

Contract<CombineTopkSwaParams> contract_of(const Op<CombineTopkSwaParams>&) {
  using P = CombineTopkSwaParams;
  return {.views = {view<P>("topk_indices", &P::topk_indices, "==", kInput, [](const P& p) { return p.top_k > 0; }),
                    view("query_start_loc", &P::query_start_loc, "="), view("seq_lens", &P::seq_lens, "="),
                    view("gather_lens", &P::gather_lens, "="), view("combined_indices", &P::combined_indices, "=*", kOutput),
                    view("combined_lens", &P::combined_lens, "=", kOutput)},
          .values = {{"window", [](P& p) { p.window = 0; }},
                     {"ratio", [](P& p) { p.ratio = 0; }},
                     {"top_k", [](P& p) { p.top_k = -1; }},
                     {"n", [](P& p) { p.n = -1; }},
                     {"n", [](P& p) { p.n = p.m + 1; }},
                     {"m", [](P& p) { p.m = int64_t{1} << 40; }, [](const P& p) { return p.seq_lens.shape[0] > 0; }}}};
}

template <class P>
void spoil_schedule(P& p) {
  p.schedule.data = p.schedule.template ptr<char>() + 2;  // not at a multiple of 4 bytes
}

Contract<SparseAttnDecodeParams> contract_of(const Op<SparseAttnDecodeParams>&) {
  using P = SparseAttnDecodeParams;
  return {
      .views = {view("q", &P::q, "===="), view("indices", &P::indices, "==*"), view("topk_length", &P::topk_length, "=", kOptional),
                view("extra_indices", &P::extra_indices, "==*"), view("extra_topk_length", &P::extra_topk_length, "=", kOptional),
                view("attn_sink", &P::attn_sink, "=", kOptional), view("schedule", &P::schedule, "*", kOptional),
                view_of<P>("query_prologue: positions", &P::query_prologue, &QueryNormRope::positions, "="),
                view_of<P>("query_prologue: cos_sin", &P::query_prologue, &QueryNormRope::cos_sin, "*="),
                view_of<P>("out_epilogue: positions", &P::out_epilogue, &InverseRope::positions, "="),
                view_of<P>("out_epilogue: cos_sin", &P::out_epilogue, &InverseRope::cos_sin, "*="), view("out", &P::out, "===*", kOutput),
                view("lse", &P::lse, "===", kOptionalOutput), view("max_logits", &P::max_logits, "===", kOptionalOutput)},
      .caches = {{"cache", &P::cache}, {"extra_cache", &P::extra_cache, true}},
      .values = {
          {"softmax_scale", [](P& p) { p.softmax_scale = 0; }},
          {"query_prologue: eps", [](P& p) { p.query_prologue->eps = kNaN; }, [](const P& p) { return p.query_prologue.has_value(); }},
          {"schedule", spoil_schedule<P>, [](const P& p) { return p.schedule.present(); }}}};
}

Contract<SparseAttnPrefillParams> contract_of(const Op<SparseAttnPrefillParams>&) {
  using P = SparseAttnPrefillParams;
  return {.views = {view("q", &P::q, "==="), view("kv", &P::kv, "*="), view("indices", &P::indices, "=*"),
                    view("topk_length", &P::topk_length, "=", kOptional), view("attn_sink", &P::attn_sink, "=", kOptional),
                    view("out", &P::out, "==*", kOutput), view("lse", &P::lse, "==", kOptionalOutput),
                    view("max_logits", &P::max_logits, "==", kOptionalOutput)},
          .values = {{"softmax_scale", [](P& p) { p.softmax_scale = kNaN; }}}};
}

Contract<MergeAttnStatesParams> contract_of(const Op<MergeAttnStatesParams>&) {
  using P = MergeAttnStatesParams;
  return {.views = {view("o", &P::o, "===="), view("lse", &P::lse, "==="), view("attn_sink", &P::attn_sink, "=", kOptional),
                    view("out", &P::out, "===", kOutput), view("lse_out", &P::lse_out, "==", kOptionalOutput)},
          .values = {{"empty_lse", [](P& p) { p.empty_lse = 0; }, [](const P& p) { return p.lse_out.present(); }}}};
}

Contract<InverseRopeParams> contract_of(const Op<InverseRopeParams>&) {
  using P = InverseRopeParams;
  return {.views = {view("o", &P::o, "==="), view("positions", &P::positions, "="), view("cos_sin", &P::cos_sin, "*="),
                    view("out", &P::out, "===", kOutput)}};
}

Contract<InverseRopeQuantParams> contract_of(const Op<InverseRopeQuantParams>&) {
  using P = InverseRopeQuantParams;
  return {.views = {view("o", &P::o, "==="), view("positions", &P::positions, "="), view("cos_sin", &P::cos_sin, "*="),
                    view("out", &P::out, "===", kContiguousOutput), view("scale", &P::scale, "===", kContiguousOutput)}};
}

Contract<MlaRopeKvInsertParams> contract_of(const Op<MlaRopeKvInsertParams>&) {
  using P = MlaRopeKvInsertParams;
  return {.views = {view("q", &P::q, "=**", kOutput), view("c", &P::c, "=*"), view("k_pe", &P::k_pe, "==", kOutput),
                    view("positions", &P::positions, "=", kOptional), view("cos_sin", &P::cos_sin, "*=", kOptional),
                    view("llama_4_scaling", &P::llama_4_scaling, "=", kOptional), view("q_pe_out", &P::q_pe_out, "*==", kOptionalOutput),
                    view("slot_mapping", &P::slot_mapping, "*", kOptional)},
          .caches = {{"cache", &P::cache, false, [](const P& p) { return p.slot_mapping.present(); }}},
          .values = {{"positions", [](P& p) { p.positions = {}; }, [](const P& p) { return p.cos_sin.present(); }},
                     {"ue8m0", [](P& p) { p.ue8m0 = true; }, [](const P& p) { return p.cache.format != KvFormat::fp8_ds_mla; }}}};
}

Contract<IndexerKeyInsertParams> contract_of(const Op<IndexerKeyInsertParams>&) {
  using P = IndexerKeyInsertParams;
  return {.views = {view("k", &P::k, "*="), view("weight", &P::weight, "="), view("bias", &P::bias, "="),
                    view("positions", &P::positions, "=", kOptional), view("cos_sin", &P::cos_sin, "*=", kOptional),
                    view("slot_mapping", &P::slot_mapping, "*")},
          .caches = {{"cache", &P::cache}},
          .values = {{"positions", [](P& p) { p.positions = {}; }, [](const P& p) { return p.cos_sin.present(); }},
                     {"eps", [](P& p) { p.eps = 0; }}}};
}

Contract<DenseAttnDecodeParams> contract_of(const Op<DenseAttnDecodeParams>&) {
  using P = DenseAttnDecodeParams;
  return {.views = {view("q", &P::q, "==="), view("block_table", &P::block_table, "=*"), view("query_start_loc", &P::query_start_loc, "="),
                    view("seq_lens", &P::seq_lens, "="), view("schedule", &P::schedule, "*", kOptional),
                    view("out", &P::out, "==*", kOutput), view("lse", &P::lse, "==", kOptionalOutput)},
          .caches = {{"cache", &P::cache}},
          .values = {{"schedule", spoil_schedule<P>, [](const P& p) { return p.schedule.present(); }},
                     {"num_kv_heads", [](P& p) { p.num_kv_heads = 0; }},
                     {"max_query_len", [](P& p) { p.max_query_len = -1; }},
                     {"max_seq_len", [](P& p) { p.max_seq_len = -1; }},
                     {"softmax_scale", [](P& p) { p.softmax_scale = 0; }}}};
}

Contract<DenseAttnPrefillParams> contract_of(const Op<DenseAttnPrefillParams>&) {
  using P = DenseAttnPrefillParams;
  return {.views = {view("q", &P::q, "==="), view("k_nope", &P::k_nope, "==="), view("k_pe", &P::k_pe, "=="), view("v", &P::v, "==="),
                    view("query_start_loc", &P::query_start_loc, "=", kOptional), view("key_start_loc", &P::key_start_loc, "=", kOptional),
                    view("out", &P::out, "===", kOutput), view("lse", &P::lse, "==", kOptionalOutput)},
          .values = {{"key_start_loc", [](P& p) { p.key_start_loc = {}; }, [](const P& p) { return p.query_start_loc.present(); }},
                     {"q", [](P& p) { p.q.shape[1] = 0; }},
                     {"max_query_len", [](P& p) { p.max_query_len = -1; }},
                     {"max_key_len", [](P& p) { p.max_key_len = -1; }},
                     {"softmax_scale", [](P& p) { p.softmax_scale = 0; }}}};
}

std::vector<std::string> op_names() {
  std::vector<std::string> names;
  const OpSet ops = default_ops();
  for_each_op(ops, [&](const auto& op) { names.push_back(op.name()); });
  return names;
}

class Contracts : public testing::TestWithParam<std::string> {};

TEST_P(Contracts, EveryFieldIsChecked) {
  const OpSet ops = default_ops();
  for_each_op(ops, [&](const auto& op) {
    if (op.name() == GetParam()) test::expect_contract(ops, op, contract_of(op));
  });
}

// The op with its check through the C API. A call that C++ refuses must be refused with the same text there, and not be run. So must the
// questions about the call, unless what was wrong is memory or a value in it, which they do not look at.
template <class P>
Op<P> checked_by_c(const Op<P>& op, strata_device device) {
  const auto check = [&op, device](const P& p, DeviceId id) {
    std::string refusal;
    try {
      return op.check(p, id);
    } catch (const Error& error) {
      refusal = error.what();
    }
    test::ToC to;
    const auto c = to_c(p, to);
    const strata_execution execution = strata_execution_default();
    if (test::COp<P>::run(device, &c, &execution) == STRATA_OK) return;
    const std::string text = strata_last_error();
    EXPECT_EQ(text, refusal);
    int64_t bytes = -1;
    const char* name = nullptr;
    for (const strata_status status :
         {test::COp<P>::workspace_bytes(device, &c, &bytes), test::COp<P>::implementation(device, &c, &name)}) {
      EXPECT_TRUE(status == STRATA_OK || status == STRATA_INVALID_ARGUMENT) << strata_status_name(status) << strata_last_error();
      if (status == STRATA_INVALID_ARGUMENT && refusal.find("must have memory") == std::string::npos) {
        EXPECT_EQ(strata_last_error(), refusal);
      }
    }
    throw Error(ErrorCode::invalid_argument, text);
  };
  return Op<P>(op.name(), check, op.implementations());
}

TEST_P(Contracts, EveryFieldIsCheckedThroughTheCApi) {
  strata_device device;
  ASSERT_EQ(strata_device_open("cpu", nullptr, &device), STRATA_OK);
  const OpSet ops = default_ops();
  for_each_op(ops, [&](const auto& op) {
    if (op.name() == GetParam()) test::expect_contract(ops, checked_by_c(op, device), contract_of(op));
  });
  EXPECT_EQ(strata_device_close(device), STRATA_OK);
}

INSTANTIATE_TEST_SUITE_P(Ops, Contracts, testing::ValuesIn(op_names()), [](const auto& op) { return op.param; });

}  // namespace
}  // namespace strata
