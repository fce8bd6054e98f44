#include <algorithm>
#include <vector>

#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/kv_insert/row_checks.h"
#include "ops/linear/alignment_checks.h"
#include "ops/sparse_attention/attention_checks.h"
#include "ops/sparse_attention/fusions.h"

namespace strata::ops {
namespace {

// A cache with the index rows that address it.
struct Scope {
  std::string_view cache_name, indices_name, length_name;
  const PagedCache& cache;
  const TensorView& indices;
  const TensorView& topk_length;
};

void check_scope_views(ParamCheck& c, const Scope& s, const TensorView& q) {
  c.cache(s.cache_name, s.cache, {KvFormat::fp8_ds_mla_v4, KvFormat::fp8_ds_mla, KvFormat::bf16, KvFormat::fp8_tensor}, q.shape[3]);
  c.require(s.cache.format != KvFormat::fp8_ds_mla_v4 || q.shape[3] == 512, "{} of format {} must have row_dim 512, has {}", s.cache_name,
            to_string(s.cache.format), s.cache.row_dim);
  c.require(s.cache.format != KvFormat::fp8_ds_mla || q.shape[3] == 576, "{} of format {} must have row_dim 576, has {}", s.cache_name,
            to_string(s.cache.format), s.cache.row_dim);
  if (s.cache.format == KvFormat::fp8_tensor) {
    check_positive(c, s.cache_name == "cache" ? "cache.scale" : "extra_cache.scale", s.cache.scale);
  }
  c.view(s.indices_name, s.indices, DType::i32, {q.shape[0], q.shape[1], kAny});
  c.optional(s.length_name, s.topk_length, DType::i32, {q.shape[0]});
}

// Every entry that will be looked at is -1 or a row of the cache. What lies behind the length may be anything.
void check_scope_values(ParamCheck& c, const Scope& s) {
  if (s.topk_length.present() && !host_visible(s.topk_length)) return;
  const int64_t width = s.indices.shape[2];
  for (int64_t b = 0; b < s.indices.shape[0]; ++b) {
    const int64_t length = s.topk_length.present() ? s.topk_length.ptr<int32_t>()[b] : width;
    c.require(length >= 0 && length <= width, "{}[{}] must be in [0, {}], is {}", s.length_name, b, width, length);
    if (!host_visible(s.indices)) continue;
    for (int64_t i = 0; i < s.indices.shape[1]; ++i) {
      const int32_t* slots = s.indices.row<int32_t>(b, i);
      for (int64_t j = 0; j < length; ++j) {
        c.require(slots[j] >= -1 && slots[j] < s.cache.num_slots(), "{}[{}, {}, {}] must be -1 or in [0, {}), is {}", s.indices_name, b, i,
                  j, s.cache.num_slots(), slots[j]);
      }
    }
  }
}

void check_schedule_views(ParamCheck& c, const SparseAttnDecodeParams& p) {
  if (!p.pieces.present()) {
    c.require(!p.merges.present(), "merges must be absent without pieces, is {}", p.merges);
    return;
  }
  const int64_t tokens = p.q.shape[0] * p.q.shape[1];
  c.view("pieces", p.pieces, DType::i32, {kAny, 8});
  c.contiguous("pieces", p.pieces);
  c.require(p.pieces.shape[0] >= tokens && p.pieces.shape[0] <= kMaxIndices / 4, "pieces must have {} to 2^29 rows, has {}", tokens,
            p.pieces.shape[0]);
  if (!p.merges.present()) return;
  c.view("merges", p.merges, DType::i32, {kAny, 4});
  c.contiguous("merges", p.merges);
}

struct Piece {
  int32_t token, part, first_row, end_row, main, all;
};

// Each row of each token is in one piece; the parts of each token that is cut are in one merge, and no other token's.
void check_schedule_values(ParamCheck& c, const SparseAttnDecodeParams& p) {
  const auto visible = [](const TensorView& v) { return !v.present() || host_visible(v); };
  if (!host_visible(p.pieces) || !visible(p.merges) || !visible(p.topk_length) || !visible(p.extra_topk_length)) return;
  const int64_t queries = p.q.shape[1], tokens = p.q.shape[0] * queries, room = 2 * (p.pieces.shape[0] - tokens);
  const auto length = [&](const TensorView& lengths, const TensorView& indices, int64_t token) {
    return !indices.present() ? 0 : lengths.present() ? int64_t{lengths.ptr<int32_t>()[token / queries]} : indices.shape[2];
  };
  const auto main_of = [&](int64_t token) { return length(p.topk_length, p.indices, token); };
  const auto all_of = [&](int64_t token) { return main_of(token) + length(p.extra_topk_length, p.extra_indices, token); };
  std::vector<Piece> pieces;
  for (int64_t i = 0; i < p.pieces.shape[0]; ++i) {
    const int32_t* const row = p.pieces.row<int32_t>(i);
    const Piece piece{row[0], row[1], row[2], row[3], row[4], row[5]};
    if (piece.token == -1) break;
    c.require(piece.token >= 0 && piece.token < tokens, "pieces[{}] must have a token in [0, {}), or -1, has {}", i, tokens, piece.token);
    const int64_t main = main_of(piece.token), all = all_of(piece.token);
    c.require(piece.main == main && piece.all == all, "pieces[{}] must have {} and {} entries, as token {} has, has {} and {}", i, main,
              all, piece.token, piece.main, piece.all);
    c.require(piece.first_row % 64 == 0, "pieces[{}] must have a first row that is a multiple of 64, has {}", i, piece.first_row);
    pieces.push_back(piece);
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return a.token != b.token ? a.token < b.token : a.first_row != b.first_row ? a.first_row < b.first_row : a.end_row < b.end_row;
  });
  std::vector<int32_t> first_part(static_cast<size_t>(tokens), -1), count(static_cast<size_t>(tokens), 0);
  std::vector<bool> taken(static_cast<size_t>(room), false);
  for (int64_t i = 0; p.merges.present() && i < p.merges.shape[0]; ++i) {
    const int32_t* const row = p.merges.row<int32_t>(i);
    if (row[0] == -1) break;
    c.require(row[0] >= 0 && row[0] < tokens, "merges[{}] must have a token in [0, {}), or -1, has {}", i, tokens, row[0]);
    const auto token = static_cast<size_t>(row[0]);
    c.require(first_part[token] < 0, "merges[{}] must have a token that no other row has, has {}", i, token);
    c.require(row[2] >= 2 && row[1] >= 0 && int64_t{row[1]} + row[2] <= room,
              "merges[{}] must have 2 or more parts in [0, {}), has {} from {} on", i, room, row[2], row[1]);
    first_part[token] = row[1], count[token] = row[2];
    for (int32_t part = row[1]; part < row[1] + row[2]; ++part) {
      c.require(!taken[static_cast<size_t>(part)], "merges[{}] must have parts that no other row has, has {}", i, part);
      taken[static_cast<size_t>(part)] = true;
    }
  }
  auto piece = pieces.begin();
  for (int64_t token = 0; token < tokens; ++token) {
    const int32_t first = first_part[static_cast<size_t>(token)], parts = std::max(count[static_cast<size_t>(token)], 1);
    int32_t row = 0, i = 0;
    for (; piece != pieces.end() && piece->token == token; ++piece, ++i) {
      c.require(piece->first_row == row && piece->end_row >= row, "pieces must have row {} of token {} once, have one of rows {} to {}",
                row, token, piece->first_row, piece->end_row);
      c.require(piece->part == (first < 0 ? -1 : first + i), "pieces must have part {} behind row {} of token {}, have {}",
                first < 0 ? -1 : first + i, row, token, piece->part);
      row = piece->end_row;
    }
    const int64_t all = all_of(token);
    c.require(i == parts && row == all, "pieces must have {} of token {} up to row {}, have {} up to row {}", parts, token, all, i, row);
  }
}

template <class Rotation>
void check_rotation(ParamCheck& c, const Rotation& rotation, int64_t tokens, int64_t dim) {
  check_rotary_views(c, rotation.positions, rotation.cos_sin, tokens, dim);
  c.values_in("positions", rotation.positions, 0, rotation.cos_sin.shape[0], false);
}

void check(const SparseAttnDecodeParams& p, DeviceId device) {
  ParamCheck c("sparse_attn_decode", device);
  c.view("q", p.q, DType::bf16, {kAny, kAny, kAny, kAny});
  const int64_t batch = p.q.shape[0], queries = p.q.shape[1], heads = p.q.shape[2];
  check_head_shape(c, heads, p.q.shape[3]);
  const Scope main{"cache", "indices", "topk_length", p.cache, p.indices, p.topk_length};
  const Scope extra{"extra_cache", "extra_indices", "extra_topk_length", p.extra_cache, p.extra_indices, p.extra_topk_length};
  check_scope_views(c, main, p.q);
  if (p.extra_cache.present()) {
    check_scope_views(c, extra, p.q);
  } else {
    c.require(!p.extra_indices.present(), "extra_indices must be absent without extra_cache, is {}", p.extra_indices);
    c.require(!p.extra_topk_length.present(), "extra_topk_length must be absent without extra_cache, is {}", p.extra_topk_length);
  }
  check_sink(c, p.attn_sink, heads);
  check_positive(c, "softmax_scale", p.softmax_scale);
  check_schedule_views(c, p);
  c.view("out", p.out, DType::bf16, {batch, queries, heads, kAny});
  check_value_dim(c, p.out.shape[3], p.q.shape[3]);
  check_output(c, "out", p.out);
  check_row_alignment(c, "q", p.q);
  check_row_alignment(c, "out", p.out);
  check_page_alignment(c, "cache", p.cache);
  check_page_alignment(c, "extra_cache", p.extra_cache);
  if (p.query_prologue) {
    ParamCheck prologue("sparse_attn_decode: query_prologue", device);
    check_eps(prologue, p.query_prologue->eps);
    check_rotation(prologue, *p.query_prologue, batch * queries, p.q.shape[3]);
  }
  if (p.out_epilogue) {
    ParamCheck epilogue("sparse_attn_decode: out_epilogue", device);
    check_rotation(epilogue, *p.out_epilogue, batch * queries, p.out.shape[3]);
  }
  c.optional("lse", p.lse, DType::f32, {batch, heads, queries});
  check_output(c, "lse", p.lse);
  c.optional("max_logits", p.max_logits, DType::f32, {batch, heads, queries});
  check_output(c, "max_logits", p.max_logits);
  check_scope_values(c, main);
  if (p.extra_cache.present()) check_scope_values(c, extra);
  if (p.pieces.present()) check_schedule_values(c, p);
}

}  // namespace

Op<SparseAttnDecodeParams> make_sparse_attn_decode() {
  return {"sparse_attn_decode", check, join(cuda::sparse_attn_decode(), cpu::sparse_attn_decode(), reference::sparse_attn_decode()),
          with_decode_fusions};
}

}  // namespace strata::ops
