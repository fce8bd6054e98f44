// sparse_attn_decode on Hopper: supported calls, KV splits, launches. Rows of q, out and the caches must be 16-byte aligned: supports()
// checks strides, and the op's check requires that memory begins accordingly.
#include <algorithm>
#include <string>

#include "backends/cuda/sparse_attn_decode/impls.h"
#include "backends/cuda/sparse_attn_decode/sm90/launch.h"
#include "backends/cuda/sparse_attn_decode/sm90/planner.h"
#include "backends/cuda/sparse_attn_decode/sm90/schedule.h"
#include "core/ceil_div.h"
#include "contracts/row_alignment.h"

namespace strata::cuda {
namespace {

using namespace sparse_decode;

// What every kernel requires.
Support supports(const SparseAttnDecodeParams& p, const Capabilities& c) {
  if (Support sm90 = needs_sm90(c); !sm90) return sm90;
  const KvFormat format = p.cache.format;
  if (format != KvFormat::fp8_ds_mla_v4 && format != KvFormat::fp8_ds_mla) {
    return Support::no("needs caches of fp8_ds_mla_v4 or fp8_ds_mla, has " + std::string(to_string(format)));
  }
  if (p.extra_cache.present() && p.extra_cache.format != format) {
    return Support::no("needs two caches of one format, has " + std::string(to_string(format)) + " and " +
                       std::string(to_string(p.extra_cache.format)));
  }
  if (p.out.shape[3] != kValueDim) return Support::no("needs 512 value dimensions, has " + std::to_string(p.out.shape[3]));
  for (const TensorView* rows : {&p.q, &p.out}) {
    if (ops::row_alignment(*rows) != 16) {
      return Support::no(std::string(rows == &p.q ? "q" : "out") + " must have rows at multiples of 16 bytes, is " + rows->describe());
    }
  }
  for (const PagedCache* cache : {&p.cache, &p.extra_cache}) {
    if (cache->present() && cache->page_stride % 16 != 0) {
      return Support::no("pages must be at multiples of 16 bytes, are " + std::to_string(cache->page_stride) + " bytes apart");
    }
  }
  return Support::yes();
}

// The kernels have one rotation, of 64 dimensions. Only the kernels of fp8_ds_mla_v4 normalise queries.
bool fuses(const SparseAttnDecodeParams& p, const Capabilities&, std::string_view fusion) {
  if (fusion == "query_prologue") {
    return p.cache.format == KvFormat::fp8_ds_mla_v4 && p.query_prologue->cos_sin.shape[1] == kRotaryDims;
  }
  if (fusion != "out_epilogue") return false;
  const InverseRope& rope = *p.out_epilogue;
  if (rope.cos_sin.shape[1] != kRotaryDims) return false;
  const auto same = [](const TensorView& a, const TensorView& b) { return a.data == b.data && a.shape == b.shape && a.stride == b.stride; };
  // Both fusions use one table. Its address does not change the workspace: the separate rotation needs none.
  return !p.query_prologue || same(p.query_prologue->cos_sin, rope.cos_sin);
}

Scope scope_of(const PagedCache& cache, const TensorView& indices, const TensorView& lengths) {
  if (!cache.present()) return {};
  return {.data = static_cast<const uint8_t*>(cache.data),
          .page_stride = cache.page_stride,
          .page_size = Divisor(cache.page_size),
          .num_slots = static_cast<uint32_t>(std::min<int64_t>(cache.num_slots(), int64_t{1} << 31)),
          .indices = indices.ptr<int32_t>(),
          .indices_batch_stride = indices.stride[0],
          .indices_query_stride = indices.stride[1],
          .lengths = lengths.present() ? lengths.ptr<int32_t>() : nullptr,
          .width = static_cast<int32_t>(indices.shape[2])};
}

DecodeArgs args_of(const SparseAttnDecodeParams& p) {
  DecodeArgs a{};
  a.scope[0] = scope_of(p.cache, p.indices, p.topk_length);
  a.scope[1] = scope_of(p.extra_cache, p.extra_indices, p.extra_topk_length);
  a.q = p.q.ptr<uint16_t>();
  a.q_batch_stride = p.q.stride[0], a.q_query_stride = p.q.stride[1], a.q_head_stride = p.q.stride[2];
  a.num_heads = static_cast<int32_t>(p.q.shape[2]);
  a.num_queries = static_cast<int32_t>(p.q.shape[1]);
  a.sink = p.attn_sink.present() ? p.attn_sink.ptr<float>() : nullptr;
  a.scale_log2 = p.softmax_scale * kLog2e;
  const auto set_rotation = [&](const TensorView& cos_sin) {
    a.cos_sin = cos_sin.ptr<float>(), a.cos_sin_stride = cos_sin.stride[0], a.cos_sin_rows = cos_sin.shape[0];
  };
  if (p.out_epilogue) {
    set_rotation(p.out_epilogue->cos_sin);
    a.positions = p.out_epilogue->positions.ptr<int64_t>();
  }
  if (p.query_prologue) {
    set_rotation(p.query_prologue->cos_sin);
    a.q_positions = p.query_prologue->positions.ptr<int64_t>(), a.q_eps = p.query_prologue->eps;
  }
  a.out = p.out.ptr<uint16_t>();
  a.out_batch_stride = p.out.stride[0], a.out_query_stride = p.out.stride[1], a.out_head_stride = p.out.stride[2];
  if (p.lse.present()) {
    a.lse = p.lse.ptr<float>();
    a.lse_batch_stride = p.lse.stride[0], a.lse_head_stride = p.lse.stride[1], a.lse_query_stride = p.lse.stride[2];
  }
  if (p.max_logits.present()) {
    a.max_logits = p.max_logits.ptr<float>();
    a.max_batch_stride = p.max_logits.stride[0], a.max_head_stride = p.max_logits.stride[1], a.max_query_stride = p.max_logits.stride[2];
  }
  return a;
}

Problem problem_of(const SparseAttnDecodeParams& p, const Capabilities& c) {
  const int64_t rows = p.indices.shape[2] + (p.extra_cache.present() ? p.extra_indices.shape[2] : 0);
  return {.tokens = p.q.shape[0] * p.q.shape[1],
          .heads = p.q.shape[2],
          .tiles = ceil_div(rows, kRowTile),
          .num_sms = c.num_sms,
          .format = p.cache.format,
          .batch_invariant = p.batch_invariant,
          .raw_queries = p.query_prologue.has_value()};
}

// How much of next_weights is prefetched to L2. More would delay the rows and would be evicted (docs/kernels/decode_layer.md). With a
// schedule and few weights it is less, because the next product starts concurrently, on the SMs that the work items leave idle.
constexpr int64_t kNextBytes = 16 << 20, kNextRangeBytes = 8 << 10, kNextLine = 128;
constexpr int64_t kNextFewWeights = 48 << 20, kNextBytesScheduled = 4 << 20;

// By at least `blocks` CTAs, each with at most tiles_of_block tiles.
void plan_weight_prefetch(const TensorView& weights, int64_t block_heads, int64_t blocks, int64_t tiles_of_block, DecodeArgs& a) {
  if (!weights.present() || reinterpret_cast<uintptr_t>(weights.data) % 16 != 0) return;
  const bool few_heads = block_heads < kHeadTile;
  const int64_t warps = few_heads ? 4 : kProducerThreads / 32;  // warps that load rows
  const int64_t times = few_heads ? tiles_of_block : ceil_div(tiles_of_block, 2), prefetches = blocks * times * warps;
  if (prefetches == 0) return;
  const bool few_weights_scheduled = a.work_items != nullptr && static_cast<int64_t>(weights.bytes()) <= kNextFewWeights;
  const int64_t bytes_per_prefetch = (few_weights_scheduled ? kNextBytesScheduled : kNextBytes) / prefetches;
  const int64_t lanes = std::clamp<int64_t>(bytes_per_prefetch / kNextRangeBytes, 1, 32);
  const int64_t stride = static_cast<int64_t>(weights.bytes()) / (prefetches * lanes) / kNextLine * kNextLine;
  const int64_t bytes = std::min(stride, bytes_per_prefetch / lanes / kNextLine * kNextLine);
  if (bytes < 1024) return;
  a.next = static_cast<const uint8_t*>(weights.data);
  a.next_stride = stride, a.next_bytes = static_cast<int32_t>(bytes);
  a.next_lanes = static_cast<int32_t>(lanes), a.next_times = static_cast<int32_t>(times);
}

// Whether the product after this op, which then is the next kernel, starts only when the splits are combined. For few weights its reads
// would slow the combine kernel more than they save. For more weights memory is busy all the time anyway. Not for a schedule's splits.
bool combine_first(const SparseAttnDecodeParams& p, const TensorView& next_weights) {
  constexpr int64_t kFewWeights = 96 << 20;
  return p.out_epilogue && next_weights.present() && static_cast<int64_t>(next_weights.bytes()) <= kFewWeights;
}

// Space for the splits: outputs, lse, maxima and factors. The splits of a schedule fit into a plan's space (schedule.h).
size_t workspace_bytes(const SparseAttnDecodeParams& p, const Capabilities& c) {
  int64_t max_splits = 0;
  const int64_t splits = common_plan(problem_of(p, c), max_splits).max_total_splits;
  return static_cast<size_t>(splits * p.q.shape[2]) * (kValueDim * sizeof(uint16_t) + 3 * sizeof(float));
}

// The schedule of a call. BatchBuilder and the kernels derive the same sizes from shapes alone.
struct CallSchedule {
  int64_t heads = 0;  // heads of a CTA; 0: the kernels take no schedule
  Sizes sizes{};
  int64_t combine_rows = -1;  // -1: the call has no schedule, or one of another size

