#include "backends/cuda/linear/cublaslt/matmul.h"

#include <bit>

#include "backends/cuda/runtime/cuda_device.h"
#include "core/check.h"
#include "contracts/row_alignment.h"

namespace strata::cuda {
namespace {

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(ErrorCode::device_failure, "cuBLASLt: {} failed: {}", call, cublasLtGetStatusString(status));
}

// The smallest power of two, or three times one, that is not smaller: the numbers of tokens for which kernels are chosen.
int64_t round_up_tokens(int64_t tokens) {
  const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(tokens)));
  const int64_t three_quarters = power / 4 * 3;
  return power % 16 == 0 && tokens <= three_quarters ? three_quarters : power;
}

// cuBLASLt's view of a product. Its matrices are column-major: it computes y^T [n, T] = w [n, k] * x^T [k, T], w as the transpose of a
// [k, n] matrix.
struct Description {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t w, x, y;

  Description(const Product& p, const float* w_scale, const float* x_scale) {
    check(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescInit");
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    const bool e4m3 = p.operands == Product::Operands::e4m3;
    if (e4m3) {
      set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, w_scale);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x_scale);
    }
    const cudaDataType_t type = e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    layout(w, type, p.k, p.n, p.k, p.batch, p.w_batch);
    layout(x, type, p.k, p.tokens, p.x_stride, p.batch, p.x_batch);
    layout(y, p.y_f32 ? CUDA_R_32F : CUDA_R_16BF, p.n, p.tokens, p.y_stride, p.batch, p.y_batch);
  }

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    check(cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  }
  static void layout(cublasLtMatrixLayoutOpaque_t& out, cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride, int32_t batch,
                     int64_t batch_stride) {
    // The stride of a single column is meaningless, and may be less than a column.
    check(cublasLtMatrixLayoutInit(&out, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), columns == 1 ? rows : stride),
          "cublasLtMatrixLayoutInit");
    if (batch == 1) return;
    check(cublasLtMatrixLayoutSetAttribute(&out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch),
          "cublasLtMatrixLayoutSetAttribute");
    check(cublasLtMatrixLayoutSetAttribute(&out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride, sizeof batch_stride),
          "cublasLtMatrixLayoutSetAttribute");
  }
};

template <class T>
void prefer(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value), "cublasLtMatmulPreferenceSetAttribute");
}

}  // namespace

CublasLt::~CublasLt() {
  for (const auto& [device, handle] : handles_) cublasLtDestroy(handle);
}

cublasLtHandle_t CublasLt::handle(int device) {
  cublasLtHandle_t& handle = handles_[device];
  if (handle == nullptr) {
    DeviceScope scope(device);
    check(cublasLtCreate(&handle), "cublasLtCreate");
  }
  return handle;
}

std::string CublasLt::unavailable(int device) {
  const std::lock_guard lock(mutex_);
  DeviceScope scope(device);  // throws: a device that is not there says nothing of the library
  const auto [answer, is_new] = unavailable_.try_emplace(device);
  if (is_new) {
    try {
      handle(device);
    } catch (const Error& error) {
      answer->second = error.what();
    }
  }
  return answer->second;
}

std::optional<cublasLtMatmulAlgo_t> CublasLt::choose(const Product& p) {
  DeviceScope scope(p.device);
  // The scales need only be readable, at an alignment that real scales have.
  alignas(16) static constexpr float kNoScale[4] = {};
  Description description(p, kNoScale, kNoScale);
  cublasLtMatmulPreferenceOpaque_t preference;
  check(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit");
  prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
  // Split-k sums are added in fp32: y is rounded once.
  prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  if (p.batch > 1) prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(ops::alignment_of(2 * p.w_batch)));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(p.x_alignment));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(p.y_alignment));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(p.y_alignment));
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle(p.device), &description.operation, &description.w, &description.x,
                                                               &description.y, &description.y, &preference, 1, &result, &found);
  if (status != CUBLAS_STATUS_SUCCESS || found == 0 || result.state != CUBLAS_STATUS_SUCCESS) return std::nullopt;
  return result.algo;
}

std::optional<cublasLtMatmulAlgo_t> CublasLt::algorithm(const Product& p) {
  const auto found = algorithms_.find(p);
  if (found != algorithms_.end()) return found->second;
  return algorithms_[p] = choose(p);
}

bool CublasLt::plan(const Product& product) {
  if (product.tokens == 0) return true;
  Product p = product;
  p.tokens = 0;
  const std::lock_guard lock(mutex_);
  int64_t& planned = planned_[p];
  const int64_t least = p.operands == Product::Operands::e4m3 ? 4 : 1;
  for (; planned < product.tokens; planned = p.tokens) {
    p.tokens = round_up_tokens(std::max(planned + 1, least));
    if (!algorithm(p)) return false;
  }
  return true;
}

void CublasLt::run(const Product& product, const ProductOperands& operands, void* workspace, Stream stream) {
  const float one = 1.0f, zero = 0.0f;
  Description d(product, operands.w_scale, operands.x_scale);
  const auto multiply = [&](cublasLtHandle_t lt, const std::optional<cublasLtMatmulAlgo_t>& algo) {
    if (!algo) return CUBLAS_STATUS_NOT_SUPPORTED;
    return cublasLtMatmul(lt, &d.operation, &one, operands.w, &d.w, operands.x, &d.x, &zero, operands.y, &d.y, operands.y, &d.y, &*algo,
                          workspace, kWorkspaceBytes, native(stream));
  };
  std::optional<cublasLtMatmulAlgo_t> algo;
  cublasLtHandle_t lt = nullptr;
  {
    const std::lock_guard lock(mutex_);
    lt = handle(product.device);
    const auto exact = algorithms_.find(product);
    Product rounded = product;
    rounded.tokens = round_up_tokens(product.tokens);
    algo = exact != algorithms_.end() ? exact->second : algorithm(rounded);
  }
  cublasStatus_t status = multiply(lt, algo);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
    // The kernel for the rounded number of tokens does not take this number.
    {
      const std::lock_guard lock(mutex_);
      algo = algorithms_[product] = choose(product);
    }
    status = multiply(lt, algo);
  }
  check(status, "cublasLtMatmul");
}

}  // namespace strata::cuda
