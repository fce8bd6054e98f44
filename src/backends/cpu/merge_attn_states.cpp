// merge_attn_states on the CPU: one task per (token, head), one pass over the values. Bound by reading the partial results: n * Dv *
// size_of(dtype) bytes a task.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/cpu_device.h"
#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/simd_implementation.h"
#include "formats/bf16.h"

namespace strata::cpu {
namespace {

// Values of a tile stay in registers while the partial results are added.
constexpr int64_t kTile = 64;
constexpr float kEmpty = -std::numeric_limits<float>::infinity();

float load(const float* p) { return *p; }
float load(const Bf16* p) { return to_float(*p); }
void store(float* p, float v) { *p = v; }
void store(Bf16* p, float v) { *p = to_bf16(v); }

// lse = +inf marks an empty partial result, like -inf.
float lse_of(const MergeAttnStatesParams& p, int64_t split, int64_t t, int64_t h) {
  const float lse = p.lse.row<float>(split, t)[h * p.lse.stride[2]];
  return std::isinf(lse) ? kEmpty : lse;
}

template <class In, class Out>
void merge_one(const MergeAttnStatesParams& p, int64_t t, int64_t h) {
  const int64_t splits = p.o.shape[0], dim = p.o.shape[3];
  float largest = kEmpty;
  bool empty = true;
  for (int64_t k = 0; k < splits; ++k) {
    const float lse = lse_of(p, k, t, h);
    empty = empty && lse == kEmpty;  // a NaN is not empty: it reaches the output
    largest = std::fmax(largest, lse);
  }
  double sum = 0.0;
  for (int64_t k = 0; k < splits && !empty; ++k) sum += std::exp(double{lse_of(p, k, t, h)} - largest);
  const double sink = p.attn_sink.present() && !empty ? std::exp(double{p.attn_sink.ptr<float>()[h]} - largest) : 0.0;

  Out* out = p.out.row<Out>(t, h);
  for (int64_t d = 0; d < dim; d += kTile) {
    const int64_t count = std::min(kTile, dim - d);
    float tile[kTile] = {};
    for (int64_t k = 0; k < splits; ++k) {
      const float lse = lse_of(p, k, t, h);
      if (lse == kEmpty) continue;  // its values may be anything
      const auto weight = static_cast<float>(std::exp(double{lse} - largest) / (sum + sink));
      const In* o = p.o.row<In>(k, t) + h * p.o.stride[2] + d;
      for (int64_t i = 0; i < count; ++i) tile[i] += weight * load(o + i);
    }
    for (int64_t i = 0; i < count; ++i) store(out + d + i, tile[i]);
  }
  // Last: lse_out may be one of the partial results.
  if (p.lse_out.present()) {
    p.lse_out.row<float>(t)[h * p.lse_out.stride[1]] = empty ? p.empty_lse : static_cast<float>(largest + std::log(sum));
  }
}

void run(const MergeAttnStatesParams& p, const ExecutionContext& context) {
  const bool in_f32 = p.o.dtype == DType::f32, out_f32 = p.out.dtype == DType::f32;
  const auto merge =
      in_f32 ? (out_f32 ? merge_one<float, float> : merge_one<float, Bf16>) : (out_f32 ? merge_one<Bf16, float> : merge_one<Bf16, Bf16>);
  const int64_t heads = p.o.shape[2];
  parallel_for(context.device, p.o.shape[1] * heads, 16, [&](int64_t i) { merge(p, i / heads, i % heads); });
}

}  // namespace

std::vector<Implementation<MergeAttnStatesParams>> merge_attn_states() { return simd_implementation(run); }

}  // namespace strata::cpu
