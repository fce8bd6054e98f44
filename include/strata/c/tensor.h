// Element types, formats of cached rows, views of tensors and of pages.
#ifndef STRATA_C_TENSOR_H
#define STRATA_C_TENSOR_H

#include <string.h>

#include "strata/c/api.h"

#if defined(__cplusplus)
extern "C" {
#endif

// The backend of a device.
typedef int32_t strata_device_kind;
enum {
  STRATA_CPU = 0,    // the host
  STRATA_CUDA = 1,   // an NVIDIA GPU
  STRATA_OPENCL = 2  // an OpenCL device
};

// Kind and index of a device: "cuda:1" is {STRATA_CUDA, 1}. All zero: the CPU.
typedef struct strata_device_id {
  strata_device_kind kind;  // the backend
  int32_t index;            // of a CPU always 0
} strata_device_id;

// Element type of a tensor that ops compute with.
typedef int32_t strata_dtype;
enum {
  STRATA_F64 = 0,   // IEEE 64-bit float
  STRATA_F32 = 1,   // IEEE 32-bit float
  STRATA_BF16 = 2,  // the upper half of an f32
  STRATA_F16 = 3,   // IEEE 16-bit float
  STRATA_E4M3 = 4,  // FP8: 4 bits of exponent, 3 of mantissa, largest value 448, no infinity
  STRATA_E8M0 = 5,  // a power of two: 8 bits of exponent with bias 127 (ue8m0)
  STRATA_I64 = 6,   // signed integer
  STRATA_I32 = 7,   // signed integer
  STRATA_I16 = 8,   // signed integer
  STRATA_I8 = 9,    // signed integer
  STRATA_U8 = 10,   // bytes, packed MXFP4 and flags
  STRATA_BOOL = 11  // one byte, 0 or 1
};

// Bytes of one element; 0 for a number that is no dtype.
STRATA_API int64_t strata_dtype_bytes(strata_dtype dtype) STRATA_NOEXCEPT;

// Most dimensions of a view.
#define STRATA_MAX_RANK 4

// A typed, strided view of device memory that somebody else owns. All zero: absent, as for an optional parameter that is not given. A view
// of rank > 0 with null data has a shape only, for workspace queries. The struct does not grow.
typedef struct strata_tensor_view {
  void* data;                       // first element, in memory of `device`; null: a shape only
  strata_dtype dtype;               // of every element
  int32_t rank;                     // number of dimensions; 0: absent
  strata_device_id device;          // whose memory it is
  int64_t shape[STRATA_MAX_RANK];   // elements
  int64_t stride[STRATA_MAX_RANK];  // elements, not bytes; >= 0
} strata_tensor_view;

// Writes a contiguous row-major view of `rank` dimensions. Errors: STRATA_INVALID_ARGUMENT for null pointers, an unknown dtype or device
// kind, a rank outside [1, STRATA_MAX_RANK], negative extents, and more than 2^63 - 1 bytes.
STRATA_API strata_status strata_tensor_view_contiguous(void* data, strata_dtype dtype, strata_device_id device, int32_t rank,
                                                       const int64_t* shape, strata_tensor_view* view) STRATA_NOEXCEPT;

// Format of one cached row. Byte layouts: docs/formats.md. row_dim: values per row.
typedef int32_t strata_kv_format;
enum {
  STRATA_KV_BF16 = 0,           // row_dim bf16 values                                                     (V4 6.5, MLA 9)
  STRATA_KV_FP8_TENSOR = 1,     // row_dim e4m3 values, one scale for the whole cache                       (V4 6.5, MLA 9)
  STRATA_KV_FP8_DS_MLA_V4 = 2,  // 584 B: 448 e4m3 + 64 bf16, and 7 ue8m0 + 1 zero at the end of the page  (V4 6.1)
  STRATA_KV_FP8_DS_MLA = 3,     // 656 B: 512 e4m3, 4 fp32 scales, 64 bf16, contiguous                     (V4 6.2, MLA 9.1)
  STRATA_KV_INDEXER_FP8 = 4,    // 132 B: 128 e4m3, and one fp32 scale at the end of the page              (V4 6.3, MLA 11.9)
  STRATA_KV_INDEXER_MXFP4 = 5,  // 68 B: 64 B of e2m1 pairs, and 4 ue8m0 at the end of the page            (V4 6.4)
  STRATA_KV_STATE_F32 = 6       // row_dim fp32: compressor state                                          (V4 6.6)
};

// Payload bytes of a page of page_size rows (V4 6). Errors: STRATA_INVALID_ARGUMENT for an unknown format, negative sizes and a null
// result.
STRATA_API strata_status strata_page_payload_bytes(strata_kv_format format, int64_t row_dim, int64_t page_size,
                                                   int64_t* bytes) STRATA_NOEXCEPT;

// One layer's pages of one cache group, in device memory that the caller owns.
// slot = page * page_size + row within the page; a negative slot means "no row".
typedef struct strata_paged_cache {
  size_t struct_size;       // sizeof(strata_paged_cache)
  void* data;               // first byte of page 0
  strata_device_id device;  // whose memory it is
  strata_kv_format format;  // of every row
  int32_t row_dim;          // values per row: 512 (V4), 576 (MLA), 128 (indexer), 2*coff*d floats (state)
  int32_t page_size;        // rows per page: any positive number
  float scale;              // fp8_tensor only: value = e4m3 value * scale; positive and finite
  int64_t num_pages;        // pages in this memory
  int64_t page_stride;      // bytes between pages: at least the payload, otherwise free
} strata_paged_cache;
// A struct with scale 1 and otherwise zeros.
static inline strata_paged_cache strata_paged_cache_default(void) {
  strata_paged_cache cache;
  memset(&cache, 0, sizeof cache);
  cache.struct_size = sizeof cache;
  cache.scale = 1.0f;
  return cache;
}

#if defined(__cplusplus)
}
#endif

#endif
