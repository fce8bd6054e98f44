#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "contracts/kv_heads.h"
#include "ops/dense_attention/dense_checks.h"
#include "ops/factories.h"
#include "ops/kv_insert/row_checks.h"
#include "ops/schedule_check.h"

namespace strata::ops {
namespace {

// Every row that a query sees is in a page of the cache.
void check_values(ParamCheck& c, const DenseAttnDecodeParams& p) {
  if (!host_visible(p.query_start_loc) || !host_visible(p.seq_lens) || !host_visible(p.block_table)) return;
  check_start_loc(c, "query_start_loc", p.query_start_loc, p.q.shape[0], "max_query_len", p.max_query_len);
  const int32_t* start = p.query_start_loc.ptr<int32_t>();
  for (int64_t b = 0; b < p.seq_lens.shape[0]; ++b) {
    const int64_t seq_len = p.seq_lens.ptr<int32_t>()[b];
    c.require(seq_len >= 0 && seq_len <= p.max_seq_len, "seq_lens[{}] must be in [0, max_seq_len = {}], is {}", b, p.max_seq_len, seq_len);
    if (start[b + 1] == start[b]) continue;
    const int64_t blocks = (seq_len + p.cache.page_size - 1) / p.cache.page_size;
    c.require(blocks <= p.block_table.shape[1], "block_table must have at least {} blocks for the {} rows of request {}, has {}", blocks,
              seq_len, b, p.block_table.shape[1]);
    for (int64_t i = 0; i < blocks; ++i) {
      const int64_t page = p.block_table.row<int32_t>(b)[i];
      c.require(page >= 0 && page < p.cache.num_pages, "block_table[{}, {}] must be in [0, {}), is {}", b, i, p.cache.num_pages, page);
    }
  }
}

// A slot has a row of each KV head.
void check_kv_heads(ParamCheck& c, const DenseAttnDecodeParams& p) {
  const int64_t heads = p.q.shape[1], kv_heads = p.num_kv_heads;
  c.require(kv_heads >= 1, "num_kv_heads must be at least 1, is {}", kv_heads);
  c.require(heads % kv_heads == 0, "q must have a multiple of the {} KV heads as heads, has {}", kv_heads, heads);
  c.require(heads >= kv_heads && heads / kv_heads <= kMaxHeads, "q must have 1 to {} heads for each of {} KV heads, has {}", kMaxHeads,
            kv_heads, heads);
  if (kv_heads == 1) return;
  const PagedCache& cache = p.cache;
  c.require(cache.format == KvFormat::bf16 || cache.format == KvFormat::fp8_tensor,
            "cache must have format bf16 or fp8_tensor with {} KV heads, has {}", kv_heads, to_string(cache.format));
  const int64_t row_values = kv_heads * cache.row_dim;
  c.require(row_values <= std::numeric_limits<int32_t>::max() / cache.page_size,
            "num_kv_heads must be at most {} with {} rows of {} values a page, is {}",
            std::numeric_limits<int32_t>::max() / cache.page_size / cache.row_dim, cache.page_size, cache.row_dim, kv_heads);
  const int64_t payload = page_payload_bytes(cache.format, row_values, cache.page_size);
  c.require(cache.page_stride >= payload, "cache must have a page_stride of at least {} bytes for {} rows of each of {} KV heads, has {}",
            payload, cache.page_size, kv_heads, cache.page_stride);
}

void check(const DenseAttnDecodeParams& p, DeviceId device) {
  ParamCheck c("dense_attn_decode", device);
  c.view("q", p.q, DType::bf16, {kAny, kAny, kAny});
  const int64_t tokens = p.q.shape[0], heads = p.q.shape[1], dim = p.q.shape[2];
  c.require(dim >= 1 && dim <= kMaxDenseHeadDim, "q must have a head dimension of 1 to {}, has {}", kMaxDenseHeadDim, dim);
  check_rows(c, "cache", p.cache, {KvFormat::bf16, KvFormat::fp8_tensor, KvFormat::fp8_ds_mla}, dim);
  check_kv_heads(c, p);
  c.view("seq_lens", p.seq_lens, DType::i32, {kAny});
  const int64_t requests = p.seq_lens.shape[0];
  c.view("block_table", p.block_table, DType::i32, {requests, kAny});
  c.view("query_start_loc", p.query_start_loc, DType::i32, {requests + 1});
  check_longest(c, "max_query_len", p.max_query_len);
  check_longest(c, "max_seq_len", p.max_seq_len);
  check_room(c, tokens, requests, p.max_query_len);
  check_positive(c, "softmax_scale", p.softmax_scale);
  c.view("out", p.out, DType::bf16, {tokens, heads, kAny});
  check_value_dim(c, p.out.shape[2], dim);
  check_output(c, "out", p.out);
  c.optional("lse", p.lse, DType::f32, {tokens, heads});
  check_output(c, "lse", p.lse);
  check_schedule(c, p.schedule);
  check_values(c, p);
}

// `inner` takes one KV head. Calls with several are a call of `inner` for each, one after the other in the same workspace.
Implementation<DenseAttnDecodeParams> for_each_kv_head(Implementation<DenseAttnDecodeParams> inner) {
  using Params = DenseAttnDecodeParams;
  Implementation<Params> outer = inner;
  // All KV heads have the same shapes and strides, on which the answers depend.
  const auto of_first_head = [](auto answer) {
    return [answer](const Params& p, const Device& device) {
      return p.num_kv_heads == 1 ? answer(p, device) : answer(kv_head_call(p, 0), device);
    };
  };
  outer.supports = of_first_head(inner.supports);
  outer.workspace_bytes = of_first_head(inner.workspace_bytes);
  if (inner.prefers) outer.prefers = of_first_head(inner.prefers);
  outer.run = [run = inner.run](const Params& p, const ExecutionContext& context) {
    if (p.num_kv_heads == 1) return run(p, context);
    ExecutionContext earlier = context;
    earlier.hints = {};  // the hints describe what follows the whole call
    for (int64_t g = 0; g < p.num_kv_heads; ++g) run(kv_head_call(p, g), g + 1 < p.num_kv_heads ? earlier : context);
  };
  return outer;
}

std::vector<Implementation<DenseAttnDecodeParams>> implementations() {
  auto list = join(cuda::dense_attn_decode(), opencl::dense_attn_decode(), cpu::dense_attn_decode());
  for (Implementation<DenseAttnDecodeParams>& implementation : list) implementation = for_each_kv_head(std::move(implementation));
  return join(std::move(list), reference::dense_attn_decode());
}

}  // namespace

Op<DenseAttnDecodeParams> make_dense_attn_decode() { return {"dense_attn_decode", check, implementations()}; }

std::vector<DenseDecodePlanner> make_dense_decode_planners() { return cuda::dense_decode_planners(); }

}  // namespace strata::ops
