// Paged cache rows to bf16 on the CPU. Floor: 584 bytes read and 1024 written per V4 row.
#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/simd_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/gather_k.cpp"
#include <hwy/foreach_target.h>

#include "backends/cpu/kv_insert_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strata::cpu {
namespace HWY_NAMESPACE {
namespace {

void LoadRow(const PagedCache& cache, int64_t slot, Bf16* out) { load_cache_row(cache, slot, out); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace strata::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "backends/cpu/simd_implementation.h"

namespace strata::cpu {
namespace {

HWY_EXPORT(LoadRow);

constexpr int64_t kRowsPerTask = 32;

void run(const DequantizeAndGatherKParams& p, const ExecutionContext& context) {
  const auto load_row = HWY_DISPATCH_TABLE(LoadRow)[simd_index(context.device)];
  const int64_t page_size = p.cache.page_size;
  for (int64_t c = 0; c < p.seq_lens.shape[0]; ++c) {
    const int64_t seq_len = p.seq_lens.ptr<int32_t>()[c];
    const int64_t count = p.gather_lens.present() ? p.gather_lens.ptr<int32_t>()[c] : seq_len;
    const int32_t* const pages = p.block_table.row<int32_t>(c);
    parallel_for(context.device, count, kRowsPerTask, [&](int64_t i) {
      const int64_t position = seq_len - count + i;
      load_row(p.cache, pages[position / page_size] * page_size + position % page_size, p.out.row<Bf16>(c, p.offset + i));
    });
  }
}

}  // namespace

std::vector<Implementation<DequantizeAndGatherKParams>> dequantize_and_gather_k() { return simd_implementation(run); }

}  // namespace strata::cpu
#endif  // HWY_ONCE
