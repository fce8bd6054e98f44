// What the functions of all ops share: structs of the caller as the params of an Op, and the calls. A call allocates nothing here, unless
// names of a weight are long.
#pragma once

#include <optional>
#include <string>

#include "c_api/convert.h"
#include "c_api/device.h"
#include "strata/c/op.h"
#include "strata/c/ops/linear.h"
#include "strata/op_set.h"

namespace strata::c_api {

STRATA_STRUCT(strata_execution, 120);
STRATA_STRUCT(strata_linear_weight, 344);

inline ActivationFormat to_activation_format(strata_activation_format format, const char* field) {
  return to_enum(format, ActivationFormat::fp8_f32, field);
}

// f(OP) for every op, in the order of for_each_op.
// clang-format off
#define STRATA_C_OPS(f) \
  f(linear) f(grouped_linear) f(rms_norm_pair) f(qnorm_rope_kv_insert) f(quantize_and_insert_k) f(dequantize_and_gather_k) \
  f(save_partial_states) f(compress_norm_rope_store) f(indexer_query) f(indexer_logits) f(topk_select) f(indexer_topk) \
  f(scatter_block_tables) f(slot_mapping) f(swa_indices) f(compressed_indices) f(compute_global_topk) f(combine_topk_swa) \
  f(sparse_attn_decode) f(sparse_attn_prefill) f(merge_attn_states) f(inverse_rope) f(inverse_rope_quant) f(mla_rope_kv_insert) \
  f(indexer_key_insert) f(dense_attn_decode) f(dense_attn_prefill)
// clang-format on

// The lines of strata_op_candidates, for each op.
#define STRATA_C_OP_CANDIDATES(op) std::string candidates_##op(const Device& device, const void* params);
STRATA_C_OPS(STRATA_C_OP_CANDIDATES)
#undef STRATA_C_OP_CANDIDATES

// default_ops(), made once.
const OpSet& op_set();

// A struct of the caller: in place where it has the size that this library knows, else a copy of that size.
template <class T>
class StructView {
 public:
  StructView(const T* pointer, const char* what) : read_(pointer) {
    if (pointer != nullptr && pointer->struct_size == sizeof(T)) return;
    copy_ = read_struct(pointer, what);
    read_ = &copy_;
  }
  StructView(const StructView&) = delete;
  StructView& operator=(const StructView&) = delete;
  const T& operator*() const { return *read_; }
  const T* operator->() const { return read_; }

 private:
  const T* read_;
  T copy_;  // written only where it is read
};

// Reads the fields of one call's structs, and holds what its params point to.
class CallReader {
 public:
  // What the params are for. Planning: their data may be null, and addresses are not looked at. A check of planning: every view and cache
  // must be on the device. Addresses are replaced by stand-ins, which a check does not read: it is on check_device().
  enum class Use : uint8_t { run, planning, planning_check };

  CallReader(DeviceId device, Use use) : device_(device), use_(use) {}
  CallReader(const CallReader&) = delete;
  CallReader& operator=(const CallReader&) = delete;

  TensorView view(const strata_tensor_view& given, const char* field) { return given.rank == 0 ? kAbsent : read_view(given, field); }
  // Null: absent.
  PagedCache cache(const strata_paged_cache* given, const char* field);
  // Null: null. The result lives as long as this reader, which reads one weight.
  const LinearWeight* weight(const strata_linear_weight* given);
  // Null: absent. read(struct, reader) converts it.
  template <class C, class Read>
  auto optional(const C* given, const char* field, const Read& read) {
    using Result = std::optional<decltype(read(*given, *this))>;
    if (given == nullptr) return Result();
    return Result(read(*StructView<C>(given, field), *this));
  }

  // Where the views of a planning check are.
  DeviceId check_device() const;

 private:
  // Copied faster than zeros are written.
  static const TensorView kAbsent;
  TensorView read_view(const strata_tensor_view& given, const char* field);
  void stand_in(void*& data, DeviceId& device, const char* field);

