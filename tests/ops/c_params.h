// Params of the C++ ops as structs of the C API: field by field, apart from the library's own conversion, which goes the other way.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "c_api/op_call.h"
#include "strata/op_set.h"
#include "strata/strata.h"

namespace strata::test {

// A struct whose padding is zero too, so that structs can be compared as bytes.
template <class C>
C zeros() {
  C c;
  std::memset(&c, 0, sizeof c);
  c.struct_size = sizeof c;
  return c;
}

template <class To>
strata_linear_weight to_c(const LinearWeight& p, To& to) {
  auto c = zeros<strata_linear_weight>();
  c.n = p.n;
  c.k = p.k;
  c.groups = p.groups;
  c.weight = to(p.weight);
  c.scale = to(p.scale);
  c.block_n = p.block_n;
  c.block_k = p.block_k;
  c.power_of_two_scales = static_cast<int32_t>(p.power_of_two_scales);
  c.from_e4m3 = static_cast<int32_t>(p.from_e4m3);
  c.packed = to(p.packed);
  c.packing = to(p.packing);
  c.shares_device = static_cast<int32_t>(p.shares_device);
  c.name = to(p.name);
  return c;
}

template <class To>
strata_linear_params to_c(const LinearParams& p, To& to) {
  auto c = zeros<strata_linear_params>();
  c.x = to(p.x);
  c.x_scale = to(p.x_scale);
  c.weight = to(p.weight);
  c.y = to(p.y);
  c.activation = static_cast<int32_t>(p.activation);
  return c;
}

template <class To>
strata_grouped_linear_params to_c(const GroupedLinearParams& p, To& to) {
  auto c = zeros<strata_grouped_linear_params>();
  c.x = to(p.x);
  c.x_scale = to(p.x_scale);
  c.weight = to(p.weight);
  c.y = to(p.y);
  c.y_scale = to(p.y_scale);
  c.y_format = static_cast<int32_t>(p.y_format);
  return c;
}

template <class To>
strata_key_insert to_c(const KeyInsert& p, To& to) {
  auto c = zeros<strata_key_insert>();
  c.slot_mapping = to(p.slot_mapping);
  c.positions = to(p.positions);
  c.cos_sin = to(p.cos_sin);
  c.cache = to(p.cache);
  return c;
}

template <class To>
strata_rms_norm_pair_params to_c(const RmsNormPairParams& p, To& to) {
  auto c = zeros<strata_rms_norm_pair_params>();
  c.q = to(p.q);
  c.q_weight = to(p.q_weight);
  c.q_out = to(p.q_out);
  c.q_scale = to(p.q_scale);
  c.q_format = static_cast<int32_t>(p.q_format);
  c.kv = to(p.kv);
  c.kv_weight = to(p.kv_weight);
  c.kv_out = to(p.kv_out);
  c.eps = p.eps;
  c.insert_epilogue = to(p.insert_epilogue);
  return c;
}

template <class To>
strata_qnorm_rope_kv_insert_params to_c(const QNormRopeKvInsertParams& p, To& to) {
  auto c = zeros<strata_qnorm_rope_kv_insert_params>();
  c.q = to(p.q);
  c.kv = to(p.kv);
  c.positions = to(p.positions);
  c.cos_sin = to(p.cos_sin);
  c.slot_mapping = to(p.slot_mapping);
  c.cache = to(p.cache);
  c.q_out = to(p.q_out);
  c.eps = p.eps;
  c.q_scale_inv = p.q_scale_inv;
  return c;
}

template <class To>
strata_quantize_and_insert_k_params to_c(const QuantizeAndInsertKParams& p, To& to) {
  auto c = zeros<strata_quantize_and_insert_k_params>();
  c.k = to(p.k);
  c.slot_mapping = to(p.slot_mapping);
  c.cache = to(p.cache);
  c.ue8m0 = static_cast<int32_t>(p.ue8m0);
  return c;
}

template <class To>
strata_dequantize_and_gather_k_params to_c(const DequantizeAndGatherKParams& p, To& to) {
  auto c = zeros<strata_dequantize_and_gather_k_params>();
  c.cache = to(p.cache);
  c.seq_lens = to(p.seq_lens);
  c.gather_lens = to(p.gather_lens);
  c.block_table = to(p.block_table);
  c.offset = p.offset;
  c.out = to(p.out);
  return c;
}

template <class To>
strata_save_partial_states_params to_c(const SavePartialStatesParams& p, To& to) {
  auto c = zeros<strata_save_partial_states_params>();
  c.kv_score = to(p.kv_score);
  c.ape = to(p.ape);
  c.positions = to(p.positions);
  c.state_slots = to(p.state_slots);
  c.state = to(p.state);
  return c;
}

template <class To>
strata_state_save to_c(const StateSave& p, To& to) {
  auto c = zeros<strata_state_save>();
  c.kv_score = to(p.kv_score);
  c.ape = to(p.ape);
  return c;
}

template <class To>
strata_compress_norm_rope_store_params to_c(const CompressNormRopeStoreParams& p, To& to) {
  auto c = zeros<strata_compress_norm_rope_store_params>();
  c.save_prologue = to(p.save_prologue);
  c.state = to(p.state);
  c.block_table = to(p.block_table);
  c.token_to_req = to(p.token_to_req);
  c.positions = to(p.positions);
  c.state_slots = to(p.state_slots);
  c.out_slots = to(p.out_slots);
  c.ratio = p.ratio;
  c.norm_weight = to(p.norm_weight);
  c.eps = p.eps;
  c.cos_sin = to(p.cos_sin);
  c.cache = to(p.cache);
  c.hadamard = static_cast<int32_t>(p.hadamard);
  return c;
}

template <class To>
strata_indexer_query_params to_c(const IndexerQueryParams& p, To& to) {
  auto c = zeros<strata_indexer_query_params>();
  c.q = to(p.q);
  c.weights = to(p.weights);
  c.positions = to(p.positions);
  c.cos_sin = to(p.cos_sin);
  c.pairing = static_cast<int32_t>(p.pairing);
  c.rope_slice = static_cast<int32_t>(p.rope_slice);
  c.hadamard = static_cast<int32_t>(p.hadamard);
  c.softmax_scale = p.softmax_scale;
  c.head_scale = p.head_scale;
  c.amax_floor = p.amax_floor;
  c.q_out = to(p.q_out);
  c.q_scale_out = to(p.q_scale_out);
  c.weights_out = to(p.weights_out);
  return c;
}

template <class To>
strata_indexer_logits_params to_c(const IndexerLogitsParams& p, To& to) {
  auto c = zeros<strata_indexer_logits_params>();
  c.q = to(p.q);
  c.q_scale = to(p.q_scale);
  c.weights = to(p.weights);
  c.cache = to(p.cache);
  c.block_table = to(p.block_table);
  c.token_to_req = to(p.token_to_req);
  c.lengths = to(p.lengths);
  c.logits = to(p.logits);
  return c;
}

template <class To>
strata_topk_select_params to_c(const TopkSelectParams& p, To& to) {
  auto c = zeros<strata_topk_select_params>();
  c.logits = to(p.logits);
  c.lengths = to(p.lengths);
  c.topk_indices = to(p.topk_indices);
  return c;
}

template <class To>
strata_indexer_query_prologue to_c(const IndexerQueryPrologue& p, To& to) {
  auto c = zeros<strata_indexer_query_prologue>();
  c.q = to(p.q);
  c.weights = to(p.weights);
  c.positions = to(p.positions);
  c.cos_sin = to(p.cos_sin);
  c.pairing = static_cast<int32_t>(p.pairing);
  c.rope_slice = static_cast<int32_t>(p.rope_slice);
  c.hadamard = static_cast<int32_t>(p.hadamard);
  c.softmax_scale = p.softmax_scale;
  c.head_scale = p.head_scale;
  c.amax_floor = p.amax_floor;
  return c;
}

template <class To>
strata_topk_slots to_c(const TopkSlots& p, To& to) {
  auto c = zeros<strata_topk_slots>();
  c.block_table = to(p.block_table);
  c.page_size = p.page_size;
  c.slots = to(p.slots);
  c.lens = to(p.lens);
  return c;
}

template <class To>
strata_indexer_topk_params to_c(const IndexerTopkParams& p, To& to) {
  auto c = zeros<strata_indexer_topk_params>();
  c.q = to(p.q);
  c.q_scale = to(p.q_scale);
  c.weights = to(p.weights);
  c.cache = to(p.cache);
  c.block_table = to(p.block_table);
  c.token_to_req = to(p.token_to_req);
  c.lengths = to(p.lengths);
  c.query_prologue = to(p.query_prologue);
  c.max_length = p.max_length;
  c.topk_indices = to(p.topk_indices);
  c.slots_epilogue = to(p.slots_epilogue);
  return c;
}

template <class To>
strata_scatter_block_tables_params to_c(const ScatterBlockTablesParams& p, To& to) {
  auto c = zeros<strata_scatter_block_tables_params>();
  c.entries = to(p.entries);
  c.segments = to(p.segments);
  c.block_table = to(p.block_table);
  return c;
}

template <class To>
strata_slot_mapping_params to_c(const SlotMappingParams& p, To& to) {
  auto c = zeros<strata_slot_mapping_params>();
  c.positions = to(p.positions);
  c.token_to_req = to(p.token_to_req);
  c.is_valid_token = to(p.is_valid_token);
  c.block_table = to(p.block_table);
  c.page_size = p.page_size;
  c.ratio = p.ratio;
  c.slot_mapping = to(p.slot_mapping);
  return c;
}

template <class To>
strata_swa_indices_params to_c(const SwaIndicesParams& p, To& to) {
  auto c = zeros<strata_swa_indices_params>();
  c.positions = to(p.positions);
  c.token_to_req = to(p.token_to_req);
  c.is_valid_token = to(p.is_valid_token);
  c.block_table = to(p.block_table);
  c.page_size = p.page_size;
  c.window = p.window;
  c.indices = to(p.indices);
  c.lens = to(p.lens);
  return c;
}

template <class To>
strata_compressed_indices_params to_c(const CompressedIndicesParams& p, To& to) {
  auto c = zeros<strata_compressed_indices_params>();
  c.positions = to(p.positions);
  c.token_to_req = to(p.token_to_req);
  c.is_valid_token = to(p.is_valid_token);
  c.block_table = to(p.block_table);
  c.page_size = p.page_size;
  c.ratio = p.ratio;
  c.indices = to(p.indices);
  c.lens = to(p.lens);
  return c;
}

template <class To>
strata_compute_global_topk_params to_c(const ComputeGlobalTopkParams& p, To& to) {
  auto c = zeros<strata_compute_global_topk_params>();
  c.topk_indices = to(p.topk_indices);
  c.token_to_req = to(p.token_to_req);
  c.is_valid_token = to(p.is_valid_token);
  c.block_table = to(p.block_table);
  c.page_size = p.page_size;
  c.global_indices = to(p.global_indices);
  c.lens = to(p.lens);
  return c;
}

template <class To>
strata_combine_topk_swa_params to_c(const CombineTopkSwaParams& p, To& to) {
  auto c = zeros<strata_combine_topk_swa_params>();
  c.topk_indices = to(p.topk_indices);
  c.query_start_loc = to(p.query_start_loc);
  c.seq_lens = to(p.seq_lens);
  c.gather_lens = to(p.gather_lens);
  c.window = p.window;
  c.ratio = p.ratio;
  c.top_k = p.top_k;
  c.m = p.m;
  c.n = p.n;
  c.combined_indices = to(p.combined_indices);
  c.combined_lens = to(p.combined_lens);
  return c;
}

template <class To>
strata_query_norm_rope to_c(const QueryNormRope& p, To& to) {
  auto c = zeros<strata_query_norm_rope>();
  c.positions = to(p.positions);
  c.cos_sin = to(p.cos_sin);
  c.eps = p.eps;
  return c;
}

template <class To>
strata_inverse_rope_epilogue to_c(const InverseRope& p, To& to) {
  auto c = zeros<strata_inverse_rope_epilogue>();
  c.positions = to(p.positions);
  c.cos_sin = to(p.cos_sin);
  return c;
}

template <class To>
strata_sparse_attn_decode_params to_c(const SparseAttnDecodeParams& p, To& to) {
  auto c = zeros<strata_sparse_attn_decode_params>();
  c.q = to(p.q);
  c.cache = to(p.cache);
  c.indices = to(p.indices);
  c.topk_length = to(p.topk_length);
  c.extra_cache = to(p.extra_cache);
  c.extra_indices = to(p.extra_indices);
  c.extra_topk_length = to(p.extra_topk_length);
  c.attn_sink = to(p.attn_sink);
  c.softmax_scale = p.softmax_scale;
  c.batch_invariant = static_cast<int32_t>(p.batch_invariant);
  c.schedule = to(p.schedule);
  c.query_prologue = to(p.query_prologue);
  c.out_epilogue = to(p.out_epilogue);
  c.out = to(p.out);
  c.lse = to(p.lse);
  c.max_logits = to(p.max_logits);
  return c;
}

template <class To>
strata_sparse_attn_prefill_params to_c(const SparseAttnPrefillParams& p, To& to) {
  auto c = zeros<strata_sparse_attn_prefill_params>();
  c.q = to(p.q);
  c.kv = to(p.kv);
  c.indices = to(p.indices);
  c.topk_length = to(p.topk_length);
  c.attn_sink = to(p.attn_sink);
  c.softmax_scale = p.softmax_scale;
  c.batch_invariant = static_cast<int32_t>(p.batch_invariant);
  c.out = to(p.out);
  c.lse = to(p.lse);
  c.max_logits = to(p.max_logits);
  return c;
}

template <class To>
strata_merge_attn_states_params to_c(const MergeAttnStatesParams& p, To& to) {
  auto c = zeros<strata_merge_attn_states_params>();
  c.o = to(p.o);
  c.lse = to(p.lse);
  c.attn_sink = to(p.attn_sink);
  c.empty_lse = p.empty_lse;
  c.out = to(p.out);
  c.lse_out = to(p.lse_out);
  return c;
}

template <class To>
strata_inverse_rope_params to_c(const InverseRopeParams& p, To& to) {
  auto c = zeros<strata_inverse_rope_params>();
  c.o = to(p.o);
  c.positions = to(p.positions);
  c.cos_sin = to(p.cos_sin);
  c.out = to(p.out);
  return c;
}

template <class To>
strata_inverse_rope_quant_params to_c(const InverseRopeQuantParams& p, To& to) {
  auto c = zeros<strata_inverse_rope_quant_params>();
  c.o = to(p.o);
  c.positions = to(p.positions);
  c.cos_sin = to(p.cos_sin);
  c.out = to(p.out);
  c.scale = to(p.scale);
  return c;
}

template <class To>
strata_mla_rope_kv_insert_params to_c(const MlaRopeKvInsertParams& p, To& to) {
  auto c = zeros<strata_mla_rope_kv_insert_params>();
  c.q = to(p.q);
  c.c = to(p.c);
  c.k_pe = to(p.k_pe);
  c.positions = to(p.positions);
  c.cos_sin = to(p.cos_sin);
  c.llama_4_scaling = to(p.llama_4_scaling);
  c.q_pe_out = to(p.q_pe_out);
  c.slot_mapping = to(p.slot_mapping);
  c.cache = to(p.cache);
  c.ue8m0 = static_cast<int32_t>(p.ue8m0);
  return c;
}

template <class To>
strata_indexer_key_insert_params to_c(const IndexerKeyInsertParams& p, To& to) {
  auto c = zeros<strata_indexer_key_insert_params>();
  c.k = to(p.k);
  c.weight = to(p.weight);
  c.bias = to(p.bias);
  c.eps = p.eps;
  c.positions = to(p.positions);
  c.cos_sin = to(p.cos_sin);
  c.pairing = static_cast<int32_t>(p.pairing);
  c.rope_slice = static_cast<int32_t>(p.rope_slice);
  c.hadamard = static_cast<int32_t>(p.hadamard);
  c.slot_mapping = to(p.slot_mapping);
  c.cache = to(p.cache);
  return c;
}

template <class To>
strata_dense_attn_decode_params to_c(const DenseAttnDecodeParams& p, To& to) {
  auto c = zeros<strata_dense_attn_decode_params>();
  c.q = to(p.q);
  c.cache = to(p.cache);
  c.num_kv_heads = p.num_kv_heads;
  c.block_table = to(p.block_table);
  c.query_start_loc = to(p.query_start_loc);
  c.seq_lens = to(p.seq_lens);
  c.max_query_len = p.max_query_len;
  c.max_seq_len = p.max_seq_len;
  c.causal = static_cast<int32_t>(p.causal);
  c.softmax_scale = p.softmax_scale;
  c.batch_invariant = static_cast<int32_t>(p.batch_invariant);
  c.schedule = to(p.schedule);
  c.out = to(p.out);
  c.lse = to(p.lse);
  return c;
}

template <class To>
strata_dense_attn_prefill_params to_c(const DenseAttnPrefillParams& p, To& to) {
  auto c = zeros<strata_dense_attn_prefill_params>();
  c.q = to(p.q);
  c.k_nope = to(p.k_nope);
  c.k_pe = to(p.k_pe);
  c.v = to(p.v);
  c.query_start_loc = to(p.query_start_loc);
  c.key_start_loc = to(p.key_start_loc);
  c.max_query_len = p.max_query_len;
  c.max_key_len = p.max_key_len;
  c.causal = static_cast<int32_t>(p.causal);
  c.softmax_scale = p.softmax_scale;
  c.out = to(p.out);
  c.lse = to(p.lse);
  return c;
}

// Converts, and holds what the structs point to.
class ToC {
 public:
  // without_memory: data is null, as workspace queries may have it.
  explicit ToC(bool without_memory = false) : without_memory_(without_memory) {}
  ToC(const ToC&) = delete;
  ToC& operator=(const ToC&) = delete;

