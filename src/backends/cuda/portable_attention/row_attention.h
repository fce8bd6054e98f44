// Attention over rows that are both key and value, with tensor cores of sm_80: the arguments of a launch. The sparse ops and the dense
// decode op differ only in how they name their rows.
#pragma once

#include "backends/cuda/device/divisor.h"
#include "backends/cuda/runtime/cuda_device.h"
#include "strata/dtype.h"
#include "strata/kv_format.h"
#include "strata/op.h"

namespace strata::cuda {

// Rows of one cache. Sparse: `table` has slots, one row of `width` of them per query token. Dense: `table` is the block table.
struct RowScope {
  const uint8_t* data = nullptr;
  int64_t page_stride = 0;
  int64_t scale_offset = 0;  // where in a page the scales of its rows begin
  int64_t row_bytes = 0;     // from one row to the next
  bool is_aligned = false;   // every row is 16-byte aligned, every row's scales 8-byte
  int32_t num_rows = 0;      // sparse: slots, dense: pages; any other entry of the table is skipped
  Divisor page_size{1};
  KvFormat format = KvFormat::bf16;
  float scale = 1.0f;  // fp8_tensor: factor of every value
  const int32_t* table = nullptr;
  int64_t table_batch = 0, table_query = 0;  // strides, in entries
  int32_t width = 0;
  const int32_t* length = nullptr;  // [batch]; null: width
};

// Elements between batch entries, query tokens and heads.
struct TokenStrides {
  int64_t batch = 0, query = 0, head = 0;
};

// Query tokens come in units that share their rows: sparse: one token, dense: the tokens of one request.
struct RowAttention {
  const Bf16* q = nullptr;
  Bf16* out = nullptr;
  float* lse = nullptr;         // null: not written
  float* max_logits = nullptr;  // null: not written
  const float* sink = nullptr;  // [H]; null: none
  TokenStrides q_stride, out_stride, lse_stride, max_stride;
  Divisor queries_per_batch{1};  // token t is query t % queries_per_batch of batch entry t / queries_per_batch
  int32_t num_heads = 0;
  int32_t value_dim = 0;
  float softmax_scale = 0;
  int32_t num_scopes = 1;
  RowScope scopes[2];
  const int32_t* query_start_loc = nullptr;  // dense: [units + 1]; null: sparse
  const int32_t* seq_lens = nullptr;         // dense: [units]
  int32_t causal = 1;                        // dense: 1, or 0: every query of a unit sees all of its rows

  // Host-side bounds, for planning.
  int32_t head_dim = 0;
  int64_t num_tokens = 0;
  int64_t num_units = 0;
  int64_t max_queries = 1;       // of a unit
  int64_t max_rows[2] = {0, 0};  // of a scope
  bool batch_invariant = false;
  int64_t invariant_splits = 16;  // batch_invariant: most splits of a token's rows
};

// Rows of a scope from a cache; the table is the caller's.
RowScope row_scope(const PagedCache& cache);
// Sets is_aligned from the addresses.
void find_alignment(RowScope& s);

// What the tensor-core kernel takes: D = 512 or 576, with at most 512 value dimensions.
Support row_attention_supports(int64_t head_dim, int64_t value_dim);
size_t row_attention_workspace_bytes(const RowAttention& a, const Capabilities& c);
void row_attention_run(const RowAttention& a, const ExecutionContext& context);

}  // namespace strata::cuda
