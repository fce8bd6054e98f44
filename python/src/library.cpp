// The torch library "strata": every op of the OpSet, the workspace it needs and its implementations, and what belongs to no op.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>

#include "ops/compressor.h"
#include "ops/dense_attention.h"
#include "ops/indexer.h"
#include "ops/indices.h"
#include "ops/kv_insert.h"
#include "ops/linear.h"
#include "ops/mla.h"
#include "ops/norm.h"
#include "ops/rope.h"
#include "ops/sparse_attention.h"
#include "reader.h"
#include "strata/op_set.h"
#include "strata/version.h"

namespace strata::torch_ops {
namespace {

const OpSet& op_set() {
  static const OpSet ops = default_ops();
  return ops;
}

template <class Params>
const Op<Params>& op_of() {
  static const Op<Params>& found = [&]() -> const Op<Params>& {
    const Op<Params>* result = nullptr;
    for_each_op(op_set(), [&](const auto& op) {
      if constexpr (std::is_same_v<decltype(op), const Op<Params>&>) result = &op;
    });
    return *result;
  }();
  return found;
}

// What a torch op does with a call of the library's op.
enum class Purpose : uint8_t { run, workspace_bytes, implementations };

// Arguments of every op that are not its params.
struct CallMemory {
  TensorView next_weights{};
  TensorView workspace{};
};
template <class V>
void fields(V& v, CallMemory& memory) {
  v.in_opt("next_weights", memory.next_weights);
  v.out_opt("workspace", memory.workspace);
}

template <class V, class Params>
void visit(V& v, Params& params, CallMemory& memory, Purpose purpose) {
  fields(v, params);
  v.set_pass(Pass::optional);
  fields(v, params);
  if (purpose == Purpose::run) fields(v, memory);
}

template <class Params, Purpose kPurpose>
const SchemaWriter& schema_of() {
  static const SchemaWriter schema = [] {
    SchemaWriter writer(kPurpose == Purpose::run);
    Params params{};
    CallMemory memory;
    visit(writer, params, memory, kPurpose);
    return writer;
  }();
  return schema;
}

template <class Params>
void run(const Op<Params>& op, const Params& params, const CallMemory& memory, Device& device) {
  op.check(params, device.id());
  const auto& implementation = op.select(params, device);
  const int64_t bytes = implementation.workspace_bytes(params, device);
  const TorchWorkspace owned(device.id(), memory.workspace.present() ? 0 : bytes);
  Workspace workspace = owned.get();
  if (memory.workspace.present()) {
    const TensorView& given = memory.workspace;
    if (given.device != device.id())
      throw_invalid(op.name(), {{}, "workspace"}, "must be on " + to_string(device.id()) + ", is " + given.describe());
    if (!given.is_contiguous()) throw_invalid(op.name(), {{}, "workspace"}, "must be contiguous, is " + given.describe());
    workspace = aligned(given);
    detail::check_workspace(op.name(), implementation.name, bytes, workspace);
  }
  implementation.run(params, {device, current_stream(device.id()), workspace, {memory.next_weights}});
}

template <class Params>
std::string implementations(const Op<Params>& op, const Params& params, Device& device) {
  op.check(params, device.id());
  std::string text;
  for (const auto& candidate : op.candidates(params, device)) {
    text += candidate.name + ": " + (candidate.is_eligible() ? "eligible" : candidate.reason()) + '\n';
  }
  return text;
}

// torch's errors have no codes. The code stands before the message, from where strata_attention takes it.
template <class Function>
auto with_codes(Function&& function) {
  try {
    return function();
  } catch (const Error& error) {
    throw std::runtime_error('[' + std::string(to_string(error.code())) + "] " + error.what());
  }
}

StableIValue returned(int64_t value) { return static_cast<StableIValue>(value); }
StableIValue returned(const std::string& text) {
  StringHandle handle = nullptr;
  check_torch(torch_new_string_handle(text.data(), text.size(), &handle), "torch_new_string_handle");
  return reinterpret_cast<StableIValue>(handle);
}

template <class Params, Purpose kPurpose>
void boxed(StableIValue* stack, uint64_t num_arguments, uint64_t) {
  with_codes([&] {
    const auto& kinds = schema_of<Params, kPurpose>().kinds();
    if (num_arguments != kinds.size()) throw Error(ErrorCode::unsupported, "torch calls an op with another number of arguments");
    [[maybe_unused]] StableIValue result = 0;
    {
      const OwnedArguments owner(stack, kinds);
      const Op<Params>& op = op_of<Params>();
      Reader reader(op.name(), stack);
      Params params{};
      CallMemory memory;
      visit(reader, params, memory, kPurpose);
      Device& device = device_of(reader.device().value_or(DeviceId{}));
      if constexpr (kPurpose == Purpose::run) {
        run(op, params, memory, device);
      } else if constexpr (kPurpose == Purpose::workspace_bytes) {
        op.check(params, device.id());
        result = returned(unaligned_bytes(op.workspace_bytes(params, device)));
      } else {
        result = returned(implementations(op, params, device));
      }
    }
    if constexpr (kPurpose != Purpose::run) stack[0] = result;
  });
}

// Packing a weight for an implementation of linear and grouped_linear.
struct PackWeight {
  LinearWeight weight{};
  std::string packing{};
  TensorView packed{};
};
template <class V>
void fields(V& v, PackWeight& p) {
  fields(v, p.weight);
  v.text("packing", p.packing);
  v.out_opt("out", p.packed);
}

template <bool kWrites>
const SchemaWriter& pack_schema() {
  static const SchemaWriter schema = [] {
    SchemaWriter writer(kWrites);
    PackWeight p;
    fields(writer, p);
    writer.set_pass(Pass::optional);
    fields(writer, p);
    return writer;
  }();
  return schema;
}

const WeightPacking& packing_named(const std::string& name) {
  std::string known;
  for (const auto& packing : op_set().weight_packings) {
    if (packing.name == name) return packing;
    known += (known.empty() ? "" : ", ") + packing.name;
  }
  throw_invalid("pack_weight", {{}, "packing"}, "must be one of " + known + "; is '" + name + "'");
}

// packed_weight_bytes: the bytes, 0 where the packing does not take the weight. pack_weight: writes them to `out`.
template <bool kWrites>
void boxed_pack(StableIValue* stack, uint64_t, uint64_t) {
  with_codes([&] {
    int64_t bytes = 0;
    {
      const OwnedArguments owner(stack, pack_schema<kWrites>().kinds());
      Reader reader("pack_weight", stack);
      PackWeight p;
      fields(reader, p);
      reader.set_pass(Pass::optional);
      fields(reader, p);
      const LinearWeight& w = p.weight;
      const ArgumentName weight{{}, "weight"};
      if (w.n < 1 || w.k < 1 || w.groups < 1) throw_invalid("pack_weight", weight, "must have n, k and groups of at least 1");
      if (!w.weight.present() || w.weight.rank != 2 || w.weight.shape[0] != w.groups * w.n || w.weight.shape[1] != w.k ||
          !w.weight.is_contiguous()) {
        throw_invalid("pack_weight", weight, "must be contiguous [groups*n, k], is " + w.weight.describe());
      }
      Device& device = device_of(*reader.device());
      const WeightPacking& packing = packing_named(p.packing);
      bytes = packing.packed_bytes(w, device);
      if constexpr (kWrites) {
        const ArgumentName out{{}, "out"};
        if (bytes == 0) throw_invalid("pack_weight", weight, "must be one that " + p.packing + " takes, is " + w.weight.describe());
        if (p.packed.dtype != DType::u8 || p.packed.bytes() != bytes || !p.packed.is_contiguous() || p.packed.device != device.id()) {
          throw_invalid(
              "pack_weight", out,
              "must be contiguous u8[" + std::to_string(bytes) + "] on " + to_string(device.id()) + ", is " + p.packed.describe());
        }
        packing.pack(w, device, p.packed.data);
      }
    }
    if constexpr (!kWrites) stack[0] = returned(bytes);
  });
}

void boxed_packings(StableIValue* stack, uint64_t, uint64_t) {
  with_codes([&] {
    std::string names;
    for (const auto& packing : op_set().weight_packings) names += packing.name + '\n';
    stack[0] = returned(names);
  });
}

void boxed_version(StableIValue* stack, uint64_t, uint64_t) {
  stack[0] = returned(std::to_string(STRATA_VERSION_MAJOR) + '.' + std::to_string(STRATA_VERSION_MINOR) + '.' +
                      std::to_string(STRATA_VERSION_PATCH));
}

// describe_device("cuda:0").
void boxed_describe_device(StableIValue* stack, uint64_t, uint64_t) {
  with_codes([&] {
    StringOpaque* const handle = pointer_of<StringOpaque>(stack[0]);
    const std::unique_ptr<StringOpaque, AOTITorchError (*)(StringHandle)> owner(handle, torch_delete_string);
    const char* text = nullptr;
    check_torch(torch_string_c_str(handle, &text), "torch_string_c_str");
    stack[0] = returned(device_of(parse_device_id(text)).description());
  });
}

using torch::stable::detail::StableLibrary;

template <class Params>
void define(StableLibrary& library, const std::string& name) {
  const auto& call = schema_of<Params, Purpose::run>().arguments();
  const auto& query = schema_of<Params, Purpose::workspace_bytes>().arguments();
  library.def((name + '(' + call + ") -> ()").c_str());
  library.def((name + "_workspace_bytes(" + query + ") -> int").c_str());
  library.def((name + "_implementations(" + query + ") -> str").c_str());
}
template <class Params>
void implement(StableLibrary& library, const std::string& name) {
  library.impl(name.c_str(), boxed<Params, Purpose::run>);
  library.impl((name + "_workspace_bytes").c_str(), boxed<Params, Purpose::workspace_bytes>);
  library.impl((name + "_implementations").c_str(), boxed<Params, Purpose::implementations>);
}

void implement_all(StableLibrary& library) {
  for_each_op(op_set(), [&]<class Params>(const Op<Params>& op) { implement<Params>(library, op.name()); });
  library.impl("packed_weight_bytes", boxed_pack<false>);
  library.impl("pack_weight", boxed_pack<true>);
}

}  // namespace

STABLE_TORCH_LIBRARY(strata, library) {
  for_each_op(op_set(), [&]<class Params>(const Op<Params>& op) { define<Params>(library, op.name()); });
  library.def(("packed_weight_bytes(" + pack_schema<false>().arguments() + ") -> int").c_str());
  library.def(("pack_weight(" + pack_schema<true>().arguments() + ") -> ()").c_str());
  library.def("weight_packings() -> str");
  library.def("version() -> str");
  library.def("describe_device(str device) -> str");
}
STABLE_TORCH_LIBRARY_IMPL(strata, CPU, library) { implement_all(library); }
STABLE_TORCH_LIBRARY_IMPL(strata, CUDA, library) { implement_all(library); }
STABLE_TORCH_LIBRARY_IMPL(strata, CompositeExplicitAutograd, library) {
  library.impl("weight_packings", boxed_packings);
  library.impl("version", boxed_version);
  library.impl("describe_device", boxed_describe_device);
}

}  // namespace strata::torch_ops
