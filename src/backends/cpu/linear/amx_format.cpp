#include "backends/cpu/linear/amx_format.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "backends/cpu/cpu_device.h"
#include "core/check.h"
#include "formats/ue8m0.h"

namespace strata::cpu::amx {
namespace {

constexpr uint8_t kOne = 0x38;  // e4m3 1.0: padding meets zero activations or unused outputs, and is a plain value

// Where channel k of feature f of a step goes, in elements of the format.
int64_t bf16_offset(int64_t f, int64_t k) { return f / 16 * 512 + k / 2 * 32 + f % 16 * 2 + k % 2; }
int64_t e4m3_offset(int64_t f, int64_t k) {
  const int64_t row = k / 2, feature = f % 16;
  return f / 16 * 512 + row / 2 * 64 + feature / 4 * 16 + row % 2 * 8 + feature % 4 * 2 + k % 2;
}

bool plain(uint8_t e4m3) { return (e4m3 & 0x7Fu) >= 8 && (e4m3 & 0x7Fu) != 0x7F; }

int64_t steps_per_scale(const LinearWeight& w) { return w.block_k / kStep; }

bool is_e4m3(const LinearWeight& w) { return w.weight.dtype == DType::e4m3; }

Geometry geometry_of(const LinearWeight& w) { return geometry(w.n, w.k, is_e4m3(w), is_e4m3(w) ? steps_per_scale(w) : 1); }

// Whether bf16 operands may be values times the scale: plain values have bf16 exponents 121..135, which stay normal numbers.
bool exact_in_operands(float scale) {
  const uint32_t bits = float_bits(scale);
  const int exponent = static_cast<int>(bits >> 23) - 127;
  return (bits & 0x807FFFFFu) == 0 && exponent >= -120 && exponent <= 119;
}

bool exact_scales(const LinearWeight& w) {
  for (int64_t row = 0; row < w.scale.shape[0]; ++row) {
    const float* const scale = w.scale.row<float>(row);
    if (!std::all_of(scale, scale + w.scale.shape[1], exact_in_operands)) return false;
  }
  return true;
}

Header header_of(const LinearWeight& w) {
  Header header;
  std::memcpy(&header, w.packed.ptr<std::byte>(), sizeof(header));
  return header;
}

void pack_e4m3(const LinearWeight& w, int64_t first_row, int64_t rows, int64_t step, uint8_t* dst, uint16_t* mask) {
  std::fill_n(dst, kStepValues, kOne);
  const int64_t columns = std::min(kStep, w.k - step * kStep);
  *mask = 0;
  for (int64_t f = 0; f < rows; ++f) {
    const uint8_t* values = w.weight.row<uint8_t>(first_row + f) + step * kStep;
    for (int64_t k = 0; k < columns; ++k) {
      const int64_t offset = e4m3_offset(f, k);
      dst[offset] = values[k];
      if (!plain(values[k])) *mask = static_cast<uint16_t>(*mask | 1u << (offset / 64));
    }
  }
}

void pack_bf16(const LinearWeight& w, int64_t first_row, int64_t rows, int64_t step, Bf16* dst) {
  std::fill_n(dst, kStepValues, Bf16{0});
  const int64_t columns = std::min(kStep, w.k - step * kStep);
  for (int64_t f = 0; f < rows; ++f) {
    const Bf16* values = w.weight.row<Bf16>(first_row + f) + step * kStep;
    for (int64_t k = 0; k < columns; ++k) dst[bf16_offset(f, k)] = values[k];
  }
}

}  // namespace

size_t packed_bytes(const LinearWeight& w) {
  if (w.packed.present() || w.n < 1 || w.k < 1 || w.groups < 1) return 0;
  if (is_e4m3(w)) {
    if (w.block_n < 1 || w.block_n % kPanel != 0 || w.block_k < 1 || w.block_k % kStep != 0) return 0;
    if (w.groups > 1 && w.n % kPanel != 0) return 0;
  }
  return Geometry::header_bytes() + geometry_of(w).group_bytes() * static_cast<size_t>(w.groups);
}

void pack(const Device& device, const LinearWeight& w, std::byte* dst) {
  const Geometry g = geometry_of(w);
  const Header header{
      .is_e4m3 = g.e4m3, .steps_per_scale = g.e4m3 ? steps_per_scale(w) : 1, .exact_scales = g.e4m3 && exact_scales(w) ? 1 : 0};
  std::memset(dst, 0, Geometry::header_bytes());
  std::memcpy(dst, &header, sizeof(header));
  parallel_for(device, w.groups * g.panels, 1, [&](int64_t task) {
    const int64_t group = task / g.panels, panel = task % g.panels;
    std::byte* const base = dst + Geometry::header_bytes() + static_cast<size_t>(group) * g.group_bytes();
    const int64_t first = panel * kPanel, rows = std::min(kPanel, w.n - first), row = group * w.n + first;
    std::byte* const out = base + g.scale_bytes() + g.mask_bytes() + static_cast<size_t>(panel * g.steps) * g.step_bytes();
    if (g.e4m3) {
      std::memcpy(reinterpret_cast<float*>(base) + panel * g.scale_steps, w.scale.row<float>(row / w.block_n),
                  static_cast<size_t>(g.scale_steps) * sizeof(float));
      uint16_t* const masks = reinterpret_cast<uint16_t*>(base + g.scale_bytes()) + panel * g.steps;
      for (int64_t s = 0; s < g.steps; ++s) pack_e4m3(w, row, rows, s, reinterpret_cast<uint8_t*>(out) + s * kStepValues, masks + s);
    } else {
      for (int64_t s = 0; s < g.steps; ++s) pack_bf16(w, row, rows, s, reinterpret_cast<Bf16*>(out) + s * kStepValues);
    }
  });
}

void check_packed(const LinearWeight& w) {
  const size_t given = w.packed.bytes();
  require(given >= Geometry::header_bytes(), "weight.packed of cpu/amx must have a header of {} bytes, has {} bytes in all",
          Geometry::header_bytes(), given);
  const Header header = header_of(w);
  require(header.steps_per_scale >= 1 && header.steps_per_scale <= std::numeric_limits<int32_t>::max(),
          "weight.packed of cpu/amx must have a header with 1 to 2^31 - 1 steps a scale, has {}", header.steps_per_scale);
  const size_t bytes = Geometry::header_bytes() +
                       geometry(w.n, w.k, header.is_e4m3 != 0, header.steps_per_scale).group_bytes() * static_cast<size_t>(w.groups);
  require(given == bytes, "weight.packed of cpu/amx must have {} bytes for {} groups of {} x {}, has {}", bytes, w.groups, w.n, w.k, given);
}

Group group_of(const LinearWeight& w, int64_t index) {
  const std::byte* const blob = w.packed.ptr<std::byte>();
  const Header header = header_of(w);
  Group group;
  group.steps_per_scale = header.steps_per_scale;
  group.exact_scales = header.is_e4m3 == 0 || header.exact_scales != 0;
  group.geometry = geometry(w.n, w.k, header.is_e4m3 != 0, header.steps_per_scale);
  const std::byte* const base = blob + Geometry::header_bytes() + static_cast<size_t>(index) * group.geometry.group_bytes();
  group.scales = reinterpret_cast<const float*>(base);
  group.masks = reinterpret_cast<const uint16_t*>(base + group.geometry.scale_bytes());
  group.panels = base + group.geometry.scale_bytes() + group.geometry.mask_bytes();
  return group;
}

}  // namespace strata::cpu::amx
