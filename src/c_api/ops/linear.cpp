#include "strata/c/ops/linear.h"

#include "c_api/op_call.h"
#include "ops/linear/linear_checks.h"

namespace strata::c_api {

static_assert(STRATA_ACTIVATION_BF16 == static_cast<int32_t>(ActivationFormat::bf16) &&
              STRATA_ACTIVATION_FP8_UE8M0 == static_cast<int32_t>(ActivationFormat::fp8_ue8m0) &&
              STRATA_ACTIVATION_FP8_F32 == static_cast<int32_t>(ActivationFormat::fp8_f32));

STRATA_STRUCT(strata_linear_params, 288);
STRATA_STRUCT(strata_grouped_linear_params, 376);

LinearParams to_params(const strata_linear_params& c, CallReader& in) {
  return {.x = in.view(c.x, "x"),
          .x_scale = in.view(c.x_scale, "x_scale"),
          .weight = in.weight(c.weight),
          .y = in.view(c.y, "y"),
          .activation = to_activation_format(c.activation, "activation")};
}

GroupedLinearParams to_params(const strata_grouped_linear_params& c, CallReader& in) {
  return {.x = in.view(c.x, "x"),
          .x_scale = in.view(c.x_scale, "x_scale"),
          .weight = in.weight(c.weight),
          .y = in.view(c.y, "y"),
          .y_scale = in.view(c.y_scale, "y_scale"),
          .y_format = to_activation_format(c.y_format, "y_format")};
}

const LinearWeight* CallReader::weight(const strata_linear_weight* given) {
  if (given == nullptr) return nullptr;
  const StructView<strata_linear_weight> c(given, "weight");
  weight_ = LinearWeight{.n = c->n,
                         .k = c->k,
                         .groups = c->groups,
                         .weight = view(c->weight, "weight.weight"),
                         .scale = view(c->scale, "weight.scale"),
                         .block_n = c->block_n,
                         .block_k = c->block_k,
                         .power_of_two_scales = to_bool(c->power_of_two_scales, "weight.power_of_two_scales"),
                         .from_e4m3 = to_bool(c->from_e4m3, "weight.from_e4m3"),
                         .packed = view(c->packed, "weight.packed"),
                         .packing = optional_text(c->packing),
                         .shares_device = to_bool(c->shares_device, "weight.shares_device"),
                         .name = optional_text(c->name)};
  return &*weight_;
}

namespace {

const WeightPacking& packing_of(const char* name) {
  const std::string_view wanted = to_text(name, "packing");
  for (const WeightPacking& packing : op_set().weight_packings) {
    if (packing.name == wanted) return packing;
  }
  fail(ErrorCode::invalid_argument, "packing: expected a packing of this build, strata_weight_packing_name(0) and so on, is '{}'", wanted);
}

// Throws for a weight that breaks the contract, or is packed. `memory`: it must have memory too.
const LinearWeight& row_major_weight(const strata_linear_weight* given, const Device& device, bool memory, CallReader& reader) {
  require(given != nullptr, "weight: expected a strata_linear_weight, is null");
  const auto check = [](const LinearWeight& w, DeviceId on) {
    ParamCheck c("weight packing", on);
    c.require(w.groups >= 1, "weight.groups must be at least 1, is {}", w.groups);
    ops::check_weight(c, &w, w.groups, w.k);
    c.require(!w.packed.present(), "weight must be row-major, is packed for {}", w.packing);
  };
  CallReader checked(device.id(), CallReader::Use::planning_check);
  check(*checked.weight(given), checked.check_device());
  const LinearWeight& weight = *reader.weight(given);
  if (memory) check(weight, device.id());
  return weight;
}

}  // namespace
}  // namespace strata::c_api

STRATA_C_OP(linear);
STRATA_C_OP(grouped_linear);

using namespace strata;
using namespace strata::c_api;

int64_t strata_weight_packing_count(void) noexcept {
  int64_t count = 0;
  static_cast<void>(guarded([&] { count = static_cast<int64_t>(op_set().weight_packings.size()); }));
  return count;
}

const char* strata_weight_packing_name(int64_t index) noexcept {
  if (index < 0 || index >= strata_weight_packing_count()) return nullptr;  // op_set() is made then
  return op_set().weight_packings[static_cast<size_t>(index)].name.c_str();
}

strata_status strata_weight_packed_bytes(const char* packing, strata_device device, const strata_linear_weight* weight,
                                         int64_t* bytes) noexcept {
  return guarded([&] {
    int64_t& out = result(bytes, "bytes");
    const WeightPacking& by = packing_of(packing);
    const auto on = find(device);
    CallReader reader(on->id(), CallReader::Use::planning);
    out = by.packed_bytes(row_major_weight(weight, *on, false, reader), *on);
  });
}

strata_status strata_weight_pack(const char* packing, strata_device device, const strata_linear_weight* weight, void* packed,
                                 int64_t bytes) noexcept {
  return guarded([&] {
    const WeightPacking& by = packing_of(packing);
    const auto on = find(device);
    CallReader reader(on->id(), CallReader::Use::run);
    const LinearWeight& w = row_major_weight(weight, *on, true, reader);
    const int64_t needed = by.packed_bytes(w, *on);
    if (needed == 0) {
      fail(ErrorCode::unsupported, "packing: {} does not take a weight of {} groups of {} x {} as {} on {}", by.name, w.groups, w.n, w.k,
           w.weight, on->id());
    }
    require(bytes >= needed, "bytes: expected at least {} for {}, is {}", needed, by.name, bytes);
    constexpr uintptr_t kAlignment = 256;
    require(packed != nullptr && reinterpret_cast<uintptr_t>(packed) % kAlignment == 0,
            "packed: expected memory aligned to {} bytes, is at {}", kAlignment, packed);
    by.pack(w, *on, packed);
    on->synchronize({});
  });
}