  strata_tensor_view operator()(const TensorView& v) {
    strata_tensor_view c;
    std::memset(&c, 0, sizeof c);
    if (!v.present()) return c;
    views_.push_back(v);
    c.data = without_memory_ ? nullptr : v.data;
    c.dtype = static_cast<int32_t>(v.dtype);
    c.rank = v.rank;
    c.device = {static_cast<int32_t>(v.device.kind), v.device.index};
    std::copy_n(v.shape.begin(), std::min(v.rank, int32_t{kMaxRank}), c.shape);
    std::copy_n(v.stride.begin(), std::min(v.rank, int32_t{kMaxRank}), c.stride);
    return c;
  }
  const strata_paged_cache* operator()(const PagedCache& cache) {
    if (!cache.present()) return nullptr;
    cache_views_.push_back(cache);
    auto c = zeros<strata_paged_cache>();
    c.data = without_memory_ ? nullptr : cache.data;
    c.device = {static_cast<int32_t>(cache.device.kind), cache.device.index};
    c.format = static_cast<int32_t>(cache.format);
    c.row_dim = cache.row_dim;
    c.page_size = cache.page_size;
    c.scale = cache.scale;
    c.num_pages = cache.num_pages;
    c.page_stride = cache.page_stride;
    return &caches_.emplace_back(c);
  }
  const char* operator()(const std::string& text) { return text.empty() ? nullptr : texts_.emplace_back(text).c_str(); }
  const strata_linear_weight* operator()(const LinearWeight* weight) { return weight == nullptr ? nullptr : keep(to_c(*weight, *this)); }
  template <class T>
  auto operator()(const std::optional<T>& member) -> const decltype(to_c(*member, *this))* {
    return member ? keep(to_c(*member, *this)) : nullptr;
  }

