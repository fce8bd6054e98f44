// Dense prefill over the kernels of attn/prefill.h: a task is a head and up to kMaxQueries queries of a request.
//
// Floor, 192/128: 640 flops for a query, a visible key and a head; keys and values are read once per task. 1024 causal tokens, 16
// heads: 5.4 GFLOP against 21 MB.
#include <algorithm>
#include <vector>

#include "backends/cpu/attn/attention_paths.h"
#include "backends/cpu/attn/prefill.h"
#include "backends/cpu/cpu_ops.h"
#include "core/ceil_div.h"

namespace strata::cpu {
namespace {

constexpr int64_t kMaxQueries = 512;  // packing a block of keys is then 1/32 of the products with it
constexpr int64_t kMinQueries = 64;

const PrefillFunctions& functions(AttendPath path) {
  switch (path) {
#if defined(__x86_64__)
    case AttendPath::amx: return kAmxPrefill;
    case AttendPath::avx512_bf16: return kAvx512Bf16Prefill;
#endif
    case AttendPath::avx512: return kAvx512Prefill;
    case AttendPath::avx2: return kAvx2Prefill;
    default: return kPortablePrefill;
  }
}

PrefillShape shape_of(const DenseAttnPrefillParams& p) {
  return {.nope = static_cast<int>(p.k_nope.shape[2]),
          .rotary = static_cast<int>(p.k_pe.shape[1]),
          .value = static_cast<int>(p.v.shape[2]),
          .softmax_scale = p.softmax_scale,
          .causal = p.causal,
          .max_queries = static_cast<int>(std::clamp<int64_t>(p.max_query_len, 1, kMaxQueries))};
}

size_t scratch_bytes(const DenseAttnPrefillParams& p, AttendPath path) {
  return (functions(path).scratch_bytes(shape_of(p)) + 63) / 64 * 64;
}

struct Request {
  int64_t first_query, queries, first_key, keys;
};

int64_t num_requests(const DenseAttnPrefillParams& p) { return p.query_start_loc.present() ? p.query_start_loc.shape[0] - 1 : 1; }

Request request_at(const DenseAttnPrefillParams& p, int64_t b) {
  if (!p.query_start_loc.present()) return {0, p.q.shape[0], 0, p.k_nope.shape[0]};
  const int32_t *q = p.query_start_loc.ptr<int32_t>(), *k = p.key_start_loc.ptr<int32_t>();
  return {int64_t{q[b]} - q[0], int64_t{q[b + 1]} - q[b], int64_t{k[b]} - k[0], int64_t{k[b + 1]} - k[b]};
}

// Queries a task: as many as leave work for every thread.
int64_t queries_per_task(const DenseAttnPrefillParams& p, int threads) {
  int64_t queries = kMaxQueries;
  for (;; queries /= 2) {
    int64_t tasks = 0;
    for (int64_t b = 0; b < num_requests(p); ++b) tasks += p.q.shape[1] * ((request_at(p, b).queries + queries - 1) / queries);
    if (queries == kMinQueries || tasks >= 4 * threads) return queries;
  }
}

// k_nope may have no lanes, and no memory then.
HeadRows rows(const TensorView& view, int64_t first, int64_t head) {
  return {view.data != nullptr ? view.row<uint16_t>(first, head) : nullptr, view.stride[0]};
}

// `count` queries from `first` on of the request.
PrefillTask task_of(const DenseAttnPrefillParams& p, const Request& r, int64_t head, int64_t first, int64_t count) {
  const int64_t query = r.first_query + first;
  PrefillTask task{.q = rows(p.q, query, head),
                   .k_nope = rows(p.k_nope, r.first_key, head),
                   .k_pe = {p.k_pe.row<uint16_t>(r.first_key), p.k_pe.stride[0]},
                   .v = rows(p.v, r.first_key, head),
                   .num_queries = count,
                   .num_keys = r.keys,
                   .first_visible = r.keys - r.queries + first + 1,
                   .out_f32 = p.out.dtype == DType::f32,
                   .out_stride = p.out.stride[0]};
  task.out = task.out_f32 ? static_cast<void*>(p.out.row<float>(query, head)) : static_cast<void*>(p.out.row<uint16_t>(query, head));
  if (p.lse.present()) {
    task.lse = p.lse.row<float>(query) + head;
    task.lse_stride = p.lse.stride[0];
  }
  return task;
}

void run(const DenseAttnPrefillParams& p, const Device& device, AttendPath path, std::byte* workspace) {
  const PrefillShape shape = shape_of(p);
  const PrefillFunctions& kernel = functions(path);
  const size_t scratch = scratch_bytes(p, path);
  const int threads = threads_of(device);
  const int64_t heads = p.q.shape[1], requests = num_requests(p);
  const int64_t queries = std::min<int64_t>(queries_per_task(p, threads), shape.max_queries);
  std::vector<int64_t> begins(static_cast<size_t>(requests) + 1, 0);  // the first task of each request
  for (int64_t b = 0; b < requests; ++b) {
    begins[static_cast<size_t>(b) + 1] = begins[static_cast<size_t>(b)] + ceil_div(request_at(p, b).queries, queries) * heads;
  }
  for_each_of(begins.back(), threads, [&](int64_t task) {
    const auto request = std::upper_bound(begins.begin(), begins.end(), task) - 1;
    const Request r = request_at(p, request - begins.begin());
    const int64_t tiles_per_head = ceil_div(r.queries, queries), i = task - *request;
    // The last queries of a causal request see the most keys: they go first.
    const int64_t first = (tiles_per_head - 1 - i / heads) * queries;
    kernel.run(shape, task_of(p, r, i % heads, first, std::min(queries, r.queries - first)),
               workspace + static_cast<size_t>(thread_index()) * scratch);
  });
}

Support supports(const DenseAttnPrefillParams& p, AttendPath path) {
  const PrefillShape shape = shape_of(p);
  const bool tiles = path == AttendPath::amx || path == AttendPath::avx512_bf16;
  if (tiles && (shape.nope % 32 != 0 || shape.rotary % 32 != 0 || shape.value % 32 != 0)) {
    return Support::no(
        fmt::format("needs key, rotary and value dims that are multiples of 32, are {}, {} and {}", shape.nope, shape.rotary, shape.value));
  }
  return Support::yes();
}

}  // namespace

std::vector<Implementation<DenseAttnPrefillParams>> dense_attn_prefill() {
  return attention_paths<DenseAttnPrefillParams>(
      supports,
      [](const DenseAttnPrefillParams& p, const Device& device, AttendPath path) {
        return static_cast<size_t>(threads_of(device)) * scratch_bytes(p, path);
      },
      run);
}

}  // namespace strata::cpu
