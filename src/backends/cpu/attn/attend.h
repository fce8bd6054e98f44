// Multi-query sparse attention on the CPU: every head of one query token attends to the same list of key rows, and
// a key row is its own value (the first value_dim dims of it).
//
//   l[h,s] = softmax_scale * <q[h], k[s]>      m[h] = max_s l[h,s]      Z[h] = sum_s exp(l[h,s] - m[h])
//   out[h] = sum_s exp(l[h,s] - m[h]) v[s] / (Z[h] + exp(sink[h] - m[h]))      lse[h] = m[h] + ln Z[h]
//
// Numerics: products of bf16 operands, fp32 accumulation. Z sums unrounded fp32 probabilities, while the value product of the AMX and
// AVX512_BF16 paths uses probabilities rounded to bf16. These two paths treat bf16 subnormals as zero, because the instructions flush them.
// A query's key list is cut into blocks by its length alone, and blocks are always combined in order. So a result depends neither on the
// number of threads nor on the rest of the batch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "strata/kv_format.h"

namespace strata::cpu {

// Fastest first. The caller selects one that the machine can run.
enum class AttendPath { amx, avx512_bf16, avx512, avx2, portable };

// Where rows live. Row i of a paged source: base + (i / page_size) * page_stride + (i % page_size) * row_stride.
struct RowSource {
  const std::byte* base = nullptr;
  KvFormat format = KvFormat::bf16;  // one of bf16, fp8_tensor, fp8_ds_mla_v4, fp8_ds_mla
  std::int64_t page_size = 0;        // rows a page; 0: one flat array
  std::int64_t page_stride = 0;      // bytes between pages
  std::int64_t row_stride = 0;       // bytes between rows of a page (ignored by fp8_ds_mla_v4, whose page layout fixes it)
  std::int64_t num_rows = 0;         // rows of the whole source: an index >= num_rows is skipped
  float scale = 1.0f;                // fp8_tensor only
};

// The rows of one source that a query attends to. Entry e names row indices[e], or row e without an index list. With a block table that row
// number is logical and is translated page by page. An entry that is negative, out of range or past the table's end is skipped before any
// memory of its row is touched.
struct KeyList {
  const std::int32_t* indices = nullptr;      // [count] or null
  std::int64_t count = 0;                     // entries, already clipped to the query's length
  const std::int32_t* block_table = nullptr;  // [block_table_len] or null
  std::int64_t block_table_len = 0;
};

inline constexpr int kMaxKeyScopes = 2;

// Shared by all queries of a call. head_dim and value_dim are multiples of 64, value_dim <= head_dim <= 640 (fp8_ds_mla_v4: 512/512;
// fp8_ds_mla: head_dim 576).
struct AttendShape {
  int num_heads = 0;  // 1..128 (any number works, scratch grows with it)
  int head_dim = 512;
  int value_dim = 512;
  float softmax_scale = 1.0f;
  int num_scopes = 1;  // sources in use; one softmax runs over all of them
  RowSource source[kMaxKeyScopes] = {};
};

// One query token.
struct AttendQuery {
  const std::uint16_t* q = nullptr;  // bf16 [num_heads, head_dim], heads q_head_stride elements apart
  std::int64_t q_head_stride = 0;
  KeyList keys[kMaxKeyScopes] = {};
  const float* sink = nullptr;   // [num_heads] or null
  std::uint16_t* out = nullptr;  // bf16 [num_heads, value_dim], heads out_head_stride elements apart
  std::int64_t out_head_stride = 0;
  float* lse = nullptr;         // [num_heads] at lse_stride or null; +inf for an empty key list
  float* max_logits = nullptr;  // [num_heads] at lse_stride or null; -inf for an empty key list
  std::int64_t lse_stride = 1;
};

// Block size of a key list of num_entries: a function of the length alone.
std::int64_t attend_block_entries(std::int64_t num_entries);
std::int64_t attend_num_blocks(std::int64_t num_entries);

// Unnormalised result of a run of blocks for a range of heads: maxima (in units of log2), sums and fp32 accumulators.
//   floats: max2[Hp], sum[Hp], acc[Hp][value_dim], Hp = num_heads rounded up to 16; 64-byte aligned.
std::size_t attend_partial_bytes(int num_heads, int value_dim);

// Scratch one thread needs for `num_heads` heads of one query (64-byte aligned).
std::size_t attend_scratch_bytes(AttendPath path, const AttendShape& shape, int num_heads);

struct HeadRange {
  int begin = 0;
  int count = 0;
};

// One query token, heads `heads`, all of its keys: writes out, lse, max_logits of those heads.
void attend(AttendPath path, const AttendShape& shape, const AttendQuery& query, HeadRange heads, std::byte* scratch);

// The same over blocks [block_begin, block_end) only, leaving an unnormalised partial result ...
void attend_partial(AttendPath path, const AttendShape& shape, const AttendQuery& query, HeadRange heads, std::int64_t block_begin,
                    std::int64_t block_end, std::byte* scratch, float* partial);
// ... which is combined with the partial result of the blocks before it ...
void combine_partial(AttendPath path, int num_heads, int value_dim, float* into, const float* from);
// ... and finished: sink, normalisation, rounding, lse. `partial` belongs to heads `heads`.
void finish_partial(AttendPath path, const AttendShape& shape, const AttendQuery& query, HeadRange heads, const float* partial);

// A non-owning reference to a callable that returns query i; the callable must be thread-safe.
class QueryAt {
 public:
  template <class F>
  QueryAt(const F& f)  // NOLINT: implicit by intent, the callable outlives the call it is passed to
      : object_(&f), call_([](const void* o, std::int64_t i) { return (*static_cast<const F*>(o))(i); }) {}
  AttendQuery operator()(std::int64_t i) const { return call_(object_, i); }

 private:
  const void* object_;
  AttendQuery (*call_)(const void*, std::int64_t);
};

struct AttendBatch {
  AttendPath path = AttendPath::portable;
  AttendShape shape;
  std::int64_t num_queries = 0;
  int num_threads = 1;
};

// Workspace of attend_batch (64-byte aligned).
std::size_t attend_batch_workspace_bytes(const AttendBatch& batch);
void attend_batch(const AttendBatch& batch, const QueryAt& query_at, std::byte* workspace);

}  // namespace strata::cpu
