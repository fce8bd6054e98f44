#include <algorithm>

#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/indices/value_checks.h"

namespace strata::ops {
namespace {

void check_views(ParamCheck& c, const CombineTopkSwaParams& p) {
  c.view("combined_indices", p.combined_indices, DType::i32, {kAny, kAny});
  check_output(c, "combined_indices", p.combined_indices);
  const int64_t tokens = p.combined_indices.shape[0];
  c.view("combined_lens", p.combined_lens, DType::i32, {tokens});
  c.view("seq_lens", p.seq_lens, DType::i32, {kAny});
  const int64_t requests = p.seq_lens.shape[0];
  c.view("query_start_loc", p.query_start_loc, DType::i32, {requests + 1});
  c.view("gather_lens", p.gather_lens, DType::i32, {requests});
  c.require(p.window >= 1, "window must be at least 1, is {}", p.window);
  c.require(p.ratio >= 1, "ratio must be at least 1, is {}", p.ratio);
  c.require(p.top_k >= 0, "top_k must not be negative, is {}", p.top_k);
  if (p.top_k > 0) {
    c.view("topk_indices", p.topk_indices, DType::i32, {tokens, p.top_k});
  } else {
    c.require(!p.topk_indices.present() || p.topk_indices.numel() == 0, "topk_indices must be absent when top_k is 0, is {}",
              p.topk_indices);
  }
  const int64_t width = int64_t{p.top_k} + p.window;
  c.require(p.combined_indices.shape[1] >= width, "combined_indices must have at least top_k + window = {} columns, has {}", width,
            p.combined_indices.shape[1]);
  c.require(p.n >= 0 && p.m >= p.n, "n must be in [0, m = {}], is {}", p.m, p.n);
  c.require(p.m == 0 || requests <= kMaxIndices / p.m, "m must be at most {} so that the rows of {} requests fit an i32, is {}",
            requests > 0 ? kMaxIndices / requests : kMaxIndices, requests, p.m);
}

// The rows that a request of the chunk refers to were gathered, and fit the workspace.
void check_request(ParamCheck& c, const CombineTopkSwaParams& p, int64_t r) {
  const int32_t* starts = p.query_start_loc.ptr<int32_t>();
  const int64_t query_len = int64_t{starts[r + 1]} - starts[r];
  const int64_t seq_len = p.seq_lens.ptr<int32_t>()[r];
  const int64_t gather_len = p.gather_lens.ptr<int32_t>()[r];
  c.require(query_len >= 0, "query_start_loc[{}] must be at least query_start_loc[{}] = {}, is {}", r + 1, r, starts[r], starts[r + 1]);
  c.require(seq_len >= query_len, "seq_lens[{}] must be at least the query length {}, is {}", r, query_len, seq_len);
  const int64_t needed = query_len == 0 ? 0 : std::min(seq_len, query_len + p.window - 1);
  c.require(gather_len >= needed && gather_len <= seq_len, "gather_lens[{}] must be in [{}, {}], is {}", r, needed, seq_len, gather_len);
  c.require(gather_len <= p.m - p.n, "m must be at least n + gather_lens[{}] = {}, is {}", r, p.n + gather_len, p.m);
}

// Left-packed entries, all visible to the token: a missing entry would name a row of another request.
void check_selection(ParamCheck& c, const CombineTopkSwaParams& p, int64_t t, int64_t position) {
  const int64_t visible = (position + 1) / p.ratio;
  const int64_t count = std::min<int64_t>(visible, p.top_k);
  for (int64_t i = 0; i < count; ++i) {
    const int32_t entry = p.topk_indices.row<int32_t>(t)[i];
    c.require(entry >= 0 && entry < visible, "topk_indices[{}, {}] must be in [0, {}), is {}", t, i, visible, entry);
    c.require(entry < p.n, "topk_indices[{}, {}] must be in [0, n = {}), is {}", t, i, p.n, entry);
  }
}

void check(const CombineTopkSwaParams& p, DeviceId device) {
  ParamCheck c("combine_topk_swa", device);
  check_views(c, p);
  if (!host_visible(p.query_start_loc) || !host_visible(p.seq_lens) || !host_visible(p.gather_lens)) return;
  const int64_t requests = p.seq_lens.shape[0];
  const int32_t* starts = p.query_start_loc.ptr<int32_t>();
  for (int64_t r = 0; r < requests; ++r) check_request(c, p, r);
  const int64_t tokens = int64_t{starts[requests]} - starts[0];
  c.require(tokens == p.combined_indices.shape[0], "query_start_loc must span the {} rows of combined_indices, spans {}",
            p.combined_indices.shape[0], tokens);
  if (p.top_k == 0 || !host_visible(p.topk_indices)) return;
  for (int64_t r = 0; r < requests; ++r) {
    const int64_t begin = int64_t{starts[r]} - starts[0];
    const int64_t end = int64_t{starts[r + 1]} - starts[0];
    for (int64_t t = begin; t < end; ++t) check_selection(c, p, t, p.seq_lens.ptr<int32_t>()[r] - end + t);
  }
}

}  // namespace

Op<CombineTopkSwaParams> make_combine_topk_swa() {
  return {"combine_topk_swa", check,
          join(cuda::combine_topk_swa(), opencl::combine_topk_swa(), cpu::combine_topk_swa(), reference::combine_topk_swa())};
}

}  // namespace strata::ops
