#include "layers/deepseek_v4_attention.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "layers/forward.h"
#include "layers/forward_check.h"
#include "layers/linear_activation.h"
#include "layers/one_query_each.h"
#include "layers/v4_cache_groups.h"
#include "ops/sparse_attention/prefill_choice.h"

namespace strata {
namespace {

constexpr int64_t kManyTokens = 64;
// Up to so many times the rows of the indexer's queries a rank's own queries take less time than the choice of keys.
constexpr int64_t kQuickQueries = 6;

}  // namespace

DeepseekV4Attention::DeepseekV4Attention(const LayerContext& context)
    : layer_(context.layer),
      ratio_(context.checkpoint.config().compress_ratio(context.layer)),
      config_(context.checkpoint.config()),
      options_(check_context(context)),
      num_heads_(config_.num_attention_heads / options_.tp_size),
      eps_(static_cast<float>(config_.rms_norm_eps)),
      softmax_scale_(1.0f / std::sqrt(static_cast<float>(config_.head_dim))),
      device_(context.device),
      ops_(context.ops),
      rope_tables_(context.rope_tables),
      communicator_(context.communicator),
      lanes_(context.lanes) {
  cache_groups();  // throws for formats that V4 caches do not have
  cos_sin_ = rope_tables_->get(config_.rope(layer_));
  const WeightLoader loader{context.checkpoint, layer_, device_, ops_};
  const int64_t rank_rows = num_heads_ * config_.head_dim;
  x_activation_ = linear_activation(loader, "wq_a", options_);
  wq_a_wkv_ = loader.load_fused_linear({{"wq_a", config_.q_lora_rank}, {"wkv", config_.head_dim}},
                                       {.k = config_.hidden_size, .activation = x_activation_});
  q_norm_ = loader.load_vector_f32("q_norm.weight", config_.q_lora_rank);
  kv_norm_ = loader.load_vector_f32("kv_norm.weight", config_.head_dim);
  qr_activation_ = qr_format_ = linear_activation(loader, "wq_b", options_);
  wq_b_ = loader.load_linear("wq_b", {.n = config_.num_attention_heads * config_.head_dim,
                                      .k = config_.q_lora_rank,
                                      .rows = {options_.tp_rank * rank_rows, rank_rows},
                                      .activation = qr_activation_});
  attn_sink_ = loader.load_vector_f32("attn_sink", config_.num_attention_heads, {options_.tp_rank * num_heads_, num_heads_});
  if (ratio_ > 1) {
    const Compressor::Groups groups = ratio_ == 4 ? Compressor::Groups{CacheGroup::c4_state, CacheGroup::c4_compressed}
                                                  : Compressor::Groups{CacheGroup::c128_state, CacheGroup::c128_compressed};
    compressor_.emplace(loader, "compressor", config_.head_dim, ratio_, groups, eps_, /*hadamard=*/false);
    std::vector<FusedPart> projections = Compressor::projection("compressor", config_.head_dim, ratio_);
    for (const FusedPart& part : projections) score_width_ += part.n;
    if (ratio_ == 4) {
      indexer_.emplace(loader, options_);
      qr_format_ = common_format(qr_activation_, indexer_->query_activation());
      for (FusedPart& part : Compressor::projection("indexer.compressor", config_.index_head_dim, ratio_))
        projections.push_back(std::move(part));
    }
    // The products stay fp32: they are summed over up to 128 positions before they are rounded (V4 5.1).
    kv_score_ = loader.load_fused_linear(projections, {.k = config_.hidden_size, .output = DType::f32});
  }
  output_projection_.emplace(loader, options_);
  workspace_bytes_ = measure_workspace();
}

std::vector<CacheGroupSpec> DeepseekV4Attention::cache_groups() const { return v4_cache_groups(config_, options_, ratio_); }

int64_t DeepseekV4Attention::weight_bytes() const {
  int64_t bytes = wq_a_wkv_->allocated_bytes() + q_norm_.allocated_bytes() + kv_norm_.allocated_bytes() + wq_b_->allocated_bytes() +
                  attn_sink_.allocated_bytes() + output_projection_->weight_bytes();
  if (compressor_) bytes += kv_score_->allocated_bytes() + compressor_->weight_bytes();
  if (indexer_) bytes += indexer_->weight_bytes();
  return bytes;
}

void DeepseekV4Attention::forward(const ForwardArgs& args) {
  run_forward(
      *this, args, *device_, ops_, lanes_.get(), communicator_.get(), [&] { check(args); }, [&](OpRunner& runner) { run(args, runner); });
}

void DeepseekV4Attention::run(const ForwardArgs& args, OpRunner& run) const {
  const Batch& batch = *args.batch;
  const int64_t num_tokens = batch.num_tokens;
  const auto heads = [&](const TensorView& tap) {
    return tap.present() ? tap : run.arena.tensor(DType::bf16, {num_tokens, num_heads_, config_.head_dim});
  };

  const bool paged_prefill = prefill_reads_pages(args);
  // A plan with a choice in it has room for both ways.
  const bool plan_both = run.arena.measuring() && options_.prefill_mode == PrefillMode::automatic && !options_.batch_invariant;
  const TensorView q = heads(args.q_tap);
  const ChosenSlots slots = allocate_slots(run, batch.num_decode_tokens + (paged_prefill || plan_both ? batch.num_prefill_tokens : 0));
  // A batch-invariant layer has decode's and prefill's queries normalised by the same kernel.
  const bool norms_apart = args.q_tap.present() || options_.batch_invariant;
  const int64_t raw_queries = norms_apart ? 0 : batch.num_decode_tokens;
  project(args, run, q, raw_queries, slots);

  // (g) attention; rows of no request are zero
  const TensorView o = heads(args.attn_out_tap);
  const bool rotated = !args.attn_out_tap.present() && output_projection_->takes_rotated();
  attend_paged(args, run, q, o, rotated, slots, PagedTokens{0, batch.num_decode_tokens, raw_queries > 0, ratio_ == 128});
  if (paged_prefill || plan_both) {
    attend_paged(args, run, q, o, rotated, slots, PagedTokens{batch.num_decode_tokens, batch.num_prefill_tokens, false, false});
  }
  if (!paged_prefill || plan_both) attend_gathered(args, run, q, o, rotated);
  run.zero(o.slice(batch.num_request_tokens(), num_tokens - batch.num_request_tokens()));

  // (h) output projection
  output_projection_->forward(run, batch.positions, cos_sin_, o, rotated, args.out);
}

DeepseekV4Attention::ChosenSlots DeepseekV4Attention::allocate_slots(OpRunner& run, int64_t count) const {
  if (ratio_ != 4) return {};
  return {run.arena.tensor(DType::i32, {count, config_.index_topk}), run.arena.tensor(DType::i32, {count})};
}

// What attention waits for is a chain of small ops and of products that read weights; whatever else a token needs is made beside it. On
// lane 0 the compressed keys, which need x alone, those of the indexer first; on lane 1 the choice among them.
void DeepseekV4Attention::project(const ForwardArgs& args, OpRunner& run, const TensorView& q, int64_t raw_queries,
                                  const ChosenSlots& slots) const {
  const Batch& batch = *args.batch;
  const TensorView& x = args.hidden;
  const int64_t num_tokens = batch.num_tokens;
  const bool select = indexer_ && !args.skip_topk;
  ArenaScope scope(run.arena);
  const TensorView qa_kv = run.arena.tensor(DType::bf16, {num_tokens, config_.q_lora_rank + config_.head_dim});
  const TensorView qa = qa_kv.columns(0, config_.q_lora_rank);
  const NormedLatent qr = normed_latent(run.arena, qa, qr_format_);
  const TensorView kv = qa_kv.columns(config_.q_lora_rank, config_.head_dim);
  const Indexer::Query query = select ? indexer_->allocate_query(run.arena, num_tokens) : Indexer::Query{};

  // (e) compressed keys. Of one token those of the indexer are put behind its query: in a captured step a kernel begins beside the one
  // that was put first of those it waits for, and the query is there last.
  const bool one_query = select && run.concurrent() && num_tokens == 1;
  std::optional<OpRunner::Prepared<CompressNormRopeStoreParams>> write_keys;
  TensorView scores;
  if (compressor_) {
    scores = run.arena.tensor(DType::f32, {num_tokens, kv_score_->weight.n});
    run.aside(0, [&](OpRunner& aside) {
      aside(run.ops.linear, LinearParams{.x = x, .weight = &kv_score_->weight, .y = scores, .shares_device = aside.concurrent()});
      if (!indexer_) return;
      const TensorView of_indexer = scores.columns(score_width_, scores.shape[1] - score_width_);
      write_keys.emplace(indexer_->prepare_keys(aside, batch, args.caches, of_indexer, cos_sin_));
      if (!one_query) (*write_keys)();
    });
  }
  if (select) run.aside(1, [&](OpRunner& aside) { indexer_->project_weights(aside, x, query); });

  // (a) query latent and key, (b) their norms; the key's rotation, quantisation and insertion
  run(run.ops.linear,
      LinearParams{
          .x = x, .weight = &wq_a_wkv_->weight, .y = qa_kv, .activation = x_activation_, .shares_device = compressor_ && run.concurrent()});
  const RmsNormPairParams norms{.q = qa,
                                .q_weight = q_norm_,
                                .q_out = qr.values,
                                .q_scale = qr.scale,
                                .q_format = qr.format,
                                .kv = kv,
                                .kv_weight = kv_norm_,
                                .kv_out = kv,
                                .eps = eps_,
                                .slot_mapping = batch[CacheGroup::window].slot_mapping,
                                .positions = batch.positions,
                                .cos_sin = cos_sin_,
                                .cache = args.caches[CacheGroup::window]};
  run(run.ops.rms_norm_pair, norms);

  // (c) queries, (d) their norm and rotation; decode's are left to attention, as a kernel more is one more to wait for.
  const auto make_queries = [&](OpRunner& on) {
    on(on.ops.linear, LinearParams{.x = qr.values,
                                   .x_scale = qr.scale,
                                   .weight = &wq_b_->weight,
                                   .y = q.reshape({num_tokens, num_heads_ * config_.head_dim}),
                                   .activation = qr_activation_,
                                   .shares_device = select && on.concurrent()});
    if (raw_queries == num_tokens) return;
    const auto rest = [&](const TensorView& v) { return v.slice(raw_queries, num_tokens - raw_queries); };
    on(on.ops.qnorm_rope_kv_insert,
       QNormRopeKvInsertParams{
           .q = rest(q), .kv = rest(kv), .positions = rest(batch.positions), .cos_sin = cos_sin_, .q_out = rest(q), .eps = eps_});
  };
  const auto compress = [&](OpRunner& on) { compressor_->forward(on, batch, args.caches, scores.columns(0, score_width_), cos_sin_); };
  // (f) the choice among the compressed keys. Where it is the longer way, its own queries come first, then the others beside it. Otherwise,
  // of one token and of many, which keep the tensor cores busy, both begin at once; of one, the product at least of its own queries comes
  // first where the others' takes less time.
  const bool longer_choice = choice_is_longer(args, run);
  if (select && run.concurrent() && num_tokens > 1 && num_tokens <= kManyTokens) {
    TensorView projected;
    run.arena.keep_all([&] { projected = indexer_->project_queries(run, qr); });  // as on a lane: a plan has room for both orders
    run.order(0, 1);
    run.aside(1, [&](OpRunner& aside) { choose(args, aside, query, indexer_->query_params(batch, projected, cos_sin_, query), slots); });
  } else if (select) {
    TensorView projected;
    if (longer_choice) run.arena.keep_all([&] { projected = indexer_->project_queries(run, qr); });
    run.aside(1, [&](OpRunner& aside) {
      const ArenaScope taken(aside.arena);
      if (!longer_choice) projected = indexer_->project_queries(aside, qr);
      aside(aside.ops.indexer_query, indexer_->query_params(batch, projected, cos_sin_, query));
      if (one_query) (*write_keys)();
      run.order(0, 1);
      choose(args, aside, query, {}, slots);
    });
  } else if (indexer_) {
    run.aside(1, [&](OpRunner& aside) { choose(args, aside, query, {}, slots); });
  }
  if (compressor_) run.aside(0, compress);
  make_queries(run);
  run.join();
}

bool DeepseekV4Attention::choice_is_longer(const ForwardArgs& args, const OpRunner& run) const {
  return indexer_ && !args.skip_topk && run.concurrent() && args.batch->num_tokens <= kManyTokens &&
         wq_b_->weight.n <= kQuickQueries * indexer_->query_rows();
}

bool DeepseekV4Attention::prefill_reads_pages(const ForwardArgs& args) const {
  if (options_.prefill_mode != PrefillMode::automatic) return options_.prefill_mode == PrefillMode::paged;
  if (options_.batch_invariant) return false;  // the two ways round differently, and the rule looks at the whole step
  const Batch& batch = *args.batch;
  PrefillWork work{.format = args.caches[CacheGroup::window].format,
                   .num_tokens = batch.num_prefill_tokens,
                   .num_heads = num_heads_,
                   .rows_per_token = config_.sliding_window};
  if (ratio_ > 1) {
    const int64_t compressed = batch.max_seq_len / ratio_;
    work.rows_per_token += ratio_ == 4 ? std::min(compressed, int64_t{config_.index_topk}) : compressed;
  }
  for (const PrefillChunk& chunk : batch.prefill_chunks(ratio_)) {
    work.num_chunks += 1;
    work.gathered_rows += chunk.num_requests * chunk.max_rows;
  }
  return ops::paged_prefill_is_faster(work, *device_);
}

void DeepseekV4Attention::choose(const ForwardArgs& args, OpRunner& run, const Indexer::Query& query, const IndexerQueryParams& query_first,
                                 const ChosenSlots& slots) const {
  const Batch& batch = *args.batch;
  const int64_t count = slots.lens.shape[0];
  if (query.q.present()) {
    const bool wanted = count > 0;
    return indexer_->select(run, batch, args.caches, query, query_first, args.topk_indices.slice(0, batch.num_tokens),
                            wanted ? slots.indices : TensorView{}, wanted ? slots.lens : TensorView{});
  }
  if (count == 0) return;
  const GroupMetadata& compressed = batch[CacheGroup::c4_compressed];
  run(run.ops.compute_global_topk, ComputeGlobalTopkParams{.topk_indices = args.topk_indices.slice(0, count),
                                                           .token_to_req = batch.token_to_req.slice(0, count),
                                                           .is_valid_token = batch.is_valid_token.slice(0, count),
                                                           .block_table = compressed.block_table,
                                                           .page_size = compressed.spec.page_size,
                                                           .global_indices = slots.indices,
                                                           .lens = slots.lens});
}

void DeepseekV4Attention::attend_paged(const ForwardArgs& args, OpRunner& run, const TensorView& q, const TensorView& o, bool rotated,
                                       const ChosenSlots& slots, const PagedTokens& which) const {
  if (which.count == 0) return;
  const Batch& batch = *args.batch;
  const auto rows = [&](const TensorView& v) { return v.slice(which.first, which.count); };
  const auto tokens = [&](const TensorView& v) { return one_query_each(rows(v)); };
  SparseAttnDecodeParams attention{.q = tokens(q),
                                   .cache = args.caches[CacheGroup::window],
                                   .indices = tokens(batch.swa_indices),
                                   .topk_length = rows(batch.swa_lens),
                                   .attn_sink = attn_sink_,
                                   .softmax_scale = softmax_scale_,
                                   .batch_invariant = options_.batch_invariant,
                                   .next_weights = output_projection_->first_weights(),
                                   .norm_queries = which.raw_queries,
                                   .q_eps = eps_,
                                   .rotate_back = rotated,
                                   .out = tokens(o)};
  if (which.scheduled) attention.pieces = batch.c128_pieces, attention.merges = batch.c128_merges;
  if (rotated || which.raw_queries) attention.positions = rows(batch.positions), attention.cos_sin = cos_sin_;
  if (ratio_ == 4) {
    attention.extra_cache = args.caches[CacheGroup::c4_compressed];
    attention.extra_indices = tokens(slots.indices);
    attention.extra_topk_length = rows(slots.lens);
  } else if (ratio_ == 128) {
    attention.extra_cache = args.caches[CacheGroup::c128_compressed];
    attention.extra_indices = tokens(batch.c128_slots);
    attention.extra_topk_length = rows(batch.c128_lens);
  }
  run(run.ops.sparse_attn_decode, attention);
}

void DeepseekV4Attention::attend_gathered(const ForwardArgs& args, OpRunner& run, const TensorView& q, const TensorView& o,
                                          bool rotated) const {
  const Batch& batch = *args.batch;
  const int64_t window = config_.sliding_window;
  const TensorView local = ratio_ == 4 ? args.topk_indices : ratio_ == 128 ? batch.c128_local : TensorView{};
  const int64_t top_k = local.present() ? local.shape[1] : 0;
  for (const PrefillChunk& chunk : batch.prefill_chunks(ratio_)) {
    const auto requests = [&](const TensorView& v) { return v.slice(chunk.first_request, chunk.num_requests); };
    ArenaScope scope(run.arena);
    const TensorView keys = run.arena.tensor(DType::bf16, {chunk.num_requests, chunk.max_rows, config_.head_dim});
    if (ratio_ > 1) {
      const CacheGroup group = ratio_ == 4 ? CacheGroup::c4_compressed : CacheGroup::c128_compressed;
      run(run.ops.dequantize_and_gather_k,
          DequantizeAndGatherKParams{.cache = args.caches[group],
                                     .seq_lens = requests(ratio_ == 4 ? batch.c4_seq_lens : batch.c128_seq_lens),
                                     .block_table = requests(batch[group].block_table),
                                     .out = keys});
    }
    run(run.ops.dequantize_and_gather_k, DequantizeAndGatherKParams{.cache = args.caches[CacheGroup::window],
                                                                    .seq_lens = requests(batch.seq_lens),
                                                                    .gather_lens = requests(batch.gather_lens),
                                                                    .block_table = requests(batch[CacheGroup::window].block_table),
                                                                    .offset = chunk.max_compressed,
                                                                    .out = keys});
    const TensorView indices = run.arena.tensor(DType::i32, {chunk.num_tokens, top_k + window});
    const TensorView lens = run.arena.tensor(DType::i32, {chunk.num_tokens});
    run(run.ops.combine_topk_swa,
        CombineTopkSwaParams{.topk_indices = top_k > 0 ? local.slice(chunk.first_token, chunk.num_tokens) : TensorView{},
                             .query_start_loc = batch.query_start_loc.slice(chunk.first_request, chunk.num_requests + 1),
                             .seq_lens = requests(batch.seq_lens),
                             .gather_lens = requests(batch.gather_lens),
                             .window = static_cast<int32_t>(window),
                             .ratio = ratio_,
                             .top_k = static_cast<int32_t>(top_k),
                             .m = chunk.max_rows,
                             .n = chunk.max_compressed,
                             .combined_indices = indices,
                             .combined_lens = lens});
    run(run.ops.sparse_attn_prefill, SparseAttnPrefillParams{.q = q.slice(chunk.first_token, chunk.num_tokens),
                                                             .kv = keys.reshape({chunk.num_requests * chunk.max_rows, config_.head_dim}),
                                                             .indices = indices,
                                                             .topk_length = lens,
                                                             .attn_sink = attn_sink_,
                                                             .softmax_scale = softmax_scale_,
                                                             .batch_invariant = options_.batch_invariant,
                                                             .out = o.slice(chunk.first_token, chunk.num_tokens)});
  }
  if (!rotated || batch.num_prefill_tokens == 0) return;
  const auto tokens = [&](const TensorView& v) { return v.slice(batch.num_decode_tokens, batch.num_prefill_tokens); };
  run(run.ops.inverse_rope, InverseRopeParams{.o = tokens(o), .positions = tokens(batch.positions), .cos_sin = cos_sin_, .out = tokens(o)});
}

}  // namespace strata
