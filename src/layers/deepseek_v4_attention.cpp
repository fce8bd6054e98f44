#include "layers/deepseek_v4_attention.h"

#include <algorithm>
#include <cmath>

#include "layers/forward.h"
#include "layers/forward_check.h"
#include "layers/given_topk.h"
#include "layers/launch_order/prefill.h"
#include "layers/launcher.h"
#include "layers/linear_activation.h"
#include "layers/one_query_each.h"
#include "layers/v4_cache_groups.h"

namespace strata {

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
      side_streams_(context.side_streams) {
  cache_groups();  // throws for formats that V4 caches do not have
  cos_sin_ = rope_tables_->get(config_.rope(layer_));
  const WeightLoader loader{context.checkpoint, layer_, device_, ops_};
  const int64_t rank_rows = num_heads_ * config_.head_dim;
  x_activation_ = linear_activation(loader, "wq_a", options_);
  wq_a_wkv_ = loader.load_fused_linear({{"wq_a", config_.q_lora_rank}, {"wkv", config_.head_dim}},
                                       {.k = config_.hidden_size, .activation = x_activation_, .shares_device = ratio_ > 1});
  q_norm_ = loader.load_vector_f32("q_norm.weight", config_.q_lora_rank);
  kv_norm_ = loader.load_vector_f32("kv_norm.weight", config_.head_dim);
  qr_activation_ = qr_format_ = linear_activation(loader, "wq_b", options_);
  wq_b_ = loader.load_linear("wq_b", {.n = config_.num_attention_heads * config_.head_dim,
                                      .k = config_.q_lora_rank,
                                      .rows = {options_.tp_rank * rank_rows, rank_rows},
                                      .activation = qr_activation_,
                                      .shares_device = ratio_ == 4});
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
    // The products stay fp32, because they are summed over up to 128 positions before they are rounded (V4 5.1).
    kv_score_ = loader.load_fused_linear(projections, {.k = config_.hidden_size, .output = DType::f32, .shares_device = true});
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
      *this, args, *device_, ops_, concurrent(side_streams_), communicator_.get(), [&] { check(args); },
      [&](const OpRunner& runner) { run(args, runner); });
}

