#include <array>

#include "backends/reference/indexer_vector.h"
#include "backends/reference/reference.h"
#include "formats/hadamard.h"
#include "formats/quantize.h"
#include "formats/rope.h"

namespace strata::reference {
namespace {

// Writes the quantised values of head h. Returns the scale to fold into the head's weight: 1 where the scale is stored separately or there
// is none.
float store_codes(const IndexerQueryParams& p, int64_t t, int64_t h, const IndexerVector& x) {
  const int64_t dim = p.q.shape[2];
  const int64_t head = t * p.q.shape[1] + h;
  std::array<Bf16, ops::kMaxIndexerDim> rounded;
  for (int64_t d = 0; d < dim; ++d) rounded[d] = to_bf16(static_cast<float>(x[d]));
  if (p.q_out.dtype == DType::e4m3) return quantize_indexer_fp8(rounded.data(), dim, p.amax_floor, p.q_out.ptr<E4m3>() + head * dim);
  if (p.q_out.dtype == DType::u8) {
    uint8_t* packed = p.q_out.ptr<uint8_t>() + head * dim / 2;
    E8m0* scales = p.q_scale_out.ptr<E8m0>() + head * dim / kMxfp4Block;
    for (int64_t b = 0; b < dim / kMxfp4Block; ++b) {
      scales[b] = quantize_mxfp4_block(rounded.data() + b * kMxfp4Block, packed + b * kMxfp4Block / 2);
    }
    return 1.0f;
  }
  std::copy_n(rounded.data(), dim, p.q_out.ptr<Bf16>() + head * dim);
  return 1.0f;
}

void run(const IndexerQueryParams& p) {
  const int64_t dim = p.q.shape[2];
  const int64_t rotary = p.cos_sin.present() ? p.cos_sin.shape[1] : 0;
  const int64_t first_rotary = p.rope_slice == RopeSlice::last ? dim - rotary : 0;
  for (int64_t t = 0; t < p.q.shape[0]; ++t) {
    const float* cos_sin = rotary > 0 ? p.cos_sin.row<float>(p.positions.ptr<int64_t>()[t]) : nullptr;
    for (int64_t h = 0; h < p.q.shape[1]; ++h) {
      IndexerVector x;
      const Bf16* q = p.q.row<Bf16>(t, h);
      for (int64_t d = 0; d < dim; ++d) x[d] = to_float(q[d]);
      if (rotary > 0) rotate(x.data() + first_rotary, cos_sin, rotary, p.pairing);
      round_to_bf16(x, dim);
      if (p.hadamard) hadamard(x.data(), dim);  // from bf16 values; store_codes rounds its result to bf16
      const float q_scale = store_codes(p, t, h, x);
      const float weight = p.weights.dtype == DType::bf16 ? to_float(p.weights.row<Bf16>(t)[h]) : p.weights.row<float>(t)[h];
      // fp32 in the order of the specification: the factors are not powers of two.
      p.weights_out.row<float>(t)[h] = ((weight * q_scale) * p.softmax_scale) * p.head_scale;
    }
  }
}

}  // namespace

std::vector<Implementation<IndexerQueryParams>> indexer_query() { return always(run); }

}  // namespace strata::reference
