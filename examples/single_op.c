// One op on its own through the C API, in C99: sparse attention of decode over FP8 pages in vLLM's and FlashMLA's layout, with a sink and
// the LSE. The C++ twin is single_op.cpp.
//
// A call has four parts: params that say where everything is, the bytes of workspace that they need, the call, and, where wanted, the name
// of the implementation that is selected. Every function returns a status. Everything is the caller's memory; on a GPU the same calls go to
// a stream (strata_execution), and memory is the device's (strata_device_allocate).
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "strata/strata.h"

enum { TOKENS = 3, HEADS = 16, DIM = 512, ROWS = 200, TOPK = 40, PAGE_SIZE = 64, PAGES = (ROWS + PAGE_SIZE - 1) / PAGE_SIZE };

// Ends the program with the text of the error, unless the call has succeeded.
static void check(strata_status status, const char* call) {
  if (status == STRATA_OK) return;
  fprintf(stderr, "%s: %s: %s\n", call, strata_status_name(status), strata_last_error());
  exit(1);
}
#define CHECK(call) check((call), #call)

// A bf16 value is the upper half of an f32: rounded to the nearest, ties to even.
static uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
static float from_bf16(uint16_t value) {
  const uint32_t bits = (uint32_t)value << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

// The same numbers on every machine.
static uint32_t random_bits(void) {
  static uint32_t state = 1;
  state ^= state << 13;
  state ^= state >> 17;
  state ^= state << 5;
  return state;
}
// The sum of 12 uniform numbers: close to a normal distribution.
static float random_normal(void) {
  float sum = -6.0f;
  for (int i = 0; i < 12; ++i) sum += (float)(random_bits() >> 8) / 16777216.0f;
  return sum;
}

// A contiguous view of the caller's memory. On a CPU the memory may come from anywhere.
static strata_tensor_view view_of(void* data, strata_dtype dtype, int32_t rank, const int64_t* shape) {
  const strata_device_id cpu = {STRATA_CPU, 0};
  strata_tensor_view view;
  CHECK(strata_tensor_view_contiguous(data, dtype, cpu, rank, shape, &view));
  return view;
}

// Device memory for `bytes` bytes of workspace; null for 0.
static void* workspace_of(strata_device device, int64_t bytes) {
  void* data = NULL;
  if (bytes > 0) CHECK(strata_device_allocate(device, bytes, &data));
  return data;
}

static uint16_t keys[ROWS][DIM], rows[ROWS][DIM], q[TOKENS][HEADS][DIM], out[TOKENS][HEADS][DIM];
static int64_t slots[ROWS];
static int32_t indices[TOKENS][TOPK], lengths[TOKENS], table[PAGES], seq_len = ROWS;
static float sink[HEADS], lse[TOKENS][HEADS];

// The keys into the pages: token i in slot i.
static void insert_keys(strata_device device, const strata_paged_cache* cache) {
  const int64_t shape[] = {ROWS, DIM};
  strata_quantize_and_insert_k_params params = strata_quantize_and_insert_k_params_default();
  strata_execution execution = strata_execution_default();
  for (int i = 0; i < ROWS; ++i) {
    slots[i] = i;
    for (int d = 0; d < DIM; ++d) keys[i][d] = to_bf16(random_normal());
  }
  params.k = view_of(keys, STRATA_BF16, 2, shape);
  params.slot_mapping = view_of(slots, STRATA_I64, 1, shape);
  params.cache = cache;
  CHECK(strata_quantize_and_insert_k_workspace_bytes(device, &params, &execution.workspace_bytes));
  execution.workspace = workspace_of(device, execution.workspace_bytes);
  CHECK(strata_quantize_and_insert_k(device, &params, &execution));
  CHECK(strata_device_deallocate(device, execution.workspace));
}

// The rows as they are in the cache.
static void read_rows(strata_device device, const strata_paged_cache* cache) {
  const int64_t one[] = {1}, table_shape[] = {1, PAGES}, out_shape[] = {1, ROWS, DIM};
  strata_dequantize_and_gather_k_params params = strata_dequantize_and_gather_k_params_default();
  strata_execution execution = strata_execution_default();
  for (int page = 0; page < PAGES; ++page) table[page] = page;
  params.cache = cache;
  params.seq_lens = view_of(&seq_len, STRATA_I32, 1, one);
  params.block_table = view_of(table, STRATA_I32, 2, table_shape);
  params.out = view_of(rows, STRATA_BF16, 3, out_shape);
  CHECK(strata_dequantize_and_gather_k_workspace_bytes(device, &params, &execution.workspace_bytes));
  execution.workspace = workspace_of(device, execution.workspace_bytes);
  CHECK(strata_dequantize_and_gather_k(device, &params, &execution));
  CHECK(strata_device_deallocate(device, execution.workspace));
}

// Queries, and the slots that each attends to. -1 is no slot; slots after the length are ignored.
static void attend(strata_device device, const strata_paged_cache* cache, float scale) {
  const int64_t q_shape[] = {TOKENS, 1, HEADS, DIM}, index_shape[] = {TOKENS, 1, TOPK}, lse_shape[] = {TOKENS, HEADS, 1};
  const int64_t tokens[] = {TOKENS}, heads[] = {HEADS};
  strata_sparse_attn_decode_params params = strata_sparse_attn_decode_params_default();
  strata_execution execution = strata_execution_default();
  const char* implementation;
  for (int t = 0; t < TOKENS; ++t) {
    lengths[t] = TOPK - 7 * t;
    for (int h = 0; h < HEADS; ++h) {
      for (int d = 0; d < DIM; ++d) q[t][h][d] = to_bf16(random_normal());
    }
    for (int i = 0; i < TOPK; ++i) indices[t][i] = (t * TOPK + i) % 9 == 0 ? -1 : (int32_t)(random_bits() % ROWS);
  }
  for (int h = 0; h < HEADS; ++h) sink[h] = 0.1f * (float)h;
  params.q = view_of(q, STRATA_BF16, 4, q_shape);
  params.cache = cache;
  params.indices = view_of(indices, STRATA_I32, 3, index_shape);
  params.topk_length = view_of(lengths, STRATA_I32, 1, tokens);
  params.attn_sink = view_of(sink, STRATA_F32, 1, heads);
  params.softmax_scale = scale;
  params.out = view_of(out, STRATA_BF16, 4, q_shape);
  params.lse = view_of(lse, STRATA_F32, 3, lse_shape);
  CHECK(strata_sparse_attn_decode_workspace_bytes(device, &params, &execution.workspace_bytes));
  execution.workspace = workspace_of(device, execution.workspace_bytes);
  CHECK(strata_sparse_attn_decode(device, &params, &execution));
  CHECK(strata_device_deallocate(device, execution.workspace));
  CHECK(strata_sparse_attn_decode_implementation(device, &params, &implementation));
  printf("sparse_attn_decode by %s\n", implementation);
}

// The softmax by hand, from the rows as they are in the cache. 0: the results agree.
static int compare(float scale) {
  double worst_out = 0, worst_lse = 0;
  int wrong = 0;  // of a NaN every comparison is false
  for (int t = 0; t < TOKENS; ++t) {
    for (int h = 0; h < HEADS; ++h) {
      double sum = 0, values[DIM] = {0};
      for (int i = 0; i < lengths[t]; ++i) {
        const int32_t slot = indices[t][i];
        double logit = 0, weight;
        if (slot < 0) continue;
        for (int d = 0; d < DIM; ++d) logit += (double)from_bf16(q[t][h][d]) * (double)from_bf16(rows[slot][d]);
        weight = exp(logit * (double)scale);
        sum += weight;
        for (int d = 0; d < DIM; ++d) values[d] += weight * (double)from_bf16(rows[slot][d]);
      }
      const double lse_error = fabs(log(sum) - (double)lse[t][h]);
      worst_lse = fmax(worst_lse, lse_error);
      wrong += !(lse_error < 1e-4);
      sum += exp((double)sink[h]);  // takes its share of the softmax, not of the LSE
      for (int d = 0; d < DIM; ++d) {
        const double error = fabs(values[d] / sum - (double)from_bf16(out[t][h][d]));
        worst_out = fmax(worst_out, error);
        wrong += !(error < 1e-2);
      }
    }
  }
  printf("against the softmax by hand: output within %.2g, LSE within %.2g\n", worst_out, worst_lse);
  return wrong == 0 ? 0 : 1;
}

int main(void) {
  const float scale = 1.0f / sqrtf((float)DIM);
  strata_paged_cache cache = strata_paged_cache_default();
  strata_device device;
  int64_t payload;
  CHECK(strata_device_open("cpu", NULL, &device));

  // Pages whose stride is a multiple of 576 bytes.
  cache.format = STRATA_KV_FP8_DS_MLA_V4;
  cache.row_dim = DIM;
  cache.page_size = PAGE_SIZE;
  cache.num_pages = PAGES;
  CHECK(strata_page_payload_bytes(cache.format, cache.row_dim, cache.page_size, &payload));
  cache.page_stride = (payload + 575) / 576 * 576;
  CHECK(strata_device_get_id(device, &cache.device));
  CHECK(strata_device_allocate(device, cache.num_pages * cache.page_stride, &cache.data));

  insert_keys(device, &cache);
  attend(device, &cache, scale);
  read_rows(device, &cache);
  const int result = compare(scale);

  CHECK(strata_device_deallocate(device, cache.data));
  CHECK(strata_device_close(device));
  return result;
}
