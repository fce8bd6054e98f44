// Writes a step's block tables from their packed segments, one CTA per segment. Floor: 8 bytes an entry; steps are small, so the launch
// dominates.
#include "backends/cuda/indices/impls.h"
#include "backends/cuda/runtime/check.h"

namespace strata::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void scatter_block_tables_kernel(const int32_t* __restrict__ entries, const int32_t* __restrict__ segments,
                                            int32_t* __restrict__ block_table, int64_t table_stride) {
  const int32_t* segment = segments + int64_t{4} * blockIdx.x;
  const int32_t row = segment[0], column = segment[1], first = segment[2], count = segment[3];
  const int32_t* from = entries + first;
  int32_t* to = block_table + row * table_stride + column;
#pragma unroll 8
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kThreads) to[i] = from[i];
}

void run(const ScatterBlockTablesParams& p, const ExecutionContext& context) {
  const int64_t num_segments = p.segments.shape[0];
  if (num_segments == 0) return;
  scatter_block_tables_kernel<<<static_cast<uint32_t>(num_segments), kThreads, 0, native(context.stream)>>>(
      p.entries.ptr<int32_t>(), p.segments.ptr<int32_t>(), p.block_table.ptr<int32_t>(), p.block_table.stride[0]);
  check_launch("scatter_block_tables");
}

}  // namespace

Implementation<ScatterBlockTablesParams> scatter_block_tables_smxx() { return smxx_implementation<ScatterBlockTablesParams>({.run = run}); }

}  // namespace strata::cuda
