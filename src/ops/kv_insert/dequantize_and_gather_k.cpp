#include "backends/cpu/cpu_ops.h"
#include "backends/cuda/cuda_ops.h"
#include "backends/opencl/opencl_ops.h"
#include "backends/reference/reference.h"
#include "ops/factories.h"
#include "ops/kv_insert/row_checks.h"

namespace strata::ops {
namespace {

// Every row of every request lies in `out` and in a page of the cache.
void check_values(ParamCheck& c, const DequantizeAndGatherKParams& p) {
  const TensorView& lens = p.gather_lens.present() ? p.gather_lens : p.seq_lens;
  if (!host_visible(p.seq_lens) || !host_visible(lens) || !host_visible(p.block_table)) return;
  for (int64_t r = 0; r < p.seq_lens.shape[0]; ++r) {
    const int64_t seq_len = p.seq_lens.ptr<int32_t>()[r];
    const int64_t count = lens.ptr<int32_t>()[r];
    c.require(seq_len >= 0, "seq_lens[{}] must not be negative, is {}", r, seq_len);
    c.require(count >= 0 && count <= seq_len, "gather_lens[{}] must be in [0, {}], is {}", r, seq_len, count);
    c.require(count <= p.out.shape[1] - p.offset, "out must have at least {} rows per request for request {} ({} from row {} on), has {}",
              p.offset + count, r, count, p.offset, p.out.shape[1]);
    if (count == 0) continue;
    const int64_t end = (seq_len + p.cache.page_size - 1) / p.cache.page_size;
    c.require(end <= p.block_table.shape[1], "block_table must have at least {} blocks for the {} rows of request {}, has {}", end, seq_len,
              r, p.block_table.shape[1]);
    for (int64_t block = (seq_len - count) / p.cache.page_size; block < end; ++block) {
      const int64_t page = p.block_table.row<int32_t>(r)[block];
      c.require(page >= 0 && page < p.cache.num_pages, "block_table[{}, {}] must be in [0, {}), is {}", r, block, p.cache.num_pages, page);
    }
  }
}

void check(const DequantizeAndGatherKParams& p, DeviceId device) {
  ParamCheck c("dequantize_and_gather_k", device);
  check_rows(
      c, "cache", p.cache,
      {KvFormat::fp8_ds_mla_v4, KvFormat::bf16, KvFormat::fp8_tensor, KvFormat::indexer_fp8, KvFormat::indexer_mxfp4, KvFormat::fp8_ds_mla},
      kAny);
  c.view("seq_lens", p.seq_lens, DType::i32, {kAny});
  const int64_t requests = p.seq_lens.shape[0];
  c.optional("gather_lens", p.gather_lens, DType::i32, {requests});
  c.view("block_table", p.block_table, DType::i32, {requests, kAny});
  c.view("out", p.out, DType::bf16, {requests, kAny, p.cache.row_dim});
  check_output(c, "out", p.out);
  c.require(p.offset >= 0 && p.offset <= p.out.shape[1], "offset must be in [0, {}], is {}", p.out.shape[1], p.offset);
  check_values(c, p);
}

}  // namespace

Op<DequantizeAndGatherKParams> make_dequantize_and_gather_k() {
  return {"dequantize_and_gather_k", check,
          join(cuda::dequantize_and_gather_k(), opencl::dequantize_and_gather_k(), cpu::dequantize_and_gather_k(),
               reference::dequantize_and_gather_k())};
}

}  // namespace strata::ops
