#include "backends/reference/reference.h"
#include "formats/quantize.h"
#include "formats/rope.h"

namespace strata::reference {
namespace {

// Dimensions [begin, begin + 128) of one head after the inverse rotation, fp32. A block may contain the border of the rotary dimensions.
// Pairs never straddle a block, because both begin at even dimensions.
void rotated_block(const Bf16* o, int64_t begin, int64_t dim, int64_t rotary, const float* cos_sin, float* block) {
  for (int64_t i = 0; i < kActivationBlock; i += 2) {
    const double first = to_float(o[begin + i]), second = to_float(o[begin + i + 1]);
    const int64_t lane = begin + i - (dim - rotary);
    const RopePair<double> turned =
        lane < 0 ? RopePair<double>{first, second} : rotate_pair(first, second, cos_sin, lane / 2, rotary, true);
    block[i] = static_cast<float>(turned.first);
    block[i + 1] = static_cast<float>(turned.second);
  }
}

void run(const InverseRopeQuantParams& p) {
  const int64_t heads = p.o.shape[1], dim = p.o.shape[2], rotary = p.cos_sin.shape[1];
  const int64_t blocks = dim / kActivationBlock;
  for (int64_t t = 0; t < p.o.shape[0]; ++t) {
    const float* cos_sin = p.cos_sin.row<float>(p.positions.ptr<int64_t>()[t]);
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t b = 0; b < blocks; ++b) {
        float block[kActivationBlock];
        rotated_block(p.o.row<Bf16>(t, h), b * kActivationBlock, dim, rotary, cos_sin, block);
        // Groups hold whole heads one after the other, so [G, hpg * D] is [H, D] in memory.
        const int64_t index = (t * heads + h) * blocks + b;
        p.scale.ptr<float>()[index] = quantize_activation(block, kActivationBlock, true, p.out.ptr<E4m3>() + index * kActivationBlock);
      }
    }
  }
}

}  // namespace

std::vector<Implementation<InverseRopeQuantParams>> inverse_rope_quant() { return always(run); }

}  // namespace strata::reference
