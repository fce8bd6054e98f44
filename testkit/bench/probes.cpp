#include "testkit/bench/probes.h"

#include <algorithm>

#include "weights/weight_form.h"
#include "contracts/packed_weight.h"

namespace strata::testkit {
namespace {

constexpr int64_t kTokens = 64, kHeads = 64, kHeadDim = 512, kHidden = 4096, kQueryRank = 1024, kTopk = 512, kWindow = 128;

class Shapes {
 public:
  explicit Shapes(DeviceId device) : device_(device) {}
  TensorView of(DType dtype, std::initializer_list<int64_t> shape) const { return TensorView::contiguous(nullptr, dtype, device_, shape); }
  PagedCache cache(KvFormat format, int32_t row_dim, int32_t page_size) const {
    return {.device = device_,
            .format = format,
            .row_dim = row_dim,
            .page_size = page_size,
            .num_pages = 1024,
            .page_stride = page_padded_bytes(format, row_dim, page_size, 576)};
  }

 private:
  DeviceId device_;
};

// f(), or `otherwise` where no implementation takes the call.
template <class T, class F>
T if_taken(F&& f, T otherwise) {
  try {
    return f();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    return otherwise;
  }
}

// An e4m3 weight of V4 in the form in which a layer keeps it here; as published where a forced implementation takes no form.
LinearWeight as_kept(const OpSet& ops, const Device& device, const LinearRequest& request, int64_t rows) {
  const Shapes s(device.id());
  const int64_t groups = std::max<int64_t>(request.groups, 1);
  LinearWeight fp8{.n = rows / groups,
                   .k = request.k,
                   .groups = groups,
                   .weight = s.of(DType::e4m3, {rows, request.k}),
                   .scale = s.of(DType::f32, {rows / 128, request.k / 128})};
  fp8.power_of_two_scales = true;
  LinearWeight bf16 = fp8;
  bf16.weight = s.of(DType::bf16, {rows, request.k}), bf16.scale = {};
  bf16.from_e4m3 = true;
  const WeightFormChoice choice =
      if_taken([&] { return choose_weight_form(ops, device, request, fp8, bf16, "weight"); }, WeightFormChoice{.fp8 = true});
  const LinearWeight& form = choice.fp8 ? fp8 : bf16;
  if (choice.packing == nullptr) return form;
  return strata::ops::as_packed(form, choice.packing->name, s.of(DType::u8, {static_cast<int64_t>(choice.packed_bytes)}));
}

}  // namespace

std::vector<Probe> probe_ops(const OpSet& ops, const Device& device) {
  const Shapes s(device.id());
  std::vector<Probe> probes;
  const auto probe = [&](const auto& op, const auto& params) {
    const std::string chosen = if_taken([&] { return op.select(params, device).name; }, std::string());
    probes.push_back({op.name(), op.candidates(params, device), chosen});
  };
  const TensorView positions = s.of(DType::i64, {kTokens}), cos_sin = s.of(DType::f32, {65536, 64});
  const TensorView slots = s.of(DType::i64, {kTokens}), token_to_req = s.of(DType::i32, {kTokens}), lens = s.of(DType::i32, {kTokens});
  const TensorView table = s.of(DType::i32, {kTokens, 1024}), x = s.of(DType::bf16, {kTokens, kHidden});
  const TensorView heads = s.of(DType::bf16, {kTokens, kHeads, kHeadDim}), topk = s.of(DType::i32, {kTokens, kTopk});
  const PagedCache window = s.cache(KvFormat::fp8_ds_mla_v4, kHeadDim, 64), indexer = s.cache(KvFormat::indexer_fp8, 128, 64);
  const PagedCache state = s.cache(KvFormat::state_f32, 4 * kHeadDim, 4);

  const LinearWeight wq_a = as_kept(ops, device, {.k = kHidden, .activation = ActivationFormat::fp8_ue8m0}, kQueryRank);
  probe(ops.linear,
        LinearParams{.x = x, .weight = &wq_a, .y = s.of(DType::bf16, {kTokens, kQueryRank}), .activation = ActivationFormat::fp8_ue8m0});
  const LinearWeight wo_a = as_kept(ops, device, {.k = 4096, .groups = 8}, 8 * 1024);
  probe(ops.grouped_linear,
        GroupedLinearParams{.x = s.of(DType::bf16, {kTokens, 8, 4096}), .weight = &wo_a, .y = s.of(DType::bf16, {kTokens, 8, 1024})});
  const TensorView qa = s.of(DType::bf16, {kTokens, kQueryRank}), kv = s.of(DType::bf16, {kTokens, kHeadDim});
  probe(ops.rms_norm_pair, RmsNormPairParams{.q = qa,
                                             .q_weight = s.of(DType::f32, {kQueryRank}),
                                             .q_out = qa,
                                             .kv = kv,
                                             .kv_weight = s.of(DType::f32, {kHeadDim}),
                                             .kv_out = kv});
  probe(ops.qnorm_rope_kv_insert,
        QNormRopeKvInsertParams{
            .q = heads, .kv = kv, .positions = positions, .cos_sin = cos_sin, .slot_mapping = slots, .cache = window, .q_out = heads});
  probe(ops.quantize_and_insert_k, QuantizeAndInsertKParams{.k = kv, .slot_mapping = slots, .cache = window});
  probe(ops.dequantize_and_gather_k,
        DequantizeAndGatherKParams{
            .cache = window, .seq_lens = lens, .block_table = table, .out = s.of(DType::bf16, {kTokens, 256, kHeadDim})});
  probe(ops.save_partial_states, SavePartialStatesParams{.kv_score = s.of(DType::f32, {kTokens, 4 * kHeadDim}),
                                                         .ape = s.of(DType::f32, {4, 2 * kHeadDim}),
                                                         .positions = positions,
                                                         .state_slots = slots,
                                                         .state = state});
  probe(ops.compress_norm_rope_store, CompressNormRopeStoreParams{.state = state,
                                                                  .block_table = table,
                                                                  .token_to_req = token_to_req,
                                                                  .positions = positions,
                                                                  .state_slots = slots,
                                                                  .out_slots = slots,
                                                                  .norm_weight = s.of(DType::f32, {kHeadDim}),
                                                                  .cos_sin = cos_sin,
                                                                  .cache = window});
  const TensorView iq = s.of(DType::bf16, {kTokens, 64, 128}), codes = s.of(DType::e4m3, {kTokens, 64, 128}),
                   iw = s.of(DType::f32, {kTokens, 64});
  probe(ops.indexer_query, IndexerQueryParams{.q = iq,
                                              .weights = s.of(DType::bf16, {kTokens, 64}),
                                              .positions = positions,
                                              .cos_sin = cos_sin,
                                              .q_out = codes,
                                              .weights_out = iw});
  const TensorView logits = s.of(DType::f32, {kTokens, 8192});
  probe(ops.indexer_logits, IndexerLogitsParams{.q = codes,
                                                .weights = iw,
                                                .cache = indexer,
                                                .block_table = table,
                                                .token_to_req = token_to_req,
                                                .lengths = lens,
                                                .logits = logits});
  probe(ops.topk_select, TopkSelectParams{.logits = logits, .lengths = lens, .topk_indices = topk});
  probe(ops.indexer_topk, IndexerTopkParams{.q = codes,
                                            .weights = iw,
                                            .cache = indexer,
                                            .block_table = table,
                                            .token_to_req = token_to_req,
                                            .lengths = lens,
                                            .max_length = 8192,
                                            .topk_indices = topk});
  probe(ops.scatter_block_tables,
        ScatterBlockTablesParams{.entries = s.of(DType::i32, {8192}), .segments = s.of(DType::i32, {448, 4}), .block_table = table});
  probe(ops.slot_mapping,
        SlotMappingParams{
            .positions = positions, .token_to_req = token_to_req, .block_table = table, .page_size = 64, .slot_mapping = slots});
  const TensorView swa = s.of(DType::i32, {kTokens, kWindow});
  probe(ops.swa_indices,
        SwaIndicesParams{
            .positions = positions, .token_to_req = token_to_req, .block_table = table, .page_size = 64, .indices = swa, .lens = lens});
  probe(ops.compressed_indices,
        CompressedIndicesParams{
            .positions = positions, .token_to_req = token_to_req, .block_table = table, .page_size = 2, .indices = topk, .lens = lens});
  probe(
      ops.compute_global_topk,
      ComputeGlobalTopkParams{
          .topk_indices = topk, .token_to_req = token_to_req, .block_table = table, .page_size = 64, .global_indices = topk, .lens = lens});
  const TensorView query_start = s.of(DType::i32, {kTokens + 1}), combined = s.of(DType::i32, {kTokens, kTopk + kWindow});
  probe(ops.combine_topk_swa, CombineTopkSwaParams{.topk_indices = topk,
                                                   .query_start_loc = query_start,
                                                   .seq_lens = lens,
                                                   .gather_lens = lens,
                                                   .ratio = 4,
                                                   .top_k = kTopk,
                                                   .m = 1024,
                                                   .n = 512,
                                                   .combined_indices = combined,
                                                   .combined_lens = lens});
  const TensorView q4 = s.of(DType::bf16, {kTokens, 1, kHeads, kHeadDim});
  probe(ops.sparse_attn_decode, SparseAttnDecodeParams{.q = q4,
                                                       .cache = window,
                                                       .indices = s.of(DType::i32, {kTokens, 1, kWindow}),
                                                       .topk_length = lens,
                                                       .extra_cache = window,
                                                       .extra_indices = s.of(DType::i32, {kTokens, 1, kTopk}),
                                                       .extra_topk_length = lens,
                                                       .attn_sink = s.of(DType::f32, {kHeads}),
                                                       .softmax_scale = 0.044f,
                                                       .out = q4});
  probe(ops.sparse_attn_prefill, SparseAttnPrefillParams{.q = heads,
                                                         .kv = s.of(DType::bf16, {8192, kHeadDim}),
                                                         .indices = combined,
                                                         .topk_length = lens,
                                                         .attn_sink = s.of(DType::f32, {kHeads}),
                                                         .softmax_scale = 0.044f,
                                                         .out = heads});
  probe(ops.merge_attn_states,
        MergeAttnStatesParams{
            .o = s.of(DType::f32, {2, kTokens, kHeads, kHeadDim}), .lse = s.of(DType::f32, {2, kTokens, kHeads}), .out = heads});
  probe(ops.inverse_rope, InverseRopeParams{.o = heads, .positions = positions, .cos_sin = cos_sin, .out = heads});
  probe(ops.inverse_rope_quant, InverseRopeQuantParams{.o = heads,
                                                       .positions = positions,
                                                       .cos_sin = cos_sin,
                                                       .out = s.of(DType::e4m3, {kTokens, 8, 4096}),
                                                       .scale = s.of(DType::f32, {kTokens, 8, 32})});
  constexpr int64_t kLatent = 512, kRope = 64, kNope = 128, kValue = 128;
  const PagedCache latent = s.cache(KvFormat::bf16, kLatent + kRope, 64);
  const TensorView mla_q = s.of(DType::bf16, {kTokens, kHeads, kNope + kRope}), latents = s.of(DType::bf16, {kTokens, kLatent});
  const TensorView k_pe = s.of(DType::bf16, {kTokens, kRope}), absorbed = s.of(DType::bf16, {kTokens, kHeads, kLatent + kRope});
  probe(ops.mla_rope_kv_insert, MlaRopeKvInsertParams{.q = mla_q,
                                                      .c = latents,
                                                      .k_pe = k_pe,
                                                      .positions = positions,
                                                      .cos_sin = cos_sin,
                                                      .q_pe_out = absorbed.columns(kLatent, kRope),
                                                      .slot_mapping = slots,
                                                      .cache = latent});
  probe(ops.indexer_key_insert, IndexerKeyInsertParams{.k = s.of(DType::bf16, {kTokens, 128}),
                                                       .weight = s.of(DType::f32, {128}),
                                                       .bias = s.of(DType::f32, {128}),
                                                       .positions = positions,
                                                       .cos_sin = cos_sin,
                                                       .slot_mapping = slots,
                                                       .cache = indexer});
  const TensorView starts = s.of(DType::i32, {kTokens + 1});
  probe(ops.dense_attn_decode, DenseAttnDecodeParams{.q = absorbed,
                                                     .cache = latent,
                                                     .block_table = table,
                                                     .query_start_loc = starts,
                                                     .seq_lens = lens,
                                                     .max_query_len = 1,
                                                     .max_seq_len = 65536,
                                                     .softmax_scale = 0.135f,
                                                     .out = heads});
  const TensorView expanded = s.of(DType::bf16, {kTokens, kHeads, kNope + kValue});
  probe(ops.dense_attn_prefill, DenseAttnPrefillParams{.q = mla_q,
                                                       .k_nope = expanded.columns(0, kNope),
                                                       .k_pe = k_pe,
                                                       .v = expanded.columns(kNope, kValue),
                                                       .max_query_len = kTokens,
                                                       .max_key_len = kTokens,
                                                       .softmax_scale = 0.135f,
                                                       .out = s.of(DType::bf16, {kTokens, kHeads, kValue})});
  return probes;
}

}  // namespace strata::testkit
