// The sparse attention ops over the multi-query kernel of attn/: each instruction set is an implementation of its own, fastest first.
#include <algorithm>

#include "backends/cpu/attn/attention_paths.h"
#include "backends/cpu/cpu_ops.h"
#include "core/check.h"

namespace strata::cpu {
namespace {

AttendShape shape_of(const SparseAttnDecodeParams& p) {
  AttendShape shape{.num_heads = static_cast<int>(p.q.shape[2]),
                    .head_dim = static_cast<int>(p.q.shape[3]),
                    .value_dim = static_cast<int>(p.out.shape[3]),
                    .softmax_scale = p.softmax_scale,
                    .num_scopes = p.extra_cache.present() ? 2 : 1};
  shape.source[0] = source_of(p.cache);
  if (p.extra_cache.present()) shape.source[1] = source_of(p.extra_cache);
  return shape;
}

AttendShape shape_of(const SparseAttnPrefillParams& p) {
  AttendShape shape{.num_heads = static_cast<int>(p.q.shape[1]),
                    .head_dim = static_cast<int>(p.q.shape[2]),
                    .value_dim = static_cast<int>(p.out.shape[2]),
                    .softmax_scale = p.softmax_scale};
  shape.source[0] = {.base = static_cast<const std::byte*>(p.kv.data),
                     .format = KvFormat::bf16,
                     .row_stride = p.kv.stride[0] * static_cast<int64_t>(sizeof(Bf16)),
                     .num_rows = p.kv.shape[0]};
  return shape;
}

AttendBatch batch_of(const SparseAttnDecodeParams& p, const Device& device, AttendPath path) {
  // Key lists are cut by their length alone and combined in order, for any number of threads: every mode is batch-invariant.
  return {.path = path, .shape = shape_of(p), .num_queries = p.q.shape[0] * p.q.shape[1], .num_threads = threads_of(device)};
}

AttendBatch batch_of(const SparseAttnPrefillParams& p, const Device& device, AttendPath path) {
  return {.path = path, .shape = shape_of(p), .num_queries = p.q.shape[0], .num_threads = threads_of(device)};
}

const float* sink_of(const TensorView& sink) { return sink.present() ? sink.ptr<float>() : nullptr; }

int64_t clipped_length(const TensorView& lengths, int64_t row, int64_t width) {
  return lengths.present() ? std::clamp<int64_t>(lengths.ptr<int32_t>()[row * lengths.stride[0]], 0, width) : width;
}

void run_with(const SparseAttnDecodeParams& p, const Device& device, AttendPath path, std::byte* workspace) {
  const int64_t per_entry = p.q.shape[1];
  const auto row_at = [](const TensorView& v, int64_t b, int64_t s) { return v.row<uint16_t>(b, s); };
  const auto query_at = [&](int64_t i) {
    const int64_t b = i / per_entry, s = i % per_entry;
    AttendQuery query{.q = row_at(p.q, b, s),
                      .q_head_stride = p.q.stride[2],
                      .sink = sink_of(p.attn_sink),
                      .out = row_at(p.out, b, s),
                      .out_head_stride = p.out.stride[2]};
    query.keys[0] = {.indices = p.indices.row<int32_t>(b, s), .count = clipped_length(p.topk_length, b, p.indices.shape[2])};
    if (p.extra_cache.present()) {
      query.keys[1] = {.indices = p.extra_indices.row<int32_t>(b, s),
                       .count = clipped_length(p.extra_topk_length, b, p.extra_indices.shape[2])};
    }
    // lse and max_logits are [B, H, S]: heads are stride[1] apart.
    if (p.lse.present()) {
      query.lse = p.lse.ptr<float>() + b * p.lse.stride[0] + s * p.lse.stride[2];
      query.lse_stride = p.lse.stride[1];
    }
    if (p.max_logits.present()) {
      query.max_logits = p.max_logits.ptr<float>() + b * p.max_logits.stride[0] + s * p.max_logits.stride[2];
      query.lse_stride = p.max_logits.stride[1];
    }
    return query;
  };
  attend_batch(batch_of(p, device, path), query_at, workspace);
}

void run_with(const SparseAttnPrefillParams& p, const Device& device, AttendPath path, std::byte* workspace) {
  const auto query_at = [&](int64_t t) {
    AttendQuery query{.q = p.q.row<uint16_t>(t),
                      .q_head_stride = p.q.stride[1],
                      .sink = sink_of(p.attn_sink),
                      .out = p.out.row<uint16_t>(t),
                      .out_head_stride = p.out.stride[1]};
    query.keys[0] = {.indices = p.indices.row<int32_t>(t), .count = clipped_length(p.topk_length, t, p.indices.shape[1])};
    if (p.lse.present()) query.lse = p.lse.row<float>(t);
    if (p.max_logits.present()) query.max_logits = p.max_logits.row<float>(t);
    return query;
  };
  attend_batch(batch_of(p, device, path), query_at, workspace);
}

// The kernel takes one stride for both statistics and an undivided list of sinks.
Support strides_fit(const SparseAttnDecodeParams& p) {
  if (p.lse.present() && p.max_logits.present() && p.lse.stride[1] != p.max_logits.stride[1]) {
    return Support::no(
        fmt::format("needs lse and max_logits of equal head stride, are {} and {}", p.lse.stride[1], p.max_logits.stride[1]));
  }
  return Support::yes();
}
Support strides_fit(const SparseAttnPrefillParams&) { return Support::yes(); }

template <class Params>
Support supports(const Params& p, AttendPath) {
  if (Support dims = dims_fit(shape_of(p)); !dims) return dims;
  return strides_fit(p);
}

template <class Params>
std::vector<Implementation<Params>> all_paths() {
  return attention_paths<Params>(
      supports<Params>,
      [](const Params& p, const Device& device, AttendPath path) { return attend_batch_workspace_bytes(batch_of(p, device, path)); },
      [](const Params& p, const Device& device, AttendPath path, std::byte* workspace) { run_with(p, device, path, workspace); });
}

}  // namespace

std::vector<Implementation<SparseAttnDecodeParams>> sparse_attn_decode() { return all_paths<SparseAttnDecodeParams>(); }
std::vector<Implementation<SparseAttnPrefillParams>> sparse_attn_prefill() { return all_paths<SparseAttnPrefillParams>(); }

}  // namespace strata::cpu