  CallSchedule(const SparseAttnDecodeParams& p, const Problem& problem, const Planner& planner)
      : heads(p.schedule.present() ? planner.scheduled_heads(problem) : 0) {
    if (heads == 0) return;
    sizes = {problem.tokens, max_further_work_items(problem, heads)};
    combine_rows = sizes.combine_rows_of(p.schedule.numel());
  }
  bool is_taken() const { return combine_rows >= 0; }
};
void assign_split_buffers(int64_t splits_of_tokens, const ExecutionContext& context, DecodeArgs& a) {
  const int64_t splits = splits_of_tokens * a.num_heads;
  a.split_out = static_cast<uint16_t*>(context.workspace.data);
  a.split_lse = reinterpret_cast<float*>(a.split_out + splits * kValueDim);
  a.split_max = a.split_lse + splits;
  a.split_unshift = a.split_max + splits;
}

template <KvFormat kFormat>
void launch(const DecodeArgs& a, Kernel kernel, const Plan& plan, int64_t tokens, const ExecutionContext& context) {
  constexpr bool kV4 = kFormat == KvFormat::fp8_ds_mla_v4;
  switch (kernel) {
    case Kernel::persistent:
      if constexpr (kV4) {
        const int64_t items = tokens * ceil_div(a.num_heads, plan.block_heads);
        const int64_t blocks = std::min<int64_t>(items, capabilities(context.device).num_sms);
        plan.block_heads == 8 ? launch_persistent<8>(a, tokens, blocks, context) : launch_persistent<16>(a, tokens, blocks, context);
      }
      return;
    case Kernel::few_heads_clusters:
      if constexpr (kV4) {
        plan.block_heads == 8 ? launch_in_clusters<kFormat, 8>(a, tokens, context) : launch_in_clusters<kFormat, 16>(a, tokens, context);
      }
      return;
    case Kernel::few_heads:
      return plan.block_heads == 8    ? launch_decode<kFormat, 8>(a, tokens, context)
             : plan.block_heads == 16 ? launch_decode<kFormat, 16>(a, tokens, context)
                                      : launch_decode<kFormat, 32>(a, tokens, context);
    case Kernel::h64_clusters: return launch_in_clusters<kFormat, kHeadTile>(a, tokens, context);
    case Kernel::h64: return launch_decode<kFormat, kHeadTile>(a, tokens, context);
  }
}

void run_schedule(const SparseAttnDecodeParams& p, const Problem& problem, const CallSchedule& schedule, int64_t block_heads, DecodeArgs& a,
                  const ExecutionContext& context) {
  const int64_t work_items = schedule.sizes.work_items();
  assign_split_buffers(schedule.sizes.splits(), context, a);
  a.num_splits = 1;
  a.work_items = p.schedule.ptr<int32_t>();
  // The usual number of rows, divided among as many CTAs as that needs: the actual work items are not known on the host.
  const int64_t head_tiles = ceil_div(problem.heads, block_heads), blocks = work_items * head_tiles,
                usual = problem.tokens * head_tiles * std::min(problem.tiles, kUsualTiles),
                tiles = std::clamp<int64_t>(ceil_div(usual, problem.num_sms), 1, kUsualTiles);
  const int64_t prefetching = block_heads < kHeadTile ? std::clamp<int64_t>(usual / tiles, 1, blocks) : blocks;
  a.next_blocks = static_cast<int32_t>(prefetching);
  plan_weight_prefetch(context.hints.next_weights, block_heads, prefetching, tiles, a);
  switch (block_heads) {
    case 8: launch_scheduled<8>(a, work_items, context); break;
    case 16: launch_scheduled<16>(a, work_items, context); break;
    case 32: launch_scheduled<32>(a, work_items, context); break;
    default: launch_scheduled<kHeadTile>(a, work_items, context); break;
  }
  if (schedule.combine_rows == 0) return;
  a.combine_rows = a.work_items + work_items * int64_t{sizeof(WorkItemRow) / sizeof(int32_t)},
  a.num_combine_rows = static_cast<int32_t>(schedule.combine_rows);
  launch_scheduled_combine(a, context);
}

void run_plan(const SparseAttnDecodeParams& p, Kernel kernel, const Plan& plan, int64_t tokens, DecodeArgs& a,
              const ExecutionContext& context) {
  assign_split_buffers(plan.max_total_splits, context, a);
  a.combine_first = combine_first(p, context.hints.next_weights);
  a.num_splits = static_cast<int32_t>(plan.splits), a.tiles_per_split = static_cast<int32_t>(plan.tiles_per_split);
  a.split_divisor = Divisor(a.num_splits);
  const int64_t blocks = tokens * ceil_div(a.num_heads, plan.block_heads) * plan.splits,
                tiles = ceil_div(a.scope[0].width + a.scope[1].width, kRowTile);
  plan_weight_prefetch(context.hints.next_weights, plan.block_heads, blocks, ceil_div(tiles, plan.splits), a);
  if (p.cache.format == KvFormat::fp8_ds_mla_v4) {
    launch<KvFormat::fp8_ds_mla_v4>(a, kernel, plan, tokens, context);
  } else {
    launch<KvFormat::fp8_ds_mla>(a, kernel, plan, tokens, context);
  }
  const bool combines = kernel == Kernel::few_heads || kernel == Kernel::h64;
  if (a.num_splits > 1 && combines) launch_combine(a, tokens, blocks, context);
}

bool is_few(int64_t block_heads) { return block_heads < kHeadTile; }

// Rounded to a tenth of a microsecond.
std::string us(const Plan& plan) {
  const int64_t tenths = (plan.time + 5) / 10;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " us";
}

}  // namespace

Implementation<SparseAttnDecodeParams> sparse_attn_decode_sm90(Kernel kernel, const Planner& planner) {
  auto impl = implementation<SparseAttnDecodeParams>("cuda/sm90_" + std::string(name_of(kernel)),
                                                     {.workspace_bytes = workspace_bytes, .fuses = fuses});
  impl.supports = [kernel](const SparseAttnDecodeParams& p, const Device& device) {
    if (!is_cuda(device)) return Support::no("runs on CUDA devices only");
    const Capabilities c = capabilities(device);
    Support support = supports(p, c);
    return support ? Support{refusal(problem_of(p, c), kernel)} : support;
  };
  impl.prefers = [kernel, planner](const SparseAttnDecodeParams& p, const Device& device) {
    const Problem problem = problem_of(p, capabilities(device));
    if (CallSchedule(p, problem, planner).is_taken()) return Support::no("the call has a schedule");
    const Plans plans = planner.plans(problem, device);
    if (plans.fastest == kernel) return Support::yes();
    return Support::no("sm90_" + std::string(name_of(plans.fastest)) + " is estimated at " + us(plans.best()) + ", this at " +
                       us(plan_of(problem, plans, kernel)));
  };
  impl.run = [kernel, planner](const SparseAttnDecodeParams& p, const ExecutionContext& context) {
    const Problem problem = problem_of(p, capabilities(context.device));
    if (problem.tokens == 0) return;
    const DeviceScope scope(context.device.id().index);
    DecodeArgs a = args_of(p);
    const Plan plan = plan_of(problem, planner.plans(problem, context.device), kernel);
    run_plan(p, kernel, plan, problem.tokens, a, context);
  };
  return impl;
}

Implementation<SparseAttnDecodeParams> sparse_attn_decode_sm90_scheduled(bool few_heads, const Planner& planner) {
  auto impl = implementation<SparseAttnDecodeParams>(few_heads ? "cuda/sm90_few_heads_scheduled" : "cuda/sm90_h64_scheduled",
                                                     {.workspace_bytes = workspace_bytes, .fuses = fuses});
  impl.supports = [planner](const SparseAttnDecodeParams& p, const Device& device) {
    if (!is_cuda(device)) return Support::no("runs on CUDA devices only");
    const Capabilities c = capabilities(device);
    if (Support support = supports(p, c); !support) return support;
    if (!p.schedule.present()) return Support::no("needs a schedule");
    const CallSchedule schedule(p, problem_of(p, c), planner);
    if (schedule.heads == 0) return Support::no("takes no schedule of such a call");
    return schedule.is_taken() ? Support::yes()
                               : Support::no("needs a schedule of up to " + std::to_string(schedule.sizes.bytes()) + " bytes, has " +
                                             std::to_string(p.schedule.numel()));
  };
  impl.prefers = [few_heads, planner](const SparseAttnDecodeParams& p, const Device& device) {
    const int64_t heads = planner.scheduled_heads(problem_of(p, capabilities(device)));
    return is_few(heads) == few_heads ? Support::yes() : Support::no("blocks of " + std::to_string(heads) + " heads are faster");
  };
  impl.run = [few_heads, planner](const SparseAttnDecodeParams& p, const ExecutionContext& context) {
    const Problem problem = problem_of(p, capabilities(context.device));
    if (problem.tokens == 0) return;
    const DeviceScope scope(context.device.id().index);
    DecodeArgs a = args_of(p);
    const CallSchedule schedule(p, problem, planner);
    run_schedule(p, problem, schedule, is_few(schedule.heads) == few_heads ? schedule.heads : few_heads ? 32 : kHeadTile, a, context);
  };
  return impl;
}

}  // namespace strata::cuda
