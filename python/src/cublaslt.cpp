// cuBLASLt, opened at the first product: the functions of it that the library calls, under their own names. First the one that torch has
// loaded from its own folders, then the system's. Where there is none, each function fails, and the implementations that need it refuse.
#include <cublasLt.h>
#include <dlfcn.h>

#include <string>

namespace {

struct Library {
  std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  void* handle = nullptr;

  Library() {
    handle = dlopen(name.c_str(), RTLD_NOLOAD | RTLD_NOW);
    if (handle == nullptr) handle = dlopen(name.c_str(), RTLD_NOW);
  }
};

const Library& library() {
  static const Library opened;
  return opened;
}

// The library's function of this name and type; null where there is none.
template <class Function>
Function* found(Function*, const char* name) {
  return library().handle == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library().handle, name));
}

template <class Function, class... Arguments>
cublasStatus_t call(Function* function, Arguments... arguments) {
  return function == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : function(arguments...);
}

}  // namespace

// Looks the function up at its first call.
#define STRATA_CALL(function, ...)                           \
  static auto* const loaded = found(&(function), #function); \
  return call(loaded, __VA_ARGS__)

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { STRATA_CALL(cublasLtCreate, handle); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { STRATA_CALL(cublasLtDestroy, handle); }
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algo, void* workspace, size_t bytes, cudaStream_t stream) {
  STRATA_CALL(cublasLtMatmul, handle, product, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo, workspace, bytes,
              stream);
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int count, cublasLtMatmulHeuristicResult_t* results,
                                              int* num_results) {
  STRATA_CALL(cublasLtMatmulAlgoGetHeuristic, handle, product, a, b, c, d, preference, count, results, num_results);
}
cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t product, size_t size, cublasComputeType_t compute,
                                               cudaDataType_t scale) {
  STRATA_CALL(cublasLtMatmulDescInit_internal, product, size, compute, scale);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t size) {
  STRATA_CALL(cublasLtMatmulDescSetAttribute, product, attribute, value, size);
}
cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t size, cudaDataType type, uint64_t rows,
                                                 uint64_t columns, int64_t stride) {
  STRATA_CALL(cublasLtMatrixLayoutInit_internal, layout, size, type, rows, columns, stride);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t size) {
  STRATA_CALL(cublasLtMatrixLayoutSetAttribute, layout, attribute, value, size);
}
cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, size_t size) {
  STRATA_CALL(cublasLtMatmulPreferenceInit_internal, preference, size);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t size) {
  STRATA_CALL(cublasLtMatmulPreferenceSetAttribute, preference, attribute, value, size);
}

// In messages of the library: what is missing.
const char* cublasLtGetStatusString(cublasStatus_t status) {
  static auto* const loaded = found(&cublasLtGetStatusString, "cublasLtGetStatusString");
  if (loaded != nullptr) return loaded(status);
  static const std::string missing = library().name + " is neither among torch's libraries nor among the system's";
  return missing.c_str();
}

}  // extern "C"
