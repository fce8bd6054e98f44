#include "backends/cuda/runtime/tensor_map.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>

#include "backends/cuda/runtime/check.h"
#include "core/check.h"

namespace strata::cuda::sm90 {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

EncodeTiled encode_tiled() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result),
        "cudaGetDriverEntryPointByVersion");
  if (result != cudaDriverEntryPointSuccess) fail(ErrorCode::unsupported, "the CUDA driver has no cuTensorMapEncodeTiled");
  return reinterpret_cast<EncodeTiled>(function);
}

template <int kRank>
CUresult encode(CUtensorMap& map, CUtensorMapDataType type, const void* data, const cuuint64_t (&extent)[kRank],
                const cuuint64_t (&strides)[kRank - 1], const cuuint32_t (&box)[kRank], CUtensorMapL2promotion fetch) {
  static const EncodeTiled function = encode_tiled();
  cuuint32_t step[kRank];
  std::fill_n(step, kRank, 1);
  return function(&map, type, kRank, const_cast<void*>(data), extent, strides, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, fetch, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

void check_planes(CUresult result, const char* name, const void* data, std::array<int64_t, 3> shape, int64_t plane_stride,
                  int64_t row_stride) {
  if (result == CUDA_SUCCESS) return;
  fail(ErrorCode::invalid_argument,
       "{} and its rows must be aligned to 16 bytes, is {} [{}, {}, {}], {} elements a plane, {} a row (cuTensorMapEncodeTiled: error {})",
       name, data, shape[0], shape[1], shape[2], plane_stride, row_stride, static_cast<int>(result));
}

}  // namespace

CUtensorMap tensor_map(const char* name, const void* data, DType dtype, int64_t rows, int64_t columns, int64_t stride, int box_rows,
                       CUtensorMapL2promotion fetch) {
  const auto element = static_cast<int64_t>(size_of(dtype));
  const cuuint64_t extent[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t row_bytes[] = {static_cast<cuuint64_t>(stride * element)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(128 / element), static_cast<cuuint32_t>(box_rows)};
  const auto type = dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8;
  CUtensorMap map;
  const CUresult result = encode(map, type, data, extent, row_bytes, box, fetch);
  if (result != CUDA_SUCCESS) {
    fail(ErrorCode::invalid_argument,
         "linear: {} and its rows must be aligned to 16 bytes, is {} [{}, {}], {} elements a row "
         "(cuTensorMapEncodeTiled: error {})",
         name, data, rows, columns, stride, static_cast<int>(result));
  }
  return map;
}

CUtensorMap tensor_map(const char* name, const void* data, int64_t planes, int64_t rows, int64_t columns, int64_t plane_stride,
                       int64_t row_stride, int box_rows) {
  const cuuint64_t extent[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(planes)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(row_stride) * 2, static_cast<cuuint64_t>(plane_stride) * 2};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_rows), 1};
  CUtensorMap map;
  const CUresult result = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, extent, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  check_planes(result, name, data, {planes, rows, columns}, plane_stride, row_stride);
  return map;
}

CUtensorMap column_groups_map(const char* name, const void* data, int64_t planes, int64_t rows, int64_t columns, int64_t plane_stride,
                              int64_t row_stride, int box_rows, int box_groups) {
  constexpr int64_t kLanes = 64;
  const cuuint64_t extent[] = {static_cast<cuuint64_t>(kLanes), static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(columns / kLanes),
                               static_cast<cuuint64_t>(planes)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(row_stride) * 2, static_cast<cuuint64_t>(kLanes) * 2,
                                static_cast<cuuint64_t>(plane_stride) * 2};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(kLanes), static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_groups), 1};
  CUtensorMap map;
  const CUresult result = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, extent, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  check_planes(result, name, data, {planes, rows, columns}, plane_stride, row_stride);
  return map;
}

}  // namespace strata::cuda::sm90