void DeepseekV4Attention::run(const ForwardArgs& args, const OpRunner& run) const {
  const Batch& batch = *args.batch;
  const int64_t num_tokens = batch.num_tokens;
  const auto heads = [&](const TensorView& tap) {
    return tap.present() ? tap : run.arena.tensor(DType::bf16, {num_tokens, num_heads_, config_.head_dim});
  };

  const bool paged_prefill = prefill_reads_pages(args);
  // A plan has room for both modes where the step selects one.
  const bool plan_both = run.arena.measuring() && options_.prefill_mode == PrefillMode::automatic && !options_.batch_invariant;
  const TensorView q = heads(args.q_tap);
  const TopkSlots slots = allocate_slots(run, batch.num_decode_tokens + (paged_prefill || plan_both ? batch.num_prefill_tokens : 0));
  // In a batch-invariant layer the same kernel normalises decode's and prefill's queries.
  const bool separate_norms = args.q_tap.present() || options_.batch_invariant;
  const int64_t raw_queries = separate_norms ? 0 : batch.num_decode_tokens;

  // (a) to (f): queries, keys in the caches, the top-k among the compressed ones
  project(args, run, q, raw_queries, slots);

  // (g) attention; rows outside every request are zero
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

DeepseekV4Attention::TopkSlots DeepseekV4Attention::allocate_slots(const OpRunner& run, int64_t count) const {
  if (ratio_ != 4) return {};
  return {run.arena.tensor(DType::i32, {count, config_.index_topk}), run.arena.tensor(DType::i32, {count})};
}

void DeepseekV4Attention::project(const ForwardArgs& args, const OpRunner& run, const TensorView& q, int64_t raw_queries,
                                  const TopkSlots& slots) const {
  const int64_t num_tokens = args.batch->num_tokens;
  const bool selects = indexer_ && !args.skip_topk;
  const ArenaScope scope(run.arena);
  Projections p{.args = args, .q = q, .raw_queries = raw_queries, .slots = slots};
  p.latents = run.arena.tensor(DType::bf16, {num_tokens, config_.q_lora_rank + config_.head_dim});
  p.qa = p.latents.columns(0, config_.q_lora_rank);
  p.qr = normed_latent(run.arena, p.qa, qr_format_);
  p.kv = p.latents.columns(config_.q_lora_rank, config_.head_dim);
  if (compressor_) {
    const TensorView scores = run.arena.tensor(DType::f32, {num_tokens, kv_score_->weight.n});
    p.all_scores = scores;
    p.scores = scores.columns(0, score_width_);
    if (indexer_) p.index_scores = scores.columns(score_width_, scores.shape[1] - score_width_);
  }
  if (selects) p.index_query = indexer_->allocate_query(run.arena, num_tokens);

  const V4Launches launches{.compressor = compressor_.has_value(),
                            .indexer = indexer_.has_value(),
                            .selects = selects,
                            .side_streams = run.side_streams != nullptr,
                            .num_tokens = num_tokens,
                            .query_rows = wq_b_->weight.n,
                            .index_query_rows = indexer_ ? indexer_->query_rows() : 0};
  const auto launch = [&](V4LaunchOrder order) {
    p.select_makes_query = (launched_steps(order) & steps(V4Step::index_query)) == 0;
    launch_steps(run, order, [&](V4Step step, const OpRunner& on) { issue(step, p, on); });
  };
  if (!run.arena.measuring()) return launch(launch_order_.empty() ? v4_launch_order(launches) : launch_order_);
  StepSet planned = 0;
  for (const V4LaunchOrder order : v4_launch_orders(launches)) {
    if (launched_steps(order) == planned) continue;  // workspace for one order of the steps serves every order
    planned = launched_steps(order);
    const ArenaScope one(run.arena);
    launch(order);
  }
}

void DeepseekV4Attention::issue(V4Step step, const Projections& p, const OpRunner& run) const {
  const ForwardArgs& args = p.args;
  const Batch& batch = *args.batch;
  const TensorView& x = args.hidden;
  switch (step) {
    case V4Step::latents:
      return run(run.ops.linear, LinearParams{.x = x, .weight = &wq_a_wkv_->weight, .y = p.latents, .activation = x_activation_});
    case V4Step::norms:
      return run(run.ops.rms_norm_pair,
                 RmsNormPairParams{.q = p.qa,
                                   .q_weight = q_norm_,
                                   .q_out = p.qr.values,
                                   .q_scale = p.qr.scale,
                                   .q_format = p.qr.format,
                                   .kv = p.kv,
                                   .kv_weight = kv_norm_,
                                   .eps = eps_,
                                   .insert_epilogue = KeyInsert{.slot_mapping = batch[CacheGroup::window].slot_mapping,
                                                                .positions = batch.positions,
                                                                .cos_sin = cos_sin_,
                                                                .cache = args.caches[CacheGroup::window]}});
    case V4Step::queries: return project_queries(p, run);
    case V4Step::kv_scores: return run(run.ops.linear, LinearParams{.x = x, .weight = &kv_score_->weight, .y = p.all_scores});
    case V4Step::keys: return compressor_->forward(run, batch, args.caches, p.scores, cos_sin_);
    case V4Step::index_keys: return indexer_->write_keys(run, batch, args.caches, p.index_scores, cos_sin_);
    case V4Step::index_weights: return indexer_->project_weights(run, x, p.index_query);
    case V4Step::index_queries: return indexer_->project_queries(run, p.qr, p.index_query);
    case V4Step::index_query: return run(run.ops.indexer_query, indexer_->query_params(batch, cos_sin_, p.index_query));
    case V4Step::select_topk: return select_topk(p, run);
    case V4Step::topk_slots:
      return find_topk_slots(run, batch, CacheGroup::c4_compressed, args.topk_indices, p.slots.indices, p.slots.lens);
  }
}

// Decode's queries may be left raw: attention then normalises and rotates them in its prologue.
void DeepseekV4Attention::project_queries(const Projections& p, const OpRunner& run) const {
  const int64_t num_tokens = p.args.batch->num_tokens, count = num_tokens - p.raw_queries;
  run(run.ops.linear, LinearParams{.x = p.qr.values,
                                   .x_scale = p.qr.scale,
                                   .weight = &wq_b_->weight,
                                   .y = p.q.reshape({num_tokens, num_heads_ * config_.head_dim}),
                                   .activation = qr_activation_});
  if (count == 0) return;
  const auto rest = [&](const TensorView& v) { return v.slice(p.raw_queries, count); };
  run(run.ops.qnorm_rope_kv_insert, QNormRopeKvInsertParams{.q = rest(p.q),
                                                            .kv = rest(p.kv),
                                                            .positions = rest(p.args.batch->positions),
                                                            .cos_sin = cos_sin_,
                                                            .q_out = rest(p.q),
                                                            .eps = eps_});
}

void DeepseekV4Attention::select_topk(const Projections& p, const OpRunner& run) const {
  const ForwardArgs& args = p.args;
  const Batch& batch = *args.batch;
  IndexerTopkParams select = indexer_->select_params(batch, args.caches, args.topk_indices.slice(0, batch.num_tokens));
  if (p.select_makes_query) {
    select.query_prologue = indexer_->query_prologue(batch, cos_sin_, p.index_query);
  } else {
    select.q = p.index_query.q, select.q_scale = p.index_query.scale, select.weights = p.index_query.weights;
  }
  if (p.slots.lens.shape[0] > 0) {
    const GroupMetadata& compressed = batch[CacheGroup::c4_compressed];
    select.slots_epilogue = {
        .block_table = compressed.block_table, .page_size = compressed.spec.page_size, .slots = p.slots.indices, .lens = p.slots.lens};
  }
  run(run.ops.indexer_topk, select);
}

bool DeepseekV4Attention::prefill_reads_pages(const ForwardArgs& args) const {
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
  return strata::prefill_reads_pages(options_, work, *device_);
}

void DeepseekV4Attention::attend_paged(const ForwardArgs& args, const OpRunner& run, const TensorView& q, const TensorView& o, bool rotated,
                                       const TopkSlots& slots, const PagedTokens& which) const {
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
                                   .out = tokens(o)};
  if (which.scheduled) attention.schedule = batch.c128_schedule;
  if (which.raw_queries) attention.query_prologue = {.positions = rows(batch.positions), .cos_sin = cos_sin_, .eps = eps_};
  if (rotated) attention.out_epilogue = {.positions = rows(batch.positions), .cos_sin = cos_sin_};
  if (ratio_ == 4) {
    attention.extra_cache = args.caches[CacheGroup::c4_compressed];
    attention.extra_indices = tokens(slots.indices);
    attention.extra_topk_length = rows(slots.lens);
  } else if (ratio_ == 128) {
    attention.extra_cache = args.caches[CacheGroup::c128_compressed];
    attention.extra_indices = tokens(batch.c128_slots);
    attention.extra_topk_length = rows(batch.c128_lens);
  }
  run(run.ops.sparse_attn_decode, attention, Hints{.next_weights = output_projection_->first_weights()});
}

void DeepseekV4Attention::attend_gathered(const ForwardArgs& args, const OpRunner& run, const TensorView& q, const TensorView& o,
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
