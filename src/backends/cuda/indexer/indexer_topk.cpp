// The indexer's implementations. IndexerTopk runs IndexerLogits and TopkSelect, with the kernels that their lists prefer, over chunks of
// tokens. The chunk's logits lie in the workspace, so no [T, C] matrix is needed. Chunks are long enough (a quarter of a gigabyte) to fill
// every SM several times at the longest contexts.
#include <algorithm>

#include "backends/cuda/indexer/impls.h"
#include "backends/cuda/indexer/indexer.h"
#include "backends/cuda/indexer/sm90/indexer.h"
#include "backends/cuda/indexer/sm90/notes.h"
#include "core/arena.h"
#include "contracts/fused_calls.h"

namespace strata::cuda {
namespace {

constexpr int64_t kChunkFloats = int64_t{1} << 26;

// Rows of logits are 16-byte aligned.
int64_t row_floats(const IndexerTopkParams& p) { return (p.max_length + 3) / 4 * 4; }
int64_t chunk_tokens(const IndexerTopkParams& p) { return std::max<int64_t>(kChunkFloats / row_floats(p), 1); }

// Floats of notes per token that the logits kernel of few tokens may write for the selection.
int64_t note_floats(const IndexerTopkParams& p, int num_sms) { return sm90::note_floats(p.max_length, p.topk_indices.shape[1], num_sms); }

size_t topk_workspace_bytes(const IndexerTopkParams& p, const Capabilities& device) {
  if (ops::selects_all(p)) return 0;
  const int64_t row = row_floats(p);
  const int64_t logits = std::min(p.lengths.shape[0] * row, std::max(kChunkFloats, row));
  Arena arena(p.lengths.device);
  if (p.query_prologue) static_cast<void>(ops::without_query_prologue(p, arena));
  static_cast<void>(arena.rest((logits + std::min(p.lengths.shape[0], sm90::kFewTokens) * note_floats(p, device.num_sms)) *
                               static_cast<int64_t>(sizeof(float))));
  return static_cast<size_t>(arena.peak());
}

// Slots of `count` tokens from `first` on.
SlotViews slots_of(const IndexerTopkParams& p, int64_t first, int64_t count) {
  if (!p.slots_epilogue) return {};
  const TopkSlots& e = *p.slots_epilogue;
  count = std::min(count, e.slots.shape[0] - first);
  if (count <= 0) return {};
  return {.block_table = e.block_table,
          .token_to_req = p.token_to_req.slice(first, count),
          .page_size = e.page_size,
          .slots = e.slots.slice(first, count),
          .lens = e.lens.slice(first, count)};
}

// kKind: what the logits kernel writes for the selection, where that serves.
template <LogitsLauncher kLogits, SelectLauncher kSelect, Notes kKind>
void run_topk(const IndexerTopkParams& p, const ExecutionContext& context) {
  const int64_t num_tokens = p.lengths.shape[0];
  if (ops::selects_all(p))
    return kSelect({.lengths = p.lengths, .topk_indices = p.topk_indices}, {.slots = slots_of(p, 0, num_tokens)}, context);
  const auto k = static_cast<int32_t>(p.topk_indices.shape[1]);
  const int64_t row = row_floats(p), chunk = chunk_tokens(p);
  const int64_t floats = note_floats(p, capabilities(context.device).num_sms);
  const bool makes_query = p.query_prologue.has_value(), whole = chunk >= num_tokens;
  Arena arena(p.lengths.device, context.workspace);
  const IndexerTopkParams scored = makes_query ? ops::without_query_prologue(p, arena) : p;
  const IndexerQueryParams query = makes_query ? ops::query_call(*p.query_prologue, scored) : IndexerQueryParams{};
  if (makes_query && !whole) launch_indexer_query(query, context);
  void* const memory = arena.rest(0).data;
  for (int64_t first = 0; first < num_tokens; first += chunk) {
    const int64_t count = std::min(chunk, num_tokens - first);
    TensorView logits = TensorView::contiguous(memory, DType::f32, p.lengths.device, {count, row});
    logits.shape[1] = p.max_length;
    const TensorView lengths = p.lengths.slice(first, count);
    TensorView notes;
    if (kKind != Notes::none && count <= sm90::kFewTokens && floats > 0)
      notes = TensorView::contiguous(logits.ptr<float>() + count * row, DType::f32, lengths.device, {count, floats});
    const bool has_notes = kLogits({.q = scored.q.slice(first, count),
                                    .q_scale = scored.q_scale.present() ? scored.q_scale.slice(first, count) : TensorView{},
                                    .weights = scored.weights.slice(first, count),
                                    .cache = p.cache,
                                    .block_table = p.block_table,
                                    .token_to_req = p.token_to_req.slice(first, count),
                                    .lengths = lengths,
                                    .logits = logits},
                                   k,
                                   {.notes = notes,
                                    .kind = kKind,
                                    .runs_concurrently = p.slots_epilogue.has_value(),
                                    .query = makes_query && whole ? &query : nullptr},
                                   context);
    kSelect({.logits = logits, .lengths = lengths, .topk_indices = p.topk_indices.slice(first, count)},
            {.after_logits = true, .notes = has_notes ? notes : TensorView{}, .kind = kKind, .slots = slots_of(p, first, count)}, context);
  }
}

template <SelectLauncher kSelect>
void run_select(const TopkSelectParams& p, const ExecutionContext& context) {
  kSelect(p, {}, context);
}

template <LogitsLauncher kLogits>
void run_logits(const IndexerLogitsParams& p, const ExecutionContext& context) {
  kLogits(p, 0, {}, context);
}

Support columns_fit(int64_t k) { return k < (int64_t{1} << 31) ? Support::yes() : Support::no("needs k below 2^31"); }
Support supports_select(const TopkSelectParams& p, const Capabilities&) { return columns_fit(p.topk_indices.shape[1]); }
Support supports_topk(const IndexerTopkParams& p, const Capabilities&) { return columns_fit(p.topk_indices.shape[1]); }

Support sm90_supports_select(const TopkSelectParams& p, const Capabilities& c) {
  const Support support = needs_sm90(c);
  return support ? columns_fit(p.topk_indices.shape[1]) : support;
}
bool fuses(const IndexerTopkParams&, const Capabilities&, std::string_view fusion) {
  return fusion == "query_prologue" || fusion == "slots_epilogue";
}

// The shape of the scored query.
TensorView query_of(const IndexerTopkParams& p) {
  if (!p.query_prologue) return p.q;
  Arena measure(p.lengths.device);
  return ops::without_query_prologue(p, measure).q;
}

template <Notes kKind>
Support sm90_supports_topk(const IndexerTopkParams& p, const Capabilities& c) {
  const TensorView q = query_of(p);
  Support support = ops::selects_all(p) ? needs_sm90(c) : sm90::supports_scoring(q, p.cache, c);
  if (support) support = columns_fit(p.topk_indices.shape[1]);
  if (!support || kKind == Notes::none) return support;
  if (ops::selects_all(p)) return Support::no("scores nothing: every candidate is selected");
  const int64_t num_tokens = p.lengths.shape[0], chunk = std::min(num_tokens, chunk_tokens(p));
  const bool few = sm90::logits_kernel(q.shape[1], num_tokens, p.block_table.shape[0]) != sm90::LogitsKernel::prefill;
  if (!few) return Support::no("needs fewer than two tokens a request and at most 64 heads");
  if (sm90::serve(kKind, chunk, p.max_length, p.topk_indices.shape[1], c.num_sms)) return support;
  return Support::no(kKind == Notes::candidates
                         ? "needs one token of 32768 to 524288 candidates, of which few are selected"
                         : "needs as many tokens as SMs or fewer, with rows that the registers of few blocks do not hold");
}

std::string name_of(sm90::LogitsKernel kernel) {
  using sm90::LogitsKernel;
  return kernel == LogitsKernel::one_token ? "sm90_one_token" : kernel == LogitsKernel::decode ? "sm90_decode" : "sm90_prefill";
}
std::string name_of(sm90::SelectKernel kernel) {
  switch (kernel) {
    case sm90::SelectKernel::candidates: return "sm90_candidates";
    case sm90::SelectKernel::few_rows: return "sm90_few_rows";
    case sm90::SelectKernel::by_length: return "sm90_by_length";
    case sm90::SelectKernel::held: return "sm90_held";
    case sm90::SelectKernel::passes: break;
  }
  return "sm90_passes";
}
sm90::LogitsKernel kernel_for(const IndexerLogitsParams& p) {
  return sm90::logits_kernel(p.q.shape[1], p.q.shape[0], p.block_table.shape[0]);
}

}  // namespace

Implementation<IndexerLogitsParams> indexer_logits_sm90(sm90::LogitsKernel kernel) {
  auto impl = implementation<IndexerLogitsParams>("cuda/" + name_of(kernel), {});
  impl.supports = [kernel](const IndexerLogitsParams& p, const Device& device) {
    if (!is_cuda(device)) return Support::no("runs on CUDA devices only");
    Support support = sm90::supports_scoring(p.q, p.cache, capabilities(device));
    return support ? Support{sm90::refusal(kernel, p.q.shape[1], p.q.shape[0])} : support;
  };
  impl.prefers = [kernel](const IndexerLogitsParams& p, const Device&) {
    const sm90::LogitsKernel best = kernel_for(p);
    return best == kernel ? Support::yes() : Support::no(name_of(best) + " is for such tokens");
  };
  impl.run = [kernel](const IndexerLogitsParams& p, const ExecutionContext& context) {
    const DeviceScope scope(context.device.id().index);
    sm90::launch_indexer_logits(kernel, p, 0, {}, context);
  };
  return impl;
}
Implementation<IndexerLogitsParams> indexer_logits_smxx() {
  return implementation<IndexerLogitsParams>("cuda/smxx", {.run = run_logits<smxx::launch_indexer_logits>});
}

Implementation<TopkSelectParams> topk_select_sm90(sm90::SelectKernel kernel) {
  auto impl = implementation<TopkSelectParams>("cuda/" + name_of(kernel), {});
  impl.supports = [kernel](const TopkSelectParams& p, const Device& device) {
    if (!is_cuda(device)) return Support::no("runs on CUDA devices only");
    const Capabilities c = capabilities(device);
    Support support = sm90_supports_select(p, c);
    return support ? Support{sm90::refusal(kernel, p, c)} : support;
  };
  impl.prefers = [kernel](const TopkSelectParams& p, const Device& device) {
    const sm90::SelectKernel best = sm90::select_kernel(p, capabilities(device));
    return best == kernel ? Support::yes() : Support::no(name_of(best) + " is for such rows");
  };
  impl.run = [kernel](const TopkSelectParams& p, const ExecutionContext& context) {
    const DeviceScope scope(context.device.id().index);
    sm90::launch_topk_select(kernel, p, context);
  };
  return impl;
}
Implementation<TopkSelectParams> topk_select_smxx() {
  return implementation<TopkSelectParams>("cuda/smxx", {.supports = supports_select, .run = run_select<smxx::launch_topk_select>});
}

Implementation<IndexerTopkParams> indexer_topk_sm90(Notes kind) {
  const auto of = [](std::string name, auto supports, auto run) {
    return implementation<IndexerTopkParams>(std::move(name),
                                             {.supports = supports, .workspace_bytes = topk_workspace_bytes, .run = run, .fuses = fuses});
  };
  switch (kind) {
    case Notes::candidates:
      return of("cuda/sm90_candidates", sm90_supports_topk<Notes::candidates>,
                run_topk<sm90::launch_indexer_logits, sm90::launch_topk_select, Notes::candidates>);
    case Notes::maxima:
      return of("cuda/sm90_maxima", sm90_supports_topk<Notes::maxima>,
                run_topk<sm90::launch_indexer_logits, sm90::launch_topk_select, Notes::maxima>);
    case Notes::none: break;
  }
  return of("cuda/sm90", sm90_supports_topk<Notes::none>, run_topk<sm90::launch_indexer_logits, sm90::launch_topk_select, Notes::none>);
}
Implementation<IndexerTopkParams> indexer_topk_smxx() {
  return implementation<IndexerTopkParams>("cuda/smxx",
                                           {.supports = supports_topk,
                                            .workspace_bytes = topk_workspace_bytes,
                                            .run = run_topk<smxx::launch_indexer_logits, smxx::launch_topk_select, Notes::none>,
                                            .fuses = fuses});
}

}  // namespace strata::cuda
