// Shared by the attention ops: one implementation per instruction set, fastest first, over the kernels of this folder.
#pragma once

#include <array>
#include <vector>

#include "attend.h"
#include "backends/cpu/cpu_device.h"
#include "core/check.h"
#include "strata/op.h"

namespace strata::cpu {

struct NamedPath {
  const char* name;
  AttendPath path;
  CpuIsa needs;
};
// "cpu/simd" uses the widest fp32 vectors allowed.
inline constexpr std::array<NamedPath, 3> kAttentionPaths = {{{"cpu/amx", AttendPath::amx, CpuIsa::amx},
                                                              {"cpu/avx512_bf16", AttendPath::avx512_bf16, CpuIsa::avx512_bf16},
                                                              {"cpu/simd", AttendPath::portable, CpuIsa::portable}}};

inline AttendPath path_on(const Device& device, AttendPath path) {
  if (path != AttendPath::portable) return path;
  const CpuIsa isa = isa_of(device);
  return isa >= CpuIsa::avx512 ? AttendPath::avx512 : isa >= CpuIsa::avx2 ? AttendPath::avx2 : AttendPath::portable;
}

inline RowSource source_of(const PagedCache& cache) {
  return {.base = static_cast<const std::byte*>(cache.data),
          .format = cache.format,
          .page_size = cache.page_size,
          .page_stride = cache.page_stride,
          .row_stride = row_data_bytes(cache.format, cache.row_dim),
          .num_rows = cache.num_slots(),
          .scale = cache.scale};
}

// The shapes that attend() supports.
inline Support dims_fit(const AttendShape& shape) {
  if (shape.head_dim % 64 != 0 || shape.value_dim % 64 != 0 || shape.head_dim > 640) {
    return Support::no(
        fmt::format("needs head and value dims that are multiples of 64 up to 640, are {} and {}", shape.head_dim, shape.value_dim));
  }
  return Support::yes();
}

// supports(p, path), workspace_bytes(p, device, path), run(p, device, path, workspace aligned to 64 bytes)
template <class Params, class Supports, class WorkspaceBytes, class Run>
std::vector<Implementation<Params>> attention_paths(Supports supports, WorkspaceBytes workspace_bytes, Run run) {
  constexpr size_t kAlignment = 64;
  std::vector<Implementation<Params>> impls;
  impls.reserve(std::size(kAttentionPaths));
  for (const NamedPath& named : kAttentionPaths) {
    impls.push_back({.name = named.name,
                     .supports = [named, supports](const Params& p, const Device& device) -> Support {
                       if (device.id().kind != DeviceKind::cpu) return Support::no("runs on a CPU");
                       if (isa_of(device) < named.needs) {
                         return Support::no(fmt::format("needs {}, may use {}", to_string(named.needs), to_string(isa_of(device))));
                       }
                       return supports(p, named.path);
                     },
                     .workspace_bytes = [named, workspace_bytes](const Params& p, const Device& device) -> size_t {
                       return workspace_bytes(p, device, path_on(device, named.path)) + kAlignment;
                     },
                     .run =
                         [named, run](const Params& p, const ExecutionContext& context) {
                           const auto address = reinterpret_cast<uintptr_t>(context.workspace.data);
                           const uintptr_t aligned = (address + kAlignment - 1) / kAlignment * kAlignment;
                           run(p, context.device, path_on(context.device, named.path),
                               static_cast<std::byte*>(context.workspace.data) + (aligned - address));
                         }});
  }
  return impls;
}

}  // namespace strata::cpu
