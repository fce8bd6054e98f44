#include <compare>
#include <cstdint>
#include <vector>

#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/reference/reference.h"
#include "ops/dense_attention/dense_checks.h"
#include "ops/factories.h"
#include "ops/kv_insert/row_checks.h"

namespace strata::ops {
namespace {

constexpr int64_t kMostSpans = 256, kSpanFields = 8;
constexpr int32_t kCutRows = 48;  // places are multiples of it

void check_span_views(ParamCheck& c, const DenseAttnDecodeParams& p) {
  if (!p.spans.present()) return;
  c.view("spans", p.spans, DType::i32, {kAny, kSpanFields});
  c.contiguous("spans", p.spans);
  c.require(p.spans.shape[0] >= 1 && p.spans.shape[0] <= kMostSpans, "spans must have 1 to {} rows, has {}", kMostSpans, p.spans.shape[0]);
}

// Every row that a query sees is one span's, and what spans say of each other is so.
class SpanCheck {
 public:
  SpanCheck(ParamCheck& c, const DenseAttnDecodeParams& p) : c_(c), p_(p), requests_(static_cast<int32_t>(p.seq_lens.shape[0])) {}

  void check() {
    Place place{.request = next_with_rows(0)};
    for (int64_t i = 0; i < p_.spans.shape[0]; ++i) {
      check_place(i, 0, place);
      place = end_of(i);
    }
    c_.require(place.request == requests_, "spans must end at request {}, end at {} and row {}", requests_, place.request, place.row);
    check_parts();
  }

 private:
  struct Place {
    int32_t request = 0, row = 0;
    bool operator==(const Place&) const = default;
    auto operator<=>(const Place&) const = default;
  };
  int32_t field(int64_t i, int64_t f) const { return p_.spans.row<int32_t>(i)[f]; }
  Place begin_of(int64_t i) const { return {field(i, 0), field(i, 1)}; }
  Place end_of(int64_t i) const {
    const Place place{field(i, 2), field(i, 3)};
    c_.require(place.request >= 0 && place.request <= requests_, "spans[{}, 2] must be a request in [0, {}], is {}", i, requests_,
               place.request);
    const int32_t rows = place.request < requests_ ? p_.seq_lens.ptr<int32_t>()[place.request] : 0;
    c_.require(place.row % kCutRows == 0 && place.row >= 0 && (place.row == 0 || place.row < rows),
               "spans[{}, 3] must be a multiple of {} in [0, {}), the rows of request {}, is {}", i, kCutRows, rows, place.request,
               place.row);
    c_.require(place.request == requests_ || has_queries(place.request), "spans[{}, 2] must be a request with queries, is {}", i,
               place.request);
    const Place begin = begin_of(i);
    c_.require(begin < place || (begin == place && begin.request == requests_),
               "spans[{}] must end behind request {} and row {}, ends at {} and {}", i, begin.request, begin.row, place.request, place.row);
    return place;
  }
  bool has_queries(int32_t r) const {
    const int32_t* start = p_.query_start_loc.ptr<int32_t>();
    return start[r + 1] > start[r];
  }
  int32_t next_with_rows(int32_t r) const {
    while (r < requests_ && !has_queries(r)) ++r;
    return r;
  }
  void check_place(int64_t i, int64_t f, const Place& expected) const {
    c_.require(field(i, f) == expected.request && field(i, f + 1) == expected.row,
               "spans[{}] must begin at request {} and row {}, where the one before ends, begins at {} and {}", i, expected.request,
               expected.row, field(i, f), field(i, f + 1));
  }

  void check_parts() const {
    const int64_t count = p_.spans.shape[0];
    int32_t shared = 0, neighbours = 0;
    std::vector<uint8_t> is_neighbours(static_cast<size_t>(count), 0);
    for (int64_t i = 0; i < count; ++i) {
      const Place begin = begin_of(i), end = end_of(i);
      int32_t parts = 0;
      if (end.row > 0 && (begin.request < end.request || begin.row == 0)) {
        int64_t last = i + 1;
        while (end_of(last).request == end.request && end_of(last).row > 0) ++last;
        parts = static_cast<int32_t>(last - i) + 1;
        ++shared;
        if (i % 2 == 0 && parts == 2 && begin == Place{end.request} && end_of(last) == Place{next_with_rows(end.request + 1)}) {
          ++neighbours;
          is_neighbours[static_cast<size_t>(i)] = is_neighbours[static_cast<size_t>(last)] = 1;
        }
      }
      c_.require(field(i, 4) == parts, "spans[{}, 4] must be {}, in how many spans the request is that goes on behind it, is {}", i, parts,
                 field(i, 4));
    }
    for (int64_t i = 0; i < count; ++i) {
      const int32_t own = is_neighbours[static_cast<size_t>(i)];
      c_.require(field(i, 5) == own, "spans[{}, 5] must be {}, is {}", i, own, field(i, 5));
      c_.require(field(i, 6) == shared, "spans[{}, 6] must be {} requests in several spans, is {}", i, shared, field(i, 6));
      c_.require(field(i, 7) == neighbours, "spans[{}, 7] must be {} requests in two neighbours, is {}", i, neighbours, field(i, 7));
    }
  }

  ParamCheck& c_;
  const DenseAttnDecodeParams& p_;
  int32_t requests_;
};

// Every row that a query sees lies in a page of the cache.
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
  if (p.spans.present() && host_visible(p.spans)) SpanCheck(c, p).check();
}

void check(const DenseAttnDecodeParams& p, DeviceId device) {
  ParamCheck c("dense_attn_decode", device);
  c.view("q", p.q, DType::bf16, {kAny, kAny, kAny});
  const int64_t tokens = p.q.shape[0], heads = p.q.shape[1], dim = p.q.shape[2];
  c.require(heads >= 1 && heads <= kMaxHeads, "q must have 1 to {} heads, has {}", kMaxHeads, heads);
  c.require(dim >= 1 && dim <= kMaxDenseHeadDim, "q must have a head dimension of 1 to {}, has {}", kMaxDenseHeadDim, dim);
  check_rows(c, "cache", p.cache, {KvFormat::bf16, KvFormat::fp8_tensor, KvFormat::fp8_ds_mla}, dim);
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
  check_span_views(c, p);
  check_values(c, p);
}

}  // namespace

Op<DenseAttnDecodeParams> make_dense_attn_decode() {
  return {"dense_attn_decode", check, join(cuda::dense_attn_decode(), cpu::dense_attn_decode(), reference::dense_attn_decode())};
}

}  // namespace strata::ops
