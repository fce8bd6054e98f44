// What the two linear ops' cases share: weights in every format, and packing for the implementation under test.
#pragma once

#include <memory>
#include <string>

#include "testkit/harness/draw.h"
#include "testkit/harness/typed_case.h"

namespace strata::testkit {

enum class WeightFormat : uint8_t {
  bf16,
  e4m3_ue8m0,  // power-of-two block scales (V4)
  e4m3_f32,    // any block scales (V3)
};

struct WeightShape {
  int64_t n = 0;
  int64_t k = 0;
  int64_t groups = 1;
  WeightFormat format = WeightFormat::bf16;
  int64_t block_n = 128;
  int64_t block_k = 128;
  bool shares_device = false;
};
const LinearWeight* make_weight(Inputs& in, const WeightShape& shape);
double weight_bytes(const WeightShape& shape);
// A weight of random size with at most `elements` elements and `groups` groups. multiple_n, multiple_k: n and k are multiples, as FP8
// weights require.
WeightShape random_weight(Draw& draw, int64_t groups, int64_t elements, int64_t multiple_n = 1, int64_t multiple_k = 1);
// The scales of activations that are given quantised: f32 of this shape, powers of two for `ue8m0`.
TensorView activation_scales(Inputs& in, const Shape& shape, bool ue8m0, Padding padding = {});

// Sums of products of operands that are exact in bf16: only the order of an fp32 accumulation and one rounding are free. Operands whose
// scales are no powers of two may be rounded to bf16 after dequantisation (V4 5.2, MLA 3.1); of few results one outlier decides the whole.
Tolerance product_tolerance(bool exact_operands, DType out, int64_t numel, const Inputs& in);
// Of products of e4m3 values by e4m3 values on in's device: as above, but the FP8 tensor cores of a GPU align the products of a sum to its
// largest and keep 13 bits below it (V4 5.2: "inner sums in fp32 (tensor core) or exact").
Tolerance fp8_product_tolerance(bool exact_operands, DType out, int64_t numel, const Inputs& in);

// Whether a case gives implementations their own layout of the weight.
enum class Packing : uint8_t {
  never,      // row-major as it comes from the file
  required,   // packed; skipped for implementations without a packing
  preferred,  // as a layer does it: packed where the implementation has a packing
};

// The packed copy of a weight for one implementation; null when it has no packing that takes the weight.
const LinearWeight* pack_weight(const LinearWeight& weight, const std::string& implementation, const OpSet& ops, Inputs& in);

// The suffix of a random case's name, after the product's size.
std::string suffix_of(const WeightShape& weight, Packing packing, Padding x, Padding y);

template <class Params>
std::function<std::string(Params&, const std::string&, const OpSet&, Inputs&)> packer(Packing packing) {
  if (packing == Packing::never) return nullptr;
  return [packing](Params& params, const std::string& implementation, const OpSet& ops, Inputs& in) -> std::string {
    if (const LinearWeight* packed = pack_weight(*params.weight, implementation, ops, in)) {
      params.weight = packed;
      return "";
    }
    return packing == Packing::required ? "has no packing for this weight" : "";
  };
}

// The bf16 product n x n x n that stands for what the machine can multiply.
std::unique_ptr<AnyCase> linear_ceiling_case(int64_t n);

}  // namespace strata::testkit