  DeviceId device_;
  Use use_;
  uintptr_t stand_ins_ = 0;
  std::optional<LinearWeight> weight_;
};

// The context of a call. It keeps the stream alive.
class Execution {
 public:
  Execution(const strata_execution* given, Device& device);
  const ExecutionContext& context() const { return context_; }

 private:
  Execution(const StructView<strata_execution>& given, Device& device);
  StreamUse stream_;
  ExecutionContext context_;
};

// By to_params(struct, reader) of the op, in ops/*.cpp. The op's name is put before what it throws.
template <class Params, class C>
Params read_params(const Op<Params>& op, const C* given, CallReader& reader) {
  try {
    return to_params(*StructView<C>(given, "params"), reader);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", op.name(), error.what()));
  }
}

// Params whose data may be null. They keep the op's contract otherwise: no implementation is asked about a call that breaks it.
template <class Params, class C>
Params read_planning(const Op<Params>& op, const Device& device, const C* given, CallReader& reader) {
  CallReader checked(device.id(), CallReader::Use::planning_check);
  op.check(read_params(op, given, checked), checked.check_device());
  return read_params(op, given, reader);
}

template <class Params, class C>
strata_status run_op(Op<Params> OpSet::*member, strata_device handle, const C* params, const strata_execution* execution) noexcept {
  return guarded([&] {
    const Op<Params>& op = op_set().*member;
    const auto device = find(handle);
    CallReader reader(device->id(), CallReader::Use::run);
    const Params p = read_params(op, params, reader);
    const Execution how(execution, *device);
    op(p, how.context());
  });
}

template <class Params, class C>
strata_status op_workspace_bytes(Op<Params> OpSet::*member, strata_device handle, const C* params, int64_t* bytes) noexcept {
  return guarded([&] {
    int64_t& out = result(bytes, "bytes");
    const Op<Params>& op = op_set().*member;
    const auto device = find(handle);
    CallReader reader(device->id(), CallReader::Use::planning);
    out = op.workspace_bytes(read_planning(op, *device, params, reader), *device);
  });
}

template <class Params, class C>
strata_status op_implementation(Op<Params> OpSet::*member, strata_device handle, const C* params, const char** name) noexcept {
  return guarded([&] {
    const char*& out = result(name, "name");
    const Op<Params>& op = op_set().*member;
    const auto device = find(handle);
    CallReader reader(device->id(), CallReader::Use::planning);
    out = op.select(read_planning(op, *device, params, reader), *device).name.c_str();
  });
}

template <class C, class Params>
std::string op_candidates(Op<Params> OpSet::*member, const Device& device, const void* params) {
  const Op<Params>& op = op_set().*member;
  CallReader reader(device.id(), CallReader::Use::planning);
  std::string text;
  for (const Candidate& c : op.candidates(read_planning(op, device, static_cast<const C*>(params), reader), device)) {
    text += (text.empty() ? "" : "\n") + c.name + ": " + (c.is_eligible() ? "eligible" : c.reason());
  }
  return text;
}

}  // namespace strata::c_api

// The functions of an op. Expanded outside of namespaces, after the op's to_params.
#define STRATA_C_OP(op)                                                                                                              \
  strata_status strata_##op(strata_device device, const strata_##op##_params* params, const strata_execution* execution) noexcept {  \
    return strata::c_api::run_op(&strata::OpSet::op, device, params, execution);                                                     \
  }                                                                                                                                  \
  strata_status strata_##op##_workspace_bytes(strata_device device, const strata_##op##_params* params, int64_t* bytes) noexcept {   \
    return strata::c_api::op_workspace_bytes(&strata::OpSet::op, device, params, bytes);                                             \
  }                                                                                                                                  \
  strata_status strata_##op##_implementation(strata_device device, const strata_##op##_params* params, const char** name) noexcept { \
    return strata::c_api::op_implementation(&strata::OpSet::op, device, params, name);                                               \
  }                                                                                                                                  \
  namespace strata::c_api {                                                                                                          \
  std::string candidates_##op(const Device& device, const void* params) {                                                            \
    return op_candidates<strata_##op##_params>(&OpSet::op, device, params);                                                          \
  }                                                                                                                                  \
  }                                                                                                                                  \
  static_assert(true)
