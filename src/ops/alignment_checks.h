// Alignment of memory on a CUDA device: as aligned as its row stride, so that strides determine how it can be read (row_alignment.h). No
// requirement on other devices.
#pragma once

#include "core/check.h"
#include "contracts/row_alignment.h"
#include "strata/kv_format.h"

namespace strata::ops {

inline void check_begins_at(ParamCheck& c, std::string_view name, const void* data, DeviceId device, int bytes) {
  if (device.kind != DeviceKind::cuda) return;
  c.require(reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0, "{} must begin at a multiple of {} bytes, is at {}",
            name, bytes, data);
}

inline void check_row_alignment(ParamCheck& c, std::string_view name, const TensorView& v) {
  check_begins_at(c, name, v.data, v.device, row_alignment(v));
}

// The pages of a cache, absent or not.
inline void check_page_alignment(ParamCheck& c, std::string_view name, const PagedCache& cache) {
  check_begins_at(c, name, cache.data, cache.device, alignment_of(cache.page_stride));
}

}  // namespace strata::ops
