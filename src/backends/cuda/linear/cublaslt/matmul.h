// cuBLASLt with a plain interface: kernels are chosen once per shape and cached; the caller provides scratch memory.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "strata/device.h"

namespace strata::cuda {

// `batch` products y[T, n] = x[T, k] * w[n, k]^T with fp32 accumulation.
struct Product {
  enum class Operands : uint8_t {
    bf16,
    e4m3,  // with fp32 scales of 1 x 128 blocks of x and 128 x 128 blocks of w; T is a multiple of 4
  };
  int device = 0;
  Operands operands = Operands::bf16;
  bool y_f32 = false;
  int64_t tokens = 0, n = 0, k = 0;
  int64_t x_stride = 0, y_stride = 0;  // elements between tokens; rows of w have no gaps
  int batch = 1;
  int64_t x_batch = 0, w_batch = 0, y_batch = 0;  // elements between the operands of consecutive products
  int x_alignment = 16, y_alignment = 16;         // alignment of the addresses of x and y in bytes, 1 to 16
  friend auto operator<=>(const Product&, const Product&) = default;
};

struct ProductOperands {
  const void* x = nullptr;
  const float* x_scale = nullptr;  // e4m3 only: [ceil(k / 128)][T]
  const void* w = nullptr;
  const float* w_scale = nullptr;  // e4m3 only: [ceil(n / 128)][ceil(k / 128)]; ceil(k / 128) is a multiple of 4
  void* y = nullptr;
};

class CublasLt {
 public:
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;

  CublasLt() = default;
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // Why the device has no cuBLASLt: the library is missing (a program may open it at the first product), or does not start. Empty: it has.
  std::string unavailable(int device);
  // Chooses kernels for every number of tokens up to product.tokens; false when there are none. Host work, once per shape.
  bool plan(const Product& product);
  // workspace: kWorkspaceBytes, aligned to 256.
  void run(const Product& product, const ProductOperands& operands, void* workspace, Stream stream);

 private:
  cublasLtHandle_t handle(int device);
  // nullopt: cuBLASLt has no kernel for the product.
  std::optional<cublasLtMatmulAlgo_t> choose(const Product& product);
  std::optional<cublasLtMatmulAlgo_t> algorithm(const Product& product);

  std::mutex mutex_;
  std::map<int, cublasLtHandle_t> handles_;
  std::map<int, std::string> unavailable_;                             // by device: the answer
  std::map<Product, std::optional<cublasLtMatmulAlgo_t>> algorithms_;  // tokens: upper end of a range, or exact
  std::map<Product, int64_t> planned_;                                 // with tokens 0; the number of tokens planned so far
};

}  // namespace strata::cuda
