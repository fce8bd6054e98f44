// Selects the calls of compress_norm_rope_store for the TMA kernels.
#include <string>

#include "backends/cuda/compressor/entry.cuh"
#include "backends/cuda/compressor/impls.h"
#include "backends/cuda/compressor/sm90/compress_stream.h"

namespace strata::cuda {
namespace {

// With fewer tokens an entry has one CTA (ratio 4), or an SM for each of eight slices (ratio 128), which is faster.
int64_t few_tokens(int32_t ratio) { return ratio == 4 ? 256 : 16; }

Support supports(const CompressNormRopeStoreParams& p, const Capabilities& device) {
  if (const Support on_device = needs_sm90(device); !on_device) return on_device;
  if (p.norm_weight.shape[0] != 512) return Support::no("needs entries of 512 channels");
  if (p.state.page_stride % 16 != 0) return Support::no("needs a state page_stride that is a multiple of 16 bytes");
  return Support::yes();
}
Support prefers(const CompressNormRopeStoreParams& p, const Capabilities&) {
  const int64_t few = few_tokens(p.ratio);
  return p.positions.shape[0] > few ? Support::yes() : Support::no("up to " + std::to_string(few) + " tokens are faster without a ring");
}

void run(const CompressNormRopeStoreParams& p, const ExecutionContext& context) {
  if (p.positions.shape[0] == 0 || p.state.num_pages == 0) return;  // without a state no entry is complete
  if (!state_rows_aligned(p.state)) return smxx::compress(p, context);
  p.ratio == 4 ? compress_4_stream(p, context) : compress_128_stream(p, context);
}

}  // namespace

Implementation<CompressNormRopeStoreParams> compress_stream() {
  return implementation<CompressNormRopeStoreParams>("cuda/sm90", {.supports = supports, .run = run, .prefers = prefers});
}

}  // namespace strata::cuda
