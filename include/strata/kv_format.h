// Formats of cached rows and geometry of pages: contents of a row, byte offsets, memory that the engine allocates.
// Byte layouts: docs/formats.md; V4 specification section 6, MLA specification sections 9 and 11.9.
#pragma once

#include <cstdint>
#include <string_view>

#include "strata/device_id.h"

namespace strata {

// Format of one cached row. row_dim: values per row.
enum class KvFormat : uint8_t {
  bf16,           // row_dim bf16 values                                                     (V4 6.5, MLA 9)
  fp8_tensor,     // row_dim e4m3 values, one scale for the whole cache                       (V4 6.5, MLA 9)
  fp8_ds_mla_v4,  // 584 B: 448 e4m3 + 64 bf16, and 7 ue8m0 + 1 zero at the end of the page  (V4 6.1)
  fp8_ds_mla,     // 656 B: 512 e4m3, 4 fp32 scales, 64 bf16, contiguous                     (V4 6.2, MLA 9.1)
  indexer_fp8,    // 132 B: 128 e4m3, and one fp32 scale at the end of the page              (V4 6.3, MLA 11.9)
  indexer_mxfp4,  // 68 B: 64 B of e2m1 pairs, and 4 ue8m0 at the end of the page            (V4 6.4)
  state_f32,      // row_dim fp32: compressor state                                          (V4 6.6)
};

// The name of the enumerator: "fp8_ds_mla_v4".
constexpr std::string_view to_string(KvFormat f) {
  switch (f) {
    case KvFormat::bf16: return "bf16";
    case KvFormat::fp8_tensor: return "fp8_tensor";
    case KvFormat::fp8_ds_mla_v4: return "fp8_ds_mla_v4";
    case KvFormat::fp8_ds_mla: return "fp8_ds_mla";
    case KvFormat::indexer_fp8: return "indexer_fp8";
    case KvFormat::indexer_mxfp4: return "indexer_mxfp4";
    case KvFormat::state_f32: return "state_f32";
  }
  return "unknown";
}

// Bytes of a row's data. In a page the scales of all rows follow the data of all rows.
constexpr int64_t row_data_bytes(KvFormat f, int64_t row_dim) {
  switch (f) {
    case KvFormat::bf16: return row_dim * 2;
    case KvFormat::fp8_tensor: return row_dim;
    case KvFormat::fp8_ds_mla_v4: return 576;
    case KvFormat::fp8_ds_mla: return 656;
    case KvFormat::indexer_fp8: return 128;
    case KvFormat::indexer_mxfp4: return 64;
    case KvFormat::state_f32: return row_dim * 4;
  }
  return 0;
}
// Bytes of a row's scales outside its data. Scales that the format stores within a row's data are not counted.
constexpr int64_t row_scale_bytes(KvFormat f) {
  switch (f) {
    case KvFormat::fp8_ds_mla_v4: return 8;
    case KvFormat::indexer_fp8:
    case KvFormat::indexer_mxfp4: return 4;
    default: return 0;
  }
}
// Bytes of a row: its data and its scales outside the data.
constexpr int64_t row_bytes(KvFormat f, int64_t row_dim) { return row_data_bytes(f, row_dim) + row_scale_bytes(f); }

// Payload bytes of a page of page_size rows. V4 6.
constexpr int64_t page_payload_bytes(KvFormat f, int64_t row_dim, int64_t page_size) { return row_bytes(f, row_dim) * page_size; }
// page_payload_bytes rounded up to a multiple of `alignment` > 0, 576 with fp8_ds_mla_v4 caches. V4 6.
constexpr int64_t page_padded_bytes(KvFormat f, int64_t row_dim, int64_t page_size, int64_t alignment) {
  return (page_payload_bytes(f, row_dim, page_size) + alignment - 1) / alignment * alignment;
}

// One layer's pages of one cache group, in device memory that the caller owns. Byte offsets are 64-bit.
// slot = page * page_size + row within the page; a negative slot means "no row".
struct PagedCache {
  void* data = nullptr;              // first byte of page 0
  DeviceId device{};                 // whose memory it is
  KvFormat format = KvFormat::bf16;  // of every row
  int32_t row_dim = 0;               // values per row: 512 (V4), 576 (MLA), 128 (indexer), 2*coff*d floats (state)
  int32_t page_size = 0;             // rows per page: any positive number
  int64_t num_pages = 0;             // pages in this memory
  int64_t page_stride = 0;           // bytes between pages: at least the payload, otherwise free
  float scale = 1.0f;                // fp8_tensor only: value = e4m3 value * scale; positive and finite

  // False for a group that a layer does not have.
  bool present() const { return page_size > 0; }
  // Slots are [0, num_slots()).
  int64_t num_slots() const { return num_pages * page_size; }
  // Byte offset from `data` of a row's data. slot >= 0.
  constexpr int64_t data_offset(int64_t slot) const {
    return slot / page_size * page_stride + slot % page_size * row_data_bytes(format, row_dim);
  }
  // Byte offset from `data` of a row's scales outside its data. slot >= 0.
  constexpr int64_t scale_offset(int64_t slot) const {
    return slot / page_size * page_stride + page_size * row_data_bytes(format, row_dim) + slot % page_size * row_scale_bytes(format);
  }
};

}  // namespace strata