  // The bytes of every view and cache that was converted, from first to last, in order.
  std::vector<std::string> memory() const {
    std::vector<std::string> all;
    for (const TensorView& v : views_) {
      if (v.numel() == 0 || v.data == nullptr) continue;
      int64_t elements = 1;
      for (int i = 0; i < v.rank; ++i) elements += (v.shape[i] - 1) * v.stride[i];
      all.emplace_back(v.ptr<char>(), static_cast<size_t>(elements) * size_of(v.dtype));
    }
    for (const PagedCache& c : cache_views_) {
      if (c.data != nullptr) all.emplace_back(static_cast<const char*>(c.data), static_cast<size_t>(c.num_pages * c.page_stride));
    }
    return all;
  }

 private:
  template <class C>
  const C* keep(const C& c) {
    return &std::get<std::deque<C>>(members_).emplace_back(c);
  }

  bool without_memory_;
  std::vector<TensorView> views_;
  std::vector<PagedCache> cache_views_;
  std::deque<strata_paged_cache> caches_;
  std::deque<std::string> texts_;
  std::tuple<std::deque<strata_linear_weight>, std::deque<strata_key_insert>, std::deque<strata_state_save>,
             std::deque<strata_indexer_query_prologue>, std::deque<strata_topk_slots>, std::deque<strata_query_norm_rope>,
             std::deque<strata_inverse_rope_epilogue>>
      members_;
};

// The C functions of the op that has these params.
template <class Params>
struct COp;
template <class Params>
Params params_of(const Op<Params>& op);
#define STRATA_TEST_C_OP(op)                                               \
  template <>                                                              \
  struct COp<decltype(params_of(std::declval<OpSet>().op))> {              \
    using Struct = strata_##op##_params;                                   \
    static constexpr auto make_default = strata_##op##_params_default;     \
    static constexpr auto run = strata_##op;                               \
    static constexpr auto workspace_bytes = strata_##op##_workspace_bytes; \
    static constexpr auto implementation = strata_##op##_implementation;   \
  };
STRATA_C_OPS(STRATA_TEST_C_OP)
#undef STRATA_TEST_C_OP

}  // namespace strata::test
