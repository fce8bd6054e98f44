#include "checkpoint/other_quantisers.h"

#include <algorithm>
#include <array>

#include "core/check.h"

namespace strata {
namespace {

struct Companion {
  std::string_view suffix;
  std::string_view what;  // the matrix is
};
constexpr std::array<Companion, 12> kCompanions{{
    {".qweight", "packed by AWQ or GPTQ"},
    {".weight_packed", "packed by compressed-tensors (4-bit or 8-bit integers, NVFP4, MXFP4)"},
    {".weight_scale_2", "NVFP4, with scales of two levels"},
    {".weight_global_scale", "NVFP4, with scales of two levels"},
    {".weight_zero_point", "quantised with zero points"},
    {".weight.absmax", "4-bit values of bitsandbytes"},
    {".SCB", "8-bit integers of bitsandbytes"},
    {".W_q", "packed by HQQ"},
    {".pre_quant_scale", "to be multiplied by activations that AWQ has scaled"},
    // vLLM quantises activations by these, one number for all tokens. Activations here are quantised by their own values.
    {".input_scale", "quantised for activations with static scales"},
    {".activation_scale", "quantised for activations with static scales"},
    {".input_global_scale", "quantised for activations with static scales"},
}};

}  // namespace

void refuse_other_quantisers(const Checkpoint& checkpoint, int64_t layer, const std::string& name) {
  for (const Companion& companion : kCompanions) {
    const StoredTensor* found = checkpoint.find(layer, name + std::string(companion.suffix));
    if (found == nullptr) continue;
    fail(ErrorCode::invalid_file,
         "{}: tensor {}: expected none, as attention weights are BF16, F16, F32, or F8_E4M3 with scales and dynamic activations; it says "
         "that "
         "{} is {}",
         checkpoint.directory().string(), found->name, name, companion.what);
  }
}

bool is_of_other_quantiser(std::string_view name) {
  return std::any_of(kCompanions.begin(), kCompanions.end(), [&](const Companion& companion) { return name.ends_with(companion.suffix); });
}

std::string_view usual_content(StoredDType dtype) {
  if (dtype == StoredDType::i8) return " (8-bit integer weights, or packed 4-bit values)";
  if (dtype == StoredDType::u8) return " (packed 4-bit values, such as NVFP4 and MXFP4)";
  if (dtype == StoredDType::i32) return " (packed integer weights)";
  if (dtype == StoredDType::e4m3fnuz) return " (AMD's FP8, whose values are half of F8_E4M3's)";
  return "";
}

}  // namespace strata
